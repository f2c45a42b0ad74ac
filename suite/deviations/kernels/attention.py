"""An honest attention kernel in NumPy behind the adapter protocol, one method a step.

Faults and honest variants are subclasses that change a step. Arithmetic is float32 (float64 for
float64 cases); what a class of numerics stores in the case's dtype goes through `Kernel.keep`.
The kernel has flags of its own for causal masks, windows and key lengths, as released kernels do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.declared import TEXTBOOK_FEATURES
from attention_conformance.backends.masks import dense_of, feature_arrays, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.suite.deviations.kernels.call import Call, Stages, Stated
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs


class Kernel(Stated, Stages):
    """Scores, softmax and product in working precision; rounded once, at the end."""

    features = TEXTBOOK_FEATURES | {"no-heads"}
    axis_order = "bhld"
    elections = {
        "fully-masked-row": "zeros",
        "minus-inf-row": "zeros",
        "no-keys": "zeros",
        "lse-of-empty-row": "minus-inf",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "blocked",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "nan",
        "value-size": "accepted",
        "integer-mask": "raises",
        "subnormal-output": "kept",
        "score-overflow": "finite",
    }

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend = self.backend
        operands = backend.memory.operands(inputs, self.axis_order)
        arguments: dict[str, Any] = dict(zip(("query", "key", "value"), operands, strict=True))
        native = split_native(inputs, causal=True, window=True, lengths=True)
        mask = dense_of(inputs, native.rest)
        if mask is not None:
            arguments["mask"] = backend.array(mask, None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(inputs.bias, inputs.dtype)
        arguments |= feature_arrays(backend, inputs)
        if native.lengths is not None:
            lengths = native.lengths.lengths(inputs.sizes, inputs.seed)
            arguments["lengths"] = backend.array(lengths, None)
        if native.window is not None:
            arguments["window"] = (native.window.left, native.window.right)
        if native.causal:
            arguments["causal"] = True
        arguments |= {"scale": inputs.scale, "softcap": inputs.feature("softcap")}
        arguments |= {"lse": True} if inputs.feature("lse") else {}
        return attention_call(self.attention, arguments, inputs, axis_order=self.axis_order)

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        """The function under test; shapes in the order of `axis_order`. Raises ValueError."""
        transpose = self.backend.memory.transpose
        if self.axis_order == "blhd":
            query, key, value = (transpose(x, 0, 2, 1, 3) for x in (query, key, value))
        call = Call(query, key, value, **rest)
        self.validate(call)
        with np.errstate(all="ignore"):
            answers = [self.deliver(self.compute(call), call)]
            if call.lse:
                answers.append(self.deliver_lse(self.log_sum_exp(self.final(call), call), call))
        if self.axis_order == "blhd":
            answers = [transpose(x, 0, 2, 1, *range(3, len(x.shape))) for x in answers]
        return tuple(answers) if call.lse else answers[0]

    def compute(self, call: Call) -> np.ndarray:
        """The output (B, H, Lq, Dv) in working precision."""
        value = self.expand(self.load(call.value, call), call)  # (B, H, Lk, Dv)
        return self.attend(self.final(call), self.with_sink(value, call), call)

    def final(self, call: Call) -> np.ndarray:
        """What the softmax is taken of: scores behind cap, bias, mask and sink, (B, H, Lq, Lk)."""
        query = self.load(call.query, call)  # (B, H, Lq, D)
        key = self.expand(self.load(call.key, call), call)  # (B, H, Lk, D)
        scores = self.scores(query, key, call)
        scores = self.biased(self.capped(scores, call), call)
        return self.sunk(self.hide(scores, self.allowed(call), call), call)

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        """log sum exp of each row (B, H, Lq); -inf where a row has no key."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        total = np.exp(self.shifted(scores)).sum(-1)
        return np.where(np.isneginf(maximum), 0, maximum)[..., 0] + np.log(total)

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return Rounded(round_to(lse, call.fmt.widened), call.fmt.widened)

    def validate(self, call: Call) -> None:
        for name in ("query", "key", "value"):
            if len(getattr(call, name).shape) != 4:
                raise ValueError(f"{name} must have rank 4")
        self.validate_operands(call)
        self.validate_mask(call)
        if call.bias is not None:
            self.validate_broadcast("bias", call.bias, call)
        self.validate_window(call)

    def validate_operands(self, call: Call) -> None:
        (B, H, _, D), (Bk, Hk, Lk, Dk) = call.query.shape, call.key.shape
        (Bv, Hv, Lv, _) = call.value.shape
        divides = H % Hk == 0 if Hk else H == 0
        if not (B == Bk == Bv and D == Dk and Lk == Lv and Hk == Hv and divides):
            raise ValueError(
                f"shapes do not fit: {call.query.shape}, {call.key.shape}, {call.value.shape}"
            )

    def validate_mask(self, call: Call) -> None:
        if call.mask is not None:
            if call.mask.values.dtype != bool:
                raise TypeError(f"a mask must be boolean, got {call.mask.values.dtype}")
            self.validate_broadcast("mask", call.mask, call)

    def validate_window(self, call: Call) -> None:
        if call.window and min(side or 0 for side in call.window) < 0:
            raise ValueError(f"a window must not be negative, got {call.window}")

    def validate_broadcast(self, name: str, array: Rounded, call: Call) -> None:
        s = call.sizes
        full = (s.B, s.H, s.Lq, s.Lk)
        if np.broadcast_shapes(array.shape, full) != full:
            raise ValueError(f"{name} {array.shape} does not broadcast to {full}")

    def factor(self, call: Call) -> float:
        return 1.0 / math.sqrt(call.sizes.D) if call.scale is None else call.scale

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = self.keep(query @ key.swapaxes(-1, -2), "scores", call)
        return self.keep(product * call.work(self.factor(call)), "scores", call)

    def tempered(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.logit_scale is None:
            return scores
        return self.keep(scores * self.factors(call)[:, None, None], "scores", call)

    def factors(self, call: Call) -> np.ndarray:
        """The logit scales (H,)."""
        assert call.logit_scale is not None
        return self.load(call.logit_scale, call)

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        """The scores times the logit scale, behind the softcap."""
        scores = self.tempered(scores, call)
        if call.softcap is None:
            return scores
        cap = call.work(call.softcap)
        return self.keep(cap * np.tanh(scores / cap), "scores", call)

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.alibi_slopes is not None:
            return self.keep(scores + self.alibi(self.slopes(call), call), "scores", call)
        if call.bias is None:
            return scores
        return self.keep(scores + self.bias(call), "scores", call)

    def bias(self, call: Call) -> np.ndarray:
        """The bias of a call in working precision, rank 4."""
        assert call.bias is not None
        return rank4(self.load(call.bias, call))

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        """The bias of slopes (H,) in working precision, which broadcasts to (B, H, Lq, Lk)."""
        return -slopes[:, None, None] * self.distance(call).astype(call.work)

    def slopes(self, call: Call) -> np.ndarray:
        assert call.alibi_slopes is not None
        return self.load(call.alibi_slopes, call)

    def distance(self, call: Call) -> np.ndarray:
        """How far each key is from each row, (Lq, Lk); the last row is at the last key."""
        rows, keys = call.rows_and_keys
        return np.abs(rows + (call.sizes.Lk - call.sizes.Lq) - keys)

    def allowed(self, call: Call) -> np.ndarray | None:
        """Which pairs attend: the mask and all flags together, rank 4; None where all do."""
        parts = []
        if call.mask is not None:
            parts.append(self.masked(rank4(call.mask.values), call))
        if call.causal:
            parts.append(rank4(self.causal(call)))
        if call.window is not None:
            parts.append(rank4(self.windowed(call, *call.window)))
        if call.lengths is not None:
            parts.append(self.within(call.lengths.values, call))
        return self.joined(parts) if parts else None

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= self.limit(row, call)

    def limit(self, row: np.ndarray, call: Call) -> np.ndarray:
        """The last key (Lq, 1) that each row (Lq, 1) sees by the causal flag."""
        return row

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        row, key = call.rows_and_keys
        inside = np.ones((call.sizes.Lq, call.sizes.Lk), bool)
        if left is not None:
            inside &= key >= row - left
        if right is not None:
            inside &= key <= row + right
        return inside

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        return np.arange(call.sizes.Lk) < lengths[:, None, None, None]

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        """Scores with one more key, whose logit is its head's sink, where there are any."""
        if call.sinks is None:
            return scores
        column = self.load(call.sinks, call).reshape(-1, 1, 1)
        return np.concatenate([scores, np.broadcast_to(column, (*scores.shape[:-1], 1))], -1)

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
        """Values with those of the sink, which are zeros, where there is one."""
        if call.sinks is None:
            return value
        B, H, _, Dv = value.shape
        return np.concatenate([value, np.zeros((B, H, 1, Dv), value.dtype)], 2)

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.exp(shifted)

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = self.total(raised, call)
        return self.keep(raised / np.where(total == 0, 1, total), "weights", call)

    def total(self, raised: np.ndarray, call: Call) -> np.ndarray:
        """The sum of each row of exponentials."""
        return np.asarray(raised.sum(-1, keepdims=True))

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return self.weights(scores, call) @ self.visible(value, scores)

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return Rounded(round_to(out, call.fmt), call.fmt)


class Fused(Kernel):
    """Weights are stored in the case's dtype before the product with the values."""

    numerics = "fused"
    stores = ("weights",)


class Eager(Kernel):
    """Three operations: scores and weights are stored in the case's dtype."""

    numerics = "eager"
    stores = ("scores", "weights")
    elections = Kernel.elections | {"score-overflow": "nan"}


class Online(Kernel):
    """Online softmax over tiles of keys (Dao et al., NeurIPS 2022, algorithm 1)."""

    tile = 16

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        rows = (*scores.shape[:-1], 1)
        maximum = np.full(rows, -np.inf, scores.dtype)
        total = np.zeros(rows, scores.dtype)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for keys in self.tiles(scores.shape[-1]):
            s = scores[..., keys]
            largest = np.maximum(maximum, s.max(-1, keepdims=True))
            anchor = self.anchor(largest)
            raised = self.raised(s - anchor)
            total, out = self.rescaled(total, out, self.raised(maximum - anchor))
            total = total + raised.sum(-1, keepdims=True)
            out = out + self.keep(raised, "weights", call) @ value[..., keys, :]
            maximum = largest
        return out / np.where(total == 0, 1, total)

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        """What is subtracted from scores: the maximum so far, 0 where no key was seen yet."""
        return np.where(np.isneginf(largest), 0, largest)

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The running sums, moved from the old maximum to the new one."""
        return total * rescale, out * rescale

    def tiles(self, length: int) -> list[slice]:
        return [slice(start, start + self.tile) for start in range(0, length, self.tile)]

"""An honest attention kernel in NumPy behind the adapter protocol, one method a step.

Faults and honest variants are subclasses that change a step. Arithmetic is float32 (float64 for
float64 cases); `Kernel.keep` rounds the intermediate arrays that the numerics class names.
Causal masks, windows and key lengths are arguments, as in released kernels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.declared import TEXTBOOK_FEATURES
from attention_conformance.backends.masks import feature_arrays, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.suite.deviations.kernels.call import (
    Array,
    AttentionSteps,
    Call,
    DeclaredKernel,
)
from attention_conformance.suite.spec.inputs import Inputs


class Kernel(DeclaredKernel, AttentionSteps):
    """Scores, softmax and product in working precision; only the output is rounded."""

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
        operands = backend.operands(inputs, self.axis_order)
        arguments: dict[str, Any] = dict(zip(("query", "key", "value"), operands, strict=True))
        native = split_native(inputs, causal=True, window=True, lengths=True)
        mask, lengths = native.dense(inputs), native.key_counts(inputs)
        if mask is not None:
            arguments["mask"] = backend.array(mask, None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(inputs.bias, inputs.dtype)
        arguments |= feature_arrays(backend, inputs)
        if lengths is not None:
            arguments["lengths"] = backend.array(lengths, None)
        if native.window is not None:
            arguments["window"] = (native.window.left, native.window.right)
        if native.causal:
            arguments["causal"] = True
        arguments |= {"scale": inputs.scale, "softcap": inputs.feature("softcap")}
        arguments |= {"lse": True} if inputs.feature("lse") else {}
        return attention_call(self.attention, arguments, inputs, axis_order=self.axis_order)

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **options: Any) -> Any:
        """Returns the output, and with the option `lse` the log-sum-exp. Operands and results have axes
        in the order of `axis_order`, (B, H, L, D) for "bhld". `options`: other fields of `Call`. Raises
        ValueError or TypeError for malformed arguments."""
        transpose = self.backend.transpose
        if self.axis_order == "blhd":
            query, key, value = (transpose(x, 0, 2, 1, 3) for x in (query, key, value))
        call = Call(query, key, value, **options)
        self.validate(call)
        with np.errstate(all="ignore"):
            answers = [self.deliver(self.compute(call), call)]
            if call.lse:
                answers.append(
                    self.deliver_lse(self.log_sum_exp(self.final_scores(call), call), call)
                )
        if self.axis_order == "blhd":
            answers = [transpose(x, 0, 2, 1, *range(3, len(x.shape))) for x in answers]
        return tuple(answers) if call.lse else answers[0]

    def compute(self, call: Call) -> Array:
        """Returns the output (B, H, Lq, Dv) in working precision."""
        value = self.expand(self.load(call.value, call), call)  # (B, H, Lk, Dv)
        return self.attend(self.final_scores(call), self.with_sink_values(value, call), call)

    def final_scores(self, call: Call) -> Array:
        """Returns the operand of the softmax: scores after cap, bias, mask and sink, (B, H, Lq, Lk), or
        Lk + 1 with a sink."""
        query = self.load(call.query, call)  # (B, H, Lq, D)
        key = self.expand(self.load(call.key, call), call)  # (B, H, Lk, D)
        scores = self.scores(query, key, call)
        scores = self.biased(self.capped(scores, call), call)
        return self.with_sink_logits(self.hide(scores, self.allowed(call), call), call)

    def log_sum_exp(self, scores: Array, call: Call) -> Array:
        """Returns the log-sum-exp of each row, (B, H, Lq); -inf for fully masked rows."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        total = np.exp(self.shifted(scores)).sum(-1)
        return np.where(np.isneginf(maximum), 0, maximum)[..., 0] + np.log(total)

    def deliver_lse(self, lse: Array, call: Call) -> Any:
        """Returns the log-sum-exp as the caller gets it: in float32 for 16-bit operands."""
        return rounded_to(lse, call.fmt.widened)

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
        full_shape = (s.B, s.H, s.Lq, s.Lk)
        if np.broadcast_shapes(array.shape, full_shape) != full_shape:
            raise ValueError(f"{name} {array.shape} does not broadcast to {full_shape}")

    def factor(self, call: Call) -> float:
        """Returns the scale of the scores."""
        return 1.0 / math.sqrt(call.sizes.D) if call.scale is None else call.scale

    def scores(self, query: Array, key: Array, call: Call) -> Array:
        product = self.keep(query @ key.swapaxes(-1, -2), "scores", call)
        return self.keep(product * call.work(self.factor(call)), "scores", call)

    def tempered(self, scores: Array, call: Call) -> Array:
        """Returns the scores times the logit scales, if the call has any."""
        if call.logit_scale is None:
            return scores
        return self.keep(scores * self.logit_scales(call)[:, None, None], "scores", call)

    def logit_scales(self, call: Call) -> Array:
        """Returns the logit scales (H,)."""
        assert call.logit_scale is not None
        return self.load(call.logit_scale, call)

    def capped(self, scores: Array, call: Call) -> Array:
        """Returns the scores times the logit scales, then through the softcap."""
        scores = self.tempered(scores, call)
        if call.softcap is None:
            return scores
        cap = call.work(call.softcap)
        return self.keep(cap * np.tanh(scores / cap), "scores", call)

    def biased(self, scores: Array, call: Call) -> Array:
        """Returns the scores plus the ALiBi bias or the bias argument, if the call has one."""
        if call.alibi_slopes is not None:
            return self.keep(scores + self.alibi(self.slopes(call), call), "scores", call)
        if call.bias is None:
            return scores
        return self.keep(scores + self.bias(call), "scores", call)

    def bias(self, call: Call) -> Array:
        """Returns the bias argument in working precision, rank 4."""
        assert call.bias is not None
        return rank4(self.load(call.bias, call))

    def alibi(self, slopes: Array, call: Call) -> Array:
        """Returns the ALiBi bias of slopes (H,) in working precision, (H, Lq, Lk)."""
        return -slopes[:, None, None] * self.distance(call).astype(call.work)

    def slopes(self, call: Call) -> Array:
        assert call.alibi_slopes is not None
        return self.load(call.alibi_slopes, call)

    def distance(self, call: Call) -> Array:
        """Returns the distances (Lq, Lk) of queries and keys; the last query stands at the last key."""
        rows, keys = call.rows_and_keys
        return np.abs(rows + (call.sizes.Lk - call.sizes.Lq) - keys)

    def allowed(self, call: Call) -> Array | None:
        """Returns the mask of all arguments together, rank 4, True attends; None if no argument masks."""
        masks = []
        if call.mask is not None:
            masks.append(self.masked(rank4(call.mask.values), call))
        if call.causal:
            masks.append(rank4(self.causal(call)))
        if call.window is not None:
            masks.append(rank4(self.window_mask(call, *call.window)))
        if call.lengths is not None:
            masks.append(self.within(call.lengths.values, call))
        return self.joined(masks) if masks else None

    def causal(self, call: Call) -> Array:
        """Returns the causal mask (Lq, Lk), True attends."""
        row, key = call.rows_and_keys
        return key <= self.last_causal_key(row, call)

    def last_causal_key(self, row: Array, call: Call) -> Array:
        """Returns the index (Lq, 1) of the last key that each row (Lq, 1) attends under the causal
        flag."""
        return row

    def window_mask(self, call: Call, left: int | None, right: int | None) -> Array:
        row, key = call.rows_and_keys
        inside = np.ones((call.sizes.Lq, call.sizes.Lk), bool)
        if left is not None:
            inside &= key >= row - left
        if right is not None:
            inside &= key <= row + right
        return inside

    def within(self, lengths: Array, call: Call) -> Array:
        """Returns the mask (B, 1, 1, Lk) of key lengths (B,), True attends."""
        return np.arange(call.sizes.Lk) < lengths[:, None, None, None]

    def with_sink_logits(self, scores: Array, call: Call) -> Array:
        """Returns the scores with one more column, the logit of each head's sink; unchanged without
        sinks."""
        if call.sinks is None:
            return scores
        column = self.load(call.sinks, call).reshape(-1, 1, 1)
        return np.concatenate([scores, np.broadcast_to(column, (*scores.shape[:-1], 1))], -1)

    def with_sink_values(self, value: Array, call: Call) -> Array:
        """Returns the values with one more row, the zero value of the sink; unchanged without sinks."""
        if call.sinks is None:
            return value
        B, H, _, Dv = value.shape
        return np.concatenate([value, np.zeros((B, H, 1, Dv), value.dtype)], 2)

    def raised(self, shifted: Array) -> Array:
        """Returns e^shifted. `shifted`: scores minus the maximum of their row."""
        return np.exp(shifted)

    def weights(self, scores: Array, call: Call) -> Array:
        exponentials = self.raised(self.shifted(scores))
        total = self.total(exponentials, call)
        return self.keep(exponentials / np.where(total == 0, 1, total), "weights", call)

    def total(self, exponentials: Array, call: Call) -> Array:
        """Returns the sum of each row of exponentials; the axis keeps size 1."""
        return np.asarray(exponentials.sum(-1, keepdims=True))

    def attend(self, scores: Array, value: Array, call: Call) -> Array:
        """Returns the softmax of `scores` times the values."""
        return self.weights(scores, call) @ self.visible(value, scores)

    def deliver(self, out: Array, call: Call) -> Any:
        """Returns the output as the caller gets it: rounded to the case's dtype."""
        return rounded_to(out, call.fmt)


class Fused(Kernel):
    """Fused attention: weights are rounded to the case's dtype before the product with the values."""

    numerics = "fused"
    stores = ("weights",)


class Eager(Kernel):
    """Eager attention, three operations: scores and weights are rounded to the case's dtype."""

    numerics = "eager"
    stores = ("scores", "weights")
    elections = Kernel.elections | {"score-overflow": "nan"}


class Online(Kernel):
    """Online softmax over tiles of keys (Dao et al., NeurIPS 2022, algorithm 1)."""

    tile = 16

    def attend(self, scores: Array, value: Array, call: Call) -> Array:
        value = self.visible(value, scores)
        maximum = np.full((*scores.shape[:-1], 1), -np.inf, scores.dtype)
        total = np.zeros_like(maximum)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for keys in self.tiles(scores.shape[-1]):
            s = scores[..., keys]
            largest = np.maximum(maximum, s.max(-1, keepdims=True))
            anchor = self.anchor(largest)
            exponentials = self.raised(s - anchor)
            total, out = self.rescaled(total, out, self.raised(maximum - anchor))
            total = total + exponentials.sum(-1, keepdims=True)
            out = out + self.keep(exponentials, "weights", call) @ value[..., keys, :]
            maximum = largest
        return out / np.where(total == 0, 1, total)

    def anchor(self, largest: Array) -> Array:
        """Returns the number to subtract from scores: the maximum so far, or 0 if all keys so far are
        masked."""
        return np.where(np.isneginf(largest), 0, largest)

    def rescaled(self, total: Array, out: Array, rescale: Array) -> tuple[Array, Array]:
        """Returns the running sum of weights and the running output, rescaled to a new maximum."""
        return total * rescale, out * rescale

    def tiles(self, length: int) -> list[slice]:
        """Returns the keys of each tile."""
        return [slice(start, start + self.tile) for start in range(0, length, self.tile)]

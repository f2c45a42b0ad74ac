"""Honest layers in NumPy behind the adapter protocol, one method a step (see `attention`).

What a class of numerics stores in the case's dtype goes through `LayerKernel.keep`. The layers have a
causal flag, valid keys, a boolean mask, a float bias, dropout, and flags that must not change the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.declared import LAYER_FEATURES
from attention_conformance.backends.masks import LayerMasks, rank4
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.deviations.kernels.call import InDtype, Stages, Stated
from attention_conformance.suite.deviations.kernels.dropping import Drops
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.layers import PARAMETERS
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.sizes import Sizes

Heads = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Query, key and value (B, H, L, size)."""


@dataclass(frozen=True)
class LayerCall(InDtype):
    """The arguments of one call, with a batch and an axis for queries even where `single` lacks one.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), one tensor where `own`; canonical parameters;
    `valid` (B, Lk) and `mask` are True where a pair attends. `training` and `gradients` choose a path.
    """

    query: Rounded
    key: Rounded
    value: Rounded
    parameters: Mapping[str, Rounded]
    sizes: Sizes
    valid: Rounded | None = None
    mask: Rounded | None = None
    bias: Rounded | None = None
    causal: bool = False
    returned: str = "none"
    training: bool = False
    gradients: bool = True
    rate: float = 0.0
    seed: int = 0
    own: bool = False
    single: bool = False
    epsilon: float = 0.0
    pre: bool = False
    activation: str = "relu"


class LayerKernel(Drops, Stated, Stages):
    """One head without projections, in working precision, rounded once; scores are the operator's."""

    operator = MULTI_HEAD
    features = LAYER_FEATURES
    parameters: tuple[str, ...] = tuple(PARAMETERS)
    elections = {
        "fully-masked-row": "zeros",
        "padded-sample": "zeros",
        "fully-masked-row-gradient": "nothing",
        "padded-sample-gradient": "nothing",
    }

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.flagged_call(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {"no-grad": self.flagged_call(inputs, gradients=False)}
        if not inputs.operator.has_keys:
            return calls
        calls["train"] = self.flagged_call(inputs, training=True)
        if inputs.returned == "none":
            calls["weights"] = self.flagged_call(inputs, returned="head")
        if inputs.mask is not None:
            calls["dense mask"] = self.flagged_call(inputs.with_dense())
        return calls

    def flagged_call(self, inputs: Inputs, **flags: Any) -> PreparedCall:
        """The call by any of the layer's flags."""
        array, masks = self.backend.array, LayerMasks.of(inputs)
        arguments: dict[str, Any] = sequences(self.backend, inputs)
        arguments |= {n: array(a, inputs.dtype) for n, a in inputs.parameters.items()}
        if masks.valid is not None:
            arguments["valid"] = array(masks.valid, None)
        if masks.rest is not None:
            arguments["mask"] = array(masks.rest, None)
        if inputs.bias is not None:
            arguments["bias"] = array(inputs.bias, inputs.dtype)
        arguments |= {"causal": masks.causal, "returned": inputs.returned, "rate": inputs.rate}
        arguments |= {"training": inputs.training, "seed": inputs.dropout_seed}
        arguments |= {"sizes": inputs.sizes, **flags}
        if inputs.operator.option("epsilon") is not None:
            arguments["epsilon"] = inputs.epsilon
        return PreparedCall(self.attention, arguments, LAYER_OUTPUTS)

    @property
    def single_axis(self) -> int:
        """The axis that a call with one sample, or one query, lacks."""
        return "bq".index(self.operator.squeezed_axis)

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        """The function under test: (output, weights or None). Raises ValueError."""
        parameters = {n: rest.pop(n) for n in self.parameters if n in rest}
        single, own = query.values.ndim == 2, query is key and key is value
        q, k, v = query, key, value
        if single:
            q = Rounded(np.expand_dims(q.values, self.single_axis), q.fmt)
            k, v = (x if x.values.ndim == 3 else Rounded(x.values[None], x.fmt) for x in (k, v))
        call = LayerCall(q, k, v, parameters, own=own, single=single, **rest)
        self.validate(call)
        with np.errstate(all="ignore"):
            output, weights = self.compute(call)
            returned_weights = (
                None if call.returned == "none" else self.returned_weights(weights, call)
            )
            return self.deliver(
                output, call
            ), returned_weights if returned_weights is None else self.deliver(
                returned_weights, call
            )

    def validate(self, call: LayerCall) -> None:
        self.validate_lengths(call)
        self.validate_widths(call)
        self.validate_rate(call.rate)
        if call.mask is not None:
            self.validate_mask(call.mask, call)

    def validate_lengths(self, call: LayerCall) -> None:
        q, k, v = call.query.shape, call.key.shape, call.value.shape
        if not (q[0] == k[0] == v[0] and k[1] == v[1]):
            raise ValueError(f"shapes do not fit: {q}, {k}, {v}")

    def validate_widths(self, call: LayerCall) -> None:
        for name in ("query", "key", "value"):
            width, kernel = getattr(call, name).shape[-1], call.parameters.get(f"{name}_kernel")
            if kernel is not None and kernel.shape[0] != width:
                raise ValueError(f"a {name} of width {width} for a kernel {kernel.shape}")
        if "query_kernel" not in call.parameters and call.query.shape[-1] != call.key.shape[-1]:
            raise ValueError(f"query {call.query.shape} and key {call.key.shape} differ in width")

    def validate_mask(self, mask: Rounded, call: LayerCall) -> None:
        s = call.sizes
        full = (s.B, s.H, s.Lq, s.Lk)
        if mask.values.ndim > 4 or np.broadcast_shapes(mask.shape, full) != full:
            raise ValueError(f"a mask {mask.shape} does not broadcast to {full}")

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        """The output (B, Lq, Eo) and the weights (B, H, Lq, Lk) in working precision."""
        query, key, value = self.heads(call)  # (B, H, L, D)
        scores = self.biased(self.scores(query, key, call), call)  # (B, H, Lq, Lk)
        hidden = self.hide(scores, self.allowed(call), call)
        weights = self.weights(hidden, call)
        attended = self.attend(self.dropped(weights, call), self.visible(value, hidden), call)
        return self.output(self.merge(self.gated(attended, call), call), call), weights

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = (self.load(x, call)[:, None] for x in (call.query, call.key, call.value))
        return q, k, v

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        raise NotImplementedError

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        return self.keep(scores + rank4(self.load(call.bias, call)), "scores", call)

    def allowed(self, call: LayerCall) -> np.ndarray | None:
        """Which pairs attend, rank 4; None where all do."""
        parts = []
        if call.mask is not None:
            parts.append(self.masked(rank4(call.mask.values), call))
        if call.valid is not None:
            parts.append(self.padded(call.valid.values, call))
        if call.causal:
            parts.append(rank4(self.causal(call)))
        return self.joined(parts) if parts else None

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return valid[:, None, None]

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None]

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        """1 / sqrt(variance + epsilon)."""
        return 1 / np.sqrt(variance + call.work(call.epsilon))

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        raised = self.keep(np.exp(self.keep(self.shifted(scores), "steps", call)), "steps", call)
        total = self.keep(raised.sum(-1, keepdims=True), "steps", call)
        return self.keep(raised / np.where(total == 0, 1, total), "weights", call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        rate = self.rate(call)
        if rate == 0:
            return weights
        kept = self.pattern(weights.shape, rate, call)
        return self.keep(
            np.where(kept, weights * call.work(self.rescale(rate)), 0), "weights", call
        )

    def rate(self, call: LayerCall) -> float:
        return call.rate if call.training else 0.0

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(weights @ value, "features", call)

    def gated(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        """(B, H, Lq, Dv) -> (B, Lq, H Dv)."""
        swapped = attended.swapaxes(1, 2)
        return swapped.reshape(*swapped.shape[:2], -1)

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        return merged

    def returned_weights(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        """The weights as they are returned."""
        return weights[:, 0]

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        if call.single:
            out = np.take(out, 0, axis=self.single_axis)
        return Rounded(round_to(out, call.fmt), call.fmt)


class MultiHeadKernel(LayerKernel):
    """Multi-head attention: packed projections, split and merged by a reshape and a transpose."""

    operator = MULTI_HEAD
    features = LAYER_FEATURES | {"qk-norm", "one-head", "gate"}
    normed_axes: tuple[int, ...] = (-1,)
    dropout = "elements"
    refusals = {"splits-width": "is given kernels, not a width to split"}
    elections = LayerKernel.elections | {
        "minus-inf-row": "zeros",
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
        "causal-alone": "hides",
        "mask-polarity": "attends",
        "returned-weights": "before-dropout",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "blocked",
    }

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = (
            self.normed(
                self.projected(self.load(getattr(call, name), call), name, call), name, call
            )
            for name in ("query", "key", "value")
        )
        return q, self.expand(k, call), self.expand(v, call)

    def normed(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        """Heads (B, heads, L, D) of query, key or value, through a norm where they have a gain."""
        gain = self.gain(name, call)
        if gain is None:
            return x
        return self.keep(self.standardised(x, call) * gain, "features", call)

    def standardised(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        """(x - mean) / sqrt(variance + epsilon), mean and variance over `normed_axes`."""
        shifted = x - self.level(x)
        variance = np.square(shifted).mean(self.normed_axes, keepdims=True)
        return shifted * self.reciprocal(variance, call)

    def level(self, x: np.ndarray) -> np.ndarray:
        """What a norm subtracts."""
        return x.mean(self.normed_axes, keepdims=True)

    def gain(self, name: str, call: LayerCall) -> np.ndarray | None:
        """That of the norm of query, key or value; None where there is none."""
        gain = call.parameters.get(f"{name}_gain")
        return None if gain is None else self.load(gain, call)

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        """(B, L, E) -> (B, heads, L, size)."""
        kernel = self.kernel(name, call)
        y = self.keep(x @ kernel.reshape(len(kernel), -1), "features", call)
        return self.split(self.with_bias(y, name, call), kernel.shape[1], call)

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        """(E, heads, size); the output's (H, Dv, Eo)."""
        return self.load(call.parameters[f"{name}_kernel"], call)

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        """All heads' biases in one vector; None where there are none."""
        bias = call.parameters.get(f"{name}_bias")
        return None if bias is None else self.load(bias, call).reshape(-1)

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias = self.bias(name, call)
        return y if bias is None else self.keep(y + bias, "features", call)

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        """(B, L, heads size) -> (B, heads, L, size)."""
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.D)

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        scaled = self.keep(query * call.work(self.factor(call)), "features", call)
        return self.keep(scaled @ key.swapaxes(-1, -2), "scores", call)

    def gated(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        if "gate_kernel" not in call.parameters:
            return attended
        return self.keep(attended * self.gate(call), "features", call)

    def gate(self, call: LayerCall) -> np.ndarray:
        """The gates (B, H, Lq, Dv)."""
        y = self.projected(self.load(call.query, call), "gate", call)
        return self.keep(self.squashed(y), "features", call)

    def squashed(self, y: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-y))

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        if "output_kernel" not in call.parameters:
            return merged
        kernel = self.kernel("output", call)
        y = self.keep(merged @ kernel.reshape(-1, kernel.shape[-1]), "features", call)
        return self.with_bias(y, "output", call)

    def returned_weights(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.mean(1) if call.returned == "average" else weights

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        """The output, or the weights: those of one head have no axis of heads."""
        one_head = out.ndim == 4 and "output_kernel" not in call.parameters
        return super().deliver(out[:, 0] if one_head else out, call)


class LayerEager(MultiHeadKernel):
    """Every matrix product, sum and softmax stored in the case's dtype."""

    numerics = "eager"
    stores = ("features", "scores", "weights")

    def returned_weights(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "average":
            return weights
        return self.keep(weights.sum(1), "weights", call) / call.work(weights.shape[1])

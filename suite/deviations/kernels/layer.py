"""Right layers in NumPy behind the adapter protocol, one method a step (see `attention`).

The layers have a causal flag, valid keys, a boolean mask, a float bias, dropout, and flags that must not
change the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.declared import LAYER_FEATURES
from attention_conformance.backends.masks import rank4, split_native
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.deviations.kernels.call import (
    Array,
    AttentionSteps,
    DeclaredKernel,
    DropoutSteps,
    TypedCall,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.layers import PARAMETERS
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.sizes import Sizes

Heads = tuple[Array, Array, Array]
"""Query, key and value (B, H, L, size)."""


@dataclass(frozen=True)
class LayerCall(TypedCall):
    """The arguments of one call, always with the axes of samples and of queries.

    - query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev): one tensor if `self_attention`
    - `squeezed`: the caller's arrays lack the axis of samples, or of queries
    - `valid` (B, Lk): False for padding; `mask`: True where a pair attends
    - `returned`: the weights that are returned, "none", "head" or "average"
    - `training`: False for evaluation; `gradients`: False if no gradient is recorded
    - `pre`: True if an encoder's norms come before attention and network
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
    self_attention: bool = False
    squeezed: bool = False
    epsilon: float = 0.0
    pre: bool = False
    activation: str = "relu"


class LayerKernel(DropoutSteps, DeclaredKernel, AttentionSteps):
    """One head without projections in working precision; subclasses compute their operator's scores."""

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
        return self.call_with_flags(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {"no-grad": self.call_with_flags(inputs, gradients=False)}
        if not inputs.operator.has_keys:
            return calls
        calls["train"] = self.call_with_flags(inputs, training=True)
        if inputs.returned == "none":
            calls["weights"] = self.call_with_flags(inputs, returned="head")
        if inputs.mask is not None:
            calls["dense mask"] = self.call_with_flags(inputs.with_dense())
        return calls

    def call_with_flags(self, inputs: Inputs, **flags: Any) -> PreparedCall:
        """Returns the call, with some fields of `LayerCall` set to `flags`."""
        array, native = self.backend.array, split_native(inputs, causal=True, lengths=True)
        valid, dense = native.valid(inputs), native.dense(inputs)
        arguments: dict[str, Any] = operand_arrays(self.backend, inputs)
        arguments |= {name: array(x, inputs.dtype) for name, x in inputs.parameters.items()}
        if valid is not None:
            arguments["valid"] = array(valid, None)
        if dense is not None:
            arguments["mask"] = array(dense, None)
        if inputs.bias is not None:
            arguments["bias"] = array(inputs.bias, inputs.dtype)
        arguments |= {"causal": native.causal, "returned": inputs.returned, "rate": inputs.rate}
        arguments |= {"training": inputs.training, "seed": inputs.dropout_seed}
        arguments |= {"sizes": inputs.sizes, **flags}
        if inputs.operator.option("epsilon") is not None:
            arguments["epsilon"] = inputs.epsilon
        return PreparedCall(self.attention, arguments, LAYER_OUTPUTS)

    @property
    def squeezed_axis(self) -> int:
        """The number of the axis that the arrays of a squeezed call lack: 0 for samples, 1 for
        queries."""
        return "bq".index(self.operator.squeezed_axis)

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **options: Any) -> Any:
        """Returns the output, and the weights or None. Raises ValueError for malformed arguments."""
        parameters = {n: options.pop(n) for n in self.parameters if n in options}
        squeezed, q, k, v = query.values.ndim == 2, query, key, value
        if squeezed:
            q = Rounded(np.expand_dims(q.values, self.squeezed_axis), q.fmt)
            k, v = (x if x.values.ndim == 3 else Rounded(x.values[None], x.fmt) for x in (k, v))
        self_attention = query is key and key is value
        call = LayerCall(
            q, k, v, parameters, self_attention=self_attention, squeezed=squeezed, **options
        )  # fmt: skip
        self.validate(call)
        with np.errstate(all="ignore"):
            output, weights = self.compute(call)
            delivered = self.deliver(output, call)
            if call.returned == "none":
                return delivered, None
            return delivered, self.deliver(self.returned_weights(weights, call), call)

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
        full_shape = (s.B, s.H, s.Lq, s.Lk)
        if mask.values.ndim > 4 or np.broadcast_shapes(mask.shape, full_shape) != full_shape:
            raise ValueError(f"a mask {mask.shape} does not broadcast to {full_shape}")

    def compute(self, call: LayerCall) -> tuple[Array, Array]:
        """Returns the output (B, Lq, Eo) and the weights (B, H, Lq, Lk) in working precision."""
        query, key, value = self.heads(call)  # (B, H, L, D)
        scores = self.biased(self.scores(query, key, call), call)  # (B, H, Lq, Lk)
        hidden = self.hide(scores, self.allowed(call), call)
        weights = self.weights(hidden, call)
        attended = self.attend(self.dropped(weights, call), self.visible(value, hidden), call)
        return self.output(self.merge(self.apply_gate(attended, call), call), call), weights

    def heads(self, call: LayerCall) -> Heads:
        """Returns query, key and value with an axis for heads, (B, H, L, .)."""
        q, k, v = (self.load(x, call)[:, None] for x in (call.query, call.key, call.value))
        return q, k, v

    def scores(self, query: Array, key: Array, call: LayerCall) -> Array:
        """Returns the scores (B, H, Lq, Lk), scaled."""
        raise NotImplementedError

    def biased(self, scores: Array, call: LayerCall) -> Array:
        if call.bias is None:
            return scores
        return self.keep(scores + rank4(self.load(call.bias, call)), "scores", call)

    def allowed(self, call: LayerCall) -> Array | None:
        """Returns the mask of all arguments together, rank 4, True attends; None if no argument masks."""
        masks = []
        if call.mask is not None:
            masks.append(self.masked(rank4(call.mask.values), call))
        if call.valid is not None:
            masks.append(self.padding_mask(call.valid.values, call))
        if call.causal:
            masks.append(rank4(self.causal(call)))
        return self.joined(masks) if masks else None

    def padding_mask(self, valid: Array, call: LayerCall) -> Array:
        """Returns the mask (B, 1, 1, Lk) of the valid keys (B, Lk), True attends."""
        return valid[:, None, None]

    def causal(self, call: LayerCall) -> Array:
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None]

    def reciprocal(self, variance: Array, call: LayerCall) -> Array:
        """Returns 1 / sqrt(variance + epsilon)."""
        return 1 / np.sqrt(variance + call.work(call.epsilon))

    def weights(self, scores: Array, call: LayerCall) -> Array:
        shifted = self.keep(self.shifted(scores), "steps", call)
        exponentials = self.keep(np.exp(shifted), "steps", call)
        total = self.keep(exponentials.sum(-1, keepdims=True), "steps", call)
        return self.keep(exponentials / np.where(total == 0, 1, total), "weights", call)

    def dropped(self, weights: Array, call: LayerCall) -> Array:
        rate = self.rate(call)
        if rate == 0:
            return weights
        is_kept = self.pattern(weights.shape, rate, call)
        weights = np.where(is_kept, weights * call.work(self.rescale(rate)), 0)
        return self.keep(weights, "weights", call)

    def rate(self, call: LayerCall) -> float:
        """Returns the dropout rate of the call: 0 in evaluation."""
        return call.rate if call.training else 0.0

    def attend(self, weights: Array, value: Array, call: LayerCall) -> Array:
        return self.keep(weights @ value, "features", call)

    def apply_gate(self, attended: Array, call: LayerCall) -> Array:
        """Returns the heads (B, H, Lq, Dv) times their gates, if the layer has gates."""
        return attended

    def merge(self, attended: Array, call: LayerCall) -> Array:
        """Concatenates the heads: (B, H, Lq, Dv) -> (B, Lq, H Dv)."""
        swapped = attended.swapaxes(1, 2)
        return swapped.reshape(*swapped.shape[:2], -1)

    def output(self, merged: Array, call: LayerCall) -> Array:
        return merged

    def returned_weights(self, weights: Array, call: LayerCall) -> Array:
        """Returns the weights without the axis of heads, since there is one head: (B, Lq, Lk)."""
        return weights[:, 0]

    def deliver(self, out: Array, call: LayerCall) -> Any:
        if call.squeezed:
            out = np.take(out, 0, axis=self.squeezed_axis)
        return rounded_to(out, call.fmt)


class MultiHeadKernel(LayerKernel):
    """Multi-head attention; heads are split and merged by a reshape and a transpose."""

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
        def projected_head(name: str) -> Array:
            x = self.load(getattr(call, name), call)
            return self.normed(self.projected(x, name, call), name, call)

        q, k, v = (projected_head(name) for name in ("query", "key", "value"))
        return q, self.expand(k, call), self.expand(v, call)

    def normed(self, x: Array, name: str, call: LayerCall) -> Array:
        """Returns the heads x (B, heads, L, D) of query, key or value, normed if the layer has a gain."""
        gain = self.gain(name, call)
        if gain is None:
            return x
        return self.keep(self.standardised(x, call) * gain, "features", call)

    def standardised(self, x: Array, call: LayerCall) -> Array:
        """Returns (x - mean) / sqrt(variance + epsilon), with mean and variance over `normed_axes`."""
        centred = x - self.norm_centre(x)
        variance = np.square(centred).mean(self.normed_axes, keepdims=True)
        return centred * self.reciprocal(variance, call)

    def norm_centre(self, x: Array) -> Array:
        """Returns the mean that a norm subtracts."""
        return x.mean(self.normed_axes, keepdims=True)

    def gain(self, name: str, call: LayerCall) -> Array | None:
        """Returns the gain of the norm of query or key (`name`); None without a norm."""
        gain = call.parameters.get(f"{name}_gain")
        return None if gain is None else self.load(gain, call)

    def projected(self, x: Array, name: str, call: LayerCall) -> Array:
        """Projects x by the kernel of query, key, value or gate: (B, L, E) -> (B, heads, L, size)."""
        kernel = self.kernel(name, call)
        y = self.keep(x @ kernel.reshape(len(kernel), -1), "features", call)
        return self.split(self.with_bias(y, name, call), kernel.shape[1], call)

    def kernel(self, name: str, call: LayerCall) -> Array:
        """Returns the matrix (E, heads, size) of a projection; (H, Dv, Eo) for the name "output"."""
        return self.load(call.parameters[f"{name}_kernel"], call)

    def bias(self, name: str, call: LayerCall) -> Array | None:
        """Returns the biases (heads * size,) of a projection; None without biases."""
        bias = call.parameters.get(f"{name}_bias")
        return None if bias is None else self.load(bias, call).reshape(-1)

    def with_bias(self, y: Array, name: str, call: LayerCall) -> Array:
        bias = self.bias(name, call)
        return y if bias is None else self.keep(y + bias, "features", call)

    def split(self, y: Array, heads: int, call: LayerCall) -> Array:
        """Splits a projection into heads: (B, L, heads * size) -> (B, heads, L, size)."""
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.D)

    def scores(self, query: Array, key: Array, call: LayerCall) -> Array:
        scaled = self.keep(query * call.work(self.factor(call)), "features", call)
        return self.keep(scaled @ key.swapaxes(-1, -2), "scores", call)

    def apply_gate(self, attended: Array, call: LayerCall) -> Array:
        if "gate_kernel" not in call.parameters:
            return attended
        return self.keep(attended * self.gate(call), "features", call)

    def gate(self, call: LayerCall) -> Array:
        """Returns the gates (B, H, Lq, Dv)."""
        logits = self.projected(self.load(call.query, call), "gate", call)
        return self.keep(self.sigmoid(logits), "features", call)

    def sigmoid(self, y: Array) -> Array:
        return 1 / (1 + np.exp(-y))

    def output(self, merged: Array, call: LayerCall) -> Array:
        if "output_kernel" not in call.parameters:
            return merged
        kernel = self.kernel("output", call)
        y = self.keep(merged @ kernel.reshape(-1, kernel.shape[-1]), "features", call)
        return self.with_bias(y, "output", call)

    def returned_weights(self, weights: Array, call: LayerCall) -> Array:
        return weights.mean(1) if call.returned == "average" else weights

    def deliver(self, out: Array, call: LayerCall) -> Any:
        """Returns the output or the weights, rounded. Weights of a one-head layer lose the axis of
        heads."""
        one_head = out.ndim == 4 and "output_kernel" not in call.parameters
        return super().deliver(out[:, 0] if one_head else out, call)


class LayerEager(MultiHeadKernel):
    """Every matrix product, sum and softmax is rounded to the case's dtype."""

    numerics = "eager"
    stores = ("features", "scores", "weights")

    def returned_weights(self, weights: Array, call: LayerCall) -> Array:
        if call.returned != "average":
            return weights
        return self.keep(weights.sum(1), "weights", call) / call.work(weights.shape[1])


class LayerHolding(MultiHeadKernel):
    """Multi-head attention as an object: its parameters are no arguments of its calls."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)
        own_arrays = {name: call.arguments.pop(name) for name in inputs.parameters}
        copies = {n: Rounded(array.values.copy(), array.fmt) for n, array in own_arrays.items()}

        def function(**arguments: Any) -> Any:
            return call.function(**arguments, **self.used_parameters(own_arrays, copies))

        return replace(call, function=function, layer_parameters=tuple(own_arrays.values()))

    def used_parameters(
        self, own_arrays: Mapping[str, Rounded], copies: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        """Returns the parameters that a call uses: the layer's own arrays, which callers may change, not
        the `copies` made when the layer was created."""
        return own_arrays

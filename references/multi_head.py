"""Multi-head attention: concat_h attention(X_q W_h^Q + b, X_k W_h^K + b, X_v W_h^V + b) W^O + b.

query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev). Kernels query (Eq, H, D), key (Ek, Hkv, D),
value (Ev, Hkv, Dv), output (H, Dv, Eo); biases (H, D), (Hkv, D), (Hkv, Dv), (Eo,) or absent; no
output kernel: the heads are concatenated. Scores are scaled by 1 / sqrt(D); query head h uses
key/value head h // (H / Hkv); an additive bias and the mask broadcast to (B, H, Lq, Lk). A row without
keys is handed to the output projection as it is elected. Where there are gains of query and key, (D,),
the projected queries and keys of every head are normalised: (x - mean) / sqrt(variance + epsilon) gain.

The bounds are those of `references.projections`, `references.norms`, `references.scores`,
`references.softmax` and `references.derivatives`, one after the other. Libraries scale the query and
store it before the product. Each step of the norms may be stored in the case's dtype, whatever the class:
a class says how a softmax is computed.

Sources: Vaswani et al. 2017, section 3.2; Ainslie et al. 2023 (grouped queries); Dehghani et al. 2023,
section 2 (normalised queries and keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from references.derivatives import Attention, Pairs
from references.norms import Norm, known
from references.outputs import Outputs, layer_outputs, moving, wide
from references.projections import (
    bias_gradient,
    from_one_tensor,
    input_gradient,
    kernel_gradient,
    linear,
    linear_tangent,
)
from references.rounding import Bounded, Roundoffs, narrowed, stored, together
from references.scores import ScaledScores, scaled_scores
from references.softmax import Attended, attend
from suite.spec.inputs import Inputs
from suite.spec.operator import UNLEARNED
from suite.spec.vocabulary import OPERANDS


class HeadNorm:
    """A layer norm, without an offset, of every head's rows (B, heads, L, D)."""

    def __init__(self, x: Bounded, gain: np.ndarray, epsilon: float, u: Roundoffs) -> None:
        self.shape = x.shape
        steps = replace(u, step=max(u.step, u.output))
        self.norm = Norm(self._rows(x), gain, None, (2,), None, epsilon, steps)

    def _rows(self, x: Bounded) -> Bounded:
        return x.reshape(len(x.value), -1, self.shape[-1])

    @property
    def output(self) -> Bounded:
        return self.norm.output.reshape(*self.shape)

    def gradients(self, dy: Bounded) -> tuple[Bounded, Bounded]:
        """Those of the rows and of the gain."""
        arrays = self.norm.gradients(self._rows(dy))
        return arrays["query"].reshape(*self.shape), arrays["gain"]

    def tangent(self, x: Bounded | None, gain: np.ndarray | None) -> Bounded | None:
        """How the output moves as the rows and the gain do."""
        rows = None if x is None else self._rows(x)
        moved = None if gain is None else narrowed(gain, self.norm.u)
        total = self.norm.tangent(rows, moved)
        return None if total is None else total.reshape(*self.shape)


class Layer:
    """The arrays of a layer and its projections, (B, heads, L, size) each. `x` (B, L, E) stands for
    query, key and value where these are no inputs of its own."""

    def __init__(self, inputs: Inputs, u: Roundoffs, x: Bounded | None = None) -> None:
        self.inputs, self.u, self.sizes = inputs, u, inputs.sizes
        self.group = inputs.sizes.group
        self.arrays = wide(inputs)
        self.x = {n: narrowed(self.arrays[n], u) if x is None else x for n in OPERANDS}
        self.norms: dict[str, HeadNorm] = {}
        self.projected = {n: self._projected(n) for n in OPERANDS}
        depth = self.projected["query"].value.dtype.type(self.sizes.D)
        self.scale = 1.0 / np.sqrt(depth)

    def _projected(self, name: str) -> Bounded:
        """The heads (B, heads, L, size) of query, key or value, normalised where there is a gain."""
        bias, gain = (self.arrays.get(f"{name}_{what}") for what in ("bias", "gain"))
        heads = linear(self.x[name], self.kernel(name), bias, self.u).moved(2, 1)
        if gain is None:
            return heads
        self.norms[name] = HeadNorm(heads, gain, self.inputs.epsilon, self.u)
        return self.norms[name].output

    def kernel(self, name: str) -> np.ndarray:
        return self.arrays[f"{name}_kernel"]

    @property
    def mixing(self) -> np.ndarray | None:
        """The kernel of the output, (H Dv, Eo)."""
        kernel = self.arrays.get("output_kernel")
        return None if kernel is None else kernel.reshape(-1, kernel.shape[-1])

    def by_query_head(self, x: Bounded) -> Bounded:
        """Keys or values (B, Hkv, Lk, .) repeated for the query heads of a group."""
        return x.repeated(self.group, 1)

    def joined(self, heads: Bounded) -> Bounded:
        """Heads (B, H, Lq, Dv) side by side, (B, Lq, H Dv)."""
        B, _, Lq, _ = heads.shape
        return heads.moved(1, 2).reshape(B, Lq, self.sizes.H * self.sizes.Dv)

    def forward(self, empty_rows: str) -> tuple[Bounded, Attended]:
        """The output (B, Lq, Eo), and what its heads attend to."""
        u = self.u
        q, k, v = (self.projected[name] for name in OPERANDS)
        k, v = self.by_query_head(k), self.by_query_head(v)
        allowed, bias = self.inputs.dense_mask, self.arrays.get("bias")
        scores = scaled_scores(q, k, self.scale, u)
        if bias is not None:
            hides = np.isneginf(bias)
            if hides.any():
                allowed = ~hides if allowed is None else allowed & ~hides
            finite = np.broadcast_to(np.where(hides, 0.0, bias), scores.shape)
            scores = stored(scores + Bounded.exact(finite), u.score)
        attended = attend(scores, v, allowed, u, empty_rows)
        output = self.joined(attended.output)
        if self.mixing is not None:
            output = linear(output, self.mixing, self.arrays.get("output_bias"), u)
        return output, attended


def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """Output (B, Lq, Eo) and weights, where they are asked for, with their bounds.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    layer = Layer(inputs, rounding)
    with np.errstate(all="ignore"):
        output, attended = layer.forward(empty_rows)
    output, weights = known(output), known(attended.weights)
    return layer_outputs(inputs, output, weights, attended.keys, rounding)


class Chain(Layer):
    """The scores and the attention behind the projections, as derivatives have them."""

    def __init__(
        self, inputs: Inputs, u: Roundoffs, empty_rows: str, x: Bounded | None = None
    ) -> None:
        super().__init__(inputs, u, x)
        s = self.sizes
        shape = (s.B, s.H, s.Lq, s.Lk)
        self.pairs = Pairs(shape, inputs.dense_mask, self.arrays.get("bias"), empty_rows)
        q, k, v = (self.projected[name] for name in OPERANDS)
        self.scores = ScaledScores(
            q, self.by_query_head(k), self.scale, self.pairs, u, group=self.group, scaled_query=True
        )
        self.attention = Attention(
            self.scores.scores, self.by_query_head(v), self.pairs, u, group=self.group
        )

    @property
    def heads(self) -> Bounded:
        """What the output projection takes, (B, Lq, H Dv)."""
        average = self.attention.average(self.by_query_head(self.projected["value"]))
        return self.joined(stored(average, self.u.output, self.u.floor))

    def gradients(self, dy: Bounded) -> dict[str, Bounded]:
        """Those of every array, for dy (B, Lq, Eo); see `vjp`."""
        u, s, inputs, attention = self.u, self.sizes, self.inputs, self.attention
        arrays: dict[str, Bounded] = {}
        flat = dy
        if self.mixing is not None:
            flat = input_gradient(dy, self.mixing, u)
            kernel = self.kernel("output")
            arrays["output_kernel"] = kernel_gradient(self.heads, dy, u).reshape(*kernel.shape)
        if "output_bias" in self.arrays:
            arrays["output_bias"] = bias_gradient(dy, u, "output_bias")
        dO = flat.reshape(s.B, s.Lq, s.H, s.Dv).moved(2, 1)
        dS = attention.score_gradient(dO)
        dQ, dK = self.scores.gradients(dS)
        if inputs.bias is not None:
            arrays["bias"] = attention.bias_gradient(dS, inputs.bias.shape)
        projected = {"query": dQ, "key": dK, "value": attention.value_gradient(dO)}
        for name, norm in self.norms.items():
            projected[name], arrays[f"{name}_gain"] = norm.gradients(projected[name])
        joined = {n: d.moved(1, 2).reshape(s.B, d.shape[2], -1) for n, d in projected.items()}
        for name, d in joined.items():
            kernel = self.kernel(name)
            arrays[name] = input_gradient(d, kernel, u)
            arrays[f"{name}_kernel"] = kernel_gradient(self.x[name], d, u).reshape(*kernel.shape)
            if f"{name}_bias" in self.arrays:
                db = bias_gradient(d, u, f"{name}_bias")
                arrays[f"{name}_bias"] = db.reshape(*kernel.shape[1:])
        if inputs.self_attention:
            received = [arrays.pop(name) for name in OPERANDS]
            kernels = [self.kernel(name) for name in OPERANDS]
            arrays["query"] = from_one_tensor(received, list(joined.values()), kernels, u)
        return arrays

    def tangent(self, operands: Mapping[str, Bounded], moved: Mapping[str, np.ndarray]) -> Bounded:
        """How the output moves, (B, Lq, Eo), as `operands` do (query, key, value, bias), and the
        parameters that are among `moved`."""
        u = self.u

        def projected(name: str) -> Bounded | None:
            tangent = linear_tangent(
                self.x[name], self.kernel(name), operands.get(name),
                moved.get(f"{name}_kernel"), moved.get(f"{name}_bias"), u,
            )  # fmt: skip
            heads = None if tangent is None else tangent.moved(2, 1)
            if name not in self.norms:
                return heads
            return self.norms[name].tangent(heads, moved.get(f"{name}_gain"))

        query, key, value = (projected(name) for name in OPERANDS)
        key, value = (None if x is None else self.by_query_head(x) for x in (key, value))
        scores = self.scores.tangent(query, key)
        bias = self.pairs.moving_bias(operands.get("bias"))
        heads = self.attention.tangent(together([scores, bias], u.score, u.score_floor), value)
        output = self.joined(heads)
        if self.mixing is not None:
            kernel = moved.get("output_kernel")
            flat = None if kernel is None else kernel.reshape(self.mixing.shape)
            total = linear_tangent(
                self.heads, self.mixing, output, flat, moved.get("output_bias"), u
            )
            assert total is not None
            output = total
        return output


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, key, value, every parameter, and the bias where there is one, in their
    shapes; where query, key and value are one tensor, that of "query" is what it receives as all three.

    cotangent (B, Lq, Eo). `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises
    ValueError for another one, and NoExtendedPrecision.
    """
    chain = Chain(inputs, rounding, empty_rows)
    dy = narrowed(wide(inputs, {"cotangent": cotangent})["cotangent"], rounding)
    arrays = {name: known(x) for name, x in chain.gradients(dy).items()}
    return Outputs(arrays, chain.pairs.keys)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, Lq, Eo), as arrays move along `tangents`, which have their shapes: any of
    query (all three, where they are one tensor), key, value, bias and the parameters.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    chain = Chain(inputs, rounding, empty_rows)
    moved = moving(inputs, tangents)
    operands = {name: narrowed(x, rounding) for name, x in moved.items() if name in UNLEARNED}
    return Outputs({"output": known(chain.tangent(operands, moved))}, chain.pairs.keys)

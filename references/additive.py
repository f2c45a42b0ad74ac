"""Additive attention: scores w . tanh(W_q q + W_k k), no biases; output softmax(scores) value.

query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev); query_kernel (Eq, U) and key_kernel (Ek, U),
both absent where queries and keys are added as they are (Eq = Ek = U); score_vector (U,), absent
for ones. Bounds: `references.projections`, `references.tanh_scores`, then the softmax.

Source: Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import one_head
from references.one_head import headed, headless
from references.outputs import Outputs, moving, wide
from references.projections import input_gradient, kernel_gradient, linear, linear_tangent
from references.rounding import Bounded, Roundoffs, narrowed
from references.tanh_scores import TanhScores
from suite.spec.inputs import Inputs


class _Layer:
    """The arrays of a layer, its projections and its scores."""

    def __init__(self, inputs: Inputs, u: Roundoffs) -> None:
        self.arrays, self.u = wide(inputs), u
        self.x = {name: narrowed(self.arrays[name], u) for name in ("query", "key")}
        projected = {n: self._projected(n) for n in self.x}
        self.scores = TanhScores(
            projected["query"], projected["key"], self.arrays.get("score_vector"), u
        )

    def kernel(self, name: str) -> np.ndarray | None:
        return self.arrays.get(f"{name}_kernel")

    def _projected(self, name: str) -> Bounded:
        kernel = self.kernel(name)
        return self.x[name] if kernel is None else linear(self.x[name], kernel, None, self.u)

    def moved(self, name: str, moved: Mapping[str, np.ndarray]) -> Bounded | None:
        """The tangent of a projection."""
        x = narrowed(moved[name], self.u) if name in moved else None
        kernel = self.kernel(name)
        if kernel is None:
            return x
        return linear_tangent(self.x[name], kernel, x, moved.get(f"{name}_kernel"), None, self.u)


def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """Output (B, Lq, Ev) and weights, where they are asked for, with their bounds.

    `empty_rows` is that of `references.softmax.attend`; raises ValueError for another one, and
    NoExtendedPrecision.
    """
    layer = _Layer(inputs, rounding)
    scores = layer.scores.scores
    return one_head.attended(inputs, scores, layer.arrays["value"], rounding, empty_rows)


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, key, value and every parameter, in their shapes; cotangent (B, Lq, Ev).

    `empty_rows` as in `references.derivatives.EMPTY_ROW_GRADIENTS`. Raises ValueError for another one,
    and NoExtendedPrecision.
    """
    u, layer = rounding, _Layer(inputs, rounding)
    pairs = one_head.pairs(inputs, empty_rows)
    attention = one_head.behind(headed(layer.scores.scores), layer.arrays["value"], pairs, u)
    dO = one_head.cotangent_of(inputs, cotangent, u)
    inner = layer.scores.gradients(headless(attention.score_gradient(dO)))
    arrays = {"value": headless(attention.value_gradient(dO))}
    if "score_vector" in layer.arrays:
        arrays["score_vector"] = inner["score_vector"]
    for name in ("query", "key"):
        kernel = layer.kernel(name)
        arrays[name] = inner[name]
        if kernel is not None:
            arrays[f"{name}_kernel"] = kernel_gradient(layer.x[name], inner[name], u)
            arrays[name] = input_gradient(inner[name], kernel, u)
    projected = [(inner[n], w) for n in ("query", "key") if (w := layer.kernel(n)) is not None]
    dys, kernels = [dy for dy, _ in projected], [w for _, w in projected]
    return Outputs(one_head.of_one_tensor(inputs, arrays, u, dys, kernels), pairs.keys)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, Lq, Ev), as any of query, key, value and the parameters move along
    `tangents`.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    u, layer, moved = rounding, _Layer(inputs, rounding), moving(inputs, tangents)
    pairs = one_head.pairs(inputs, empty_rows)
    attention = one_head.behind(headed(layer.scores.scores), layer.arrays["value"], pairs, u)
    scores = layer.scores.tangent(
        layer.moved("query", moved), layer.moved("key", moved), moved.get("score_vector")
    )
    return one_head.moved(attention, scores, moved, pairs, u)

"""Attention without heads whose scores are scaled products, scores c q . k: what `references.dot` and
`references.masked` share.

query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev). With r_ij = q_i . k_j the gradient of a learned
scale is dc = sum_ij dS_ij r_ij: products element by element, each stored like a score, and their sum,
which is one over broadcast axes, or a product of matrices, stored once. Along tangents S' = c r' + c'
r, both parts and their sum stored like scores. All else is bounded in `references.scores`,
`references.softmax` and `references.derivatives`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import one_head
from references.one_head import headed, headless
from references.outputs import Outputs, moving, wide
from references.rounding import Bounded, Roundoffs, narrowed, product, stored, together
from references.scores import ScaledScores, inner, scaled_scores, times
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS


def forward(inputs: Inputs, scale: np.floating, rounding: Roundoffs, empty_rows: str) -> Outputs:
    """Output (B, Lq, Ev) and weights, where they are asked for."""
    x = wide(inputs)
    q, k = narrowed(x["query"], rounding), narrowed(x["key"], rounding)
    scores = scaled_scores(q, k, scale, rounding)
    return one_head.attended(inputs, scores, x["value"], rounding, empty_rows)


class _ProductsChain:
    """The scores and the attention behind them, as derivatives have them."""

    def __init__(self, inputs: Inputs, scale: np.floating, u: Roundoffs, empty_rows: str) -> None:
        x, self.u = wide(inputs), u
        self.q, self.k = narrowed(x["query"], u), narrowed(x["key"], u)
        self.pairs = one_head.pairs(inputs, empty_rows)
        self.scores = ScaledScores(headed(self.q), headed(self.k), scale, self.pairs, u)
        self.attention = one_head.behind(self.scores.scores, x["value"], self.pairs, u)

    @property
    def products(self) -> Bounded:
        """r = q k^T, (B, 1, Lq, Lk), stored."""
        products = product(self.q, self.k.swapped, self.q.shape[-1], self.u)
        return headed(stored(products, self.u.score, self.u.score_floor))


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, scale: np.floating, rounding: Roundoffs, empty_rows: str
) -> Outputs:
    """The gradients of query, key, value, and scale where it is learned."""
    chain = _ProductsChain(inputs, scale, rounding, empty_rows)
    dO = one_head.cotangent_of(inputs, cotangent, rounding)
    dS = chain.attention.score_gradient(dO)
    query, key = chain.scores.gradients(dS)
    value = chain.attention.value_gradient(dO)
    arrays = {"query": headless(query), "key": headless(key), "value": headless(value)}
    if "scale" in inputs.arrays:
        arrays["scale"] = inner(dS, chain.products, 0, rounding)
    return Outputs(one_head.of_one_tensor(inputs, arrays, rounding), chain.pairs.keys)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs, tangents: Mapping[str, np.ndarray], scale: np.floating, rounding: Roundoffs,
    empty_rows: str,
) -> Outputs:  # fmt: skip
    """How the output moves, (B, Lq, Ev), as any of query, key, value and a learned scale move."""
    u, chain = rounding, _ProductsChain(inputs, scale, rounding, empty_rows)
    moved = moving(inputs, tangents)
    query, key, value = (headed(narrowed(moved[n], u)) if n in moved else None for n in OPERANDS)
    scores = chain.scores.tangent(query, key)
    if "scale" in moved:
        by_scale = chain.pairs.attended(times(chain.products, moved["scale"], u))
        scores = together([scores, by_scale], u.score, u.score_floor)
    output = chain.attention.tangent(scores, value)
    return Outputs({"output": headless(output)}, chain.pairs.keys)

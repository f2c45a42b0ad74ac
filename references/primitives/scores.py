"""Scores of queries and keys, T = scale Q K^T.

    dQ = scale dT K,   dK = scale dT^T Q          dK summed over the query heads of a group
    dscale = sum_ij dT_ij r_ij,   r = Q K^T
    T' = scale (Q' K^T + Q K'^T) + scale' r

Bounds, in the notation of `references.rounding`; delta bounds an error:

    T        gamma_{D+2}(u_acc) |scale| sum_i |Q_i K_i|, and in a backward pass three stores like scores:
             the product, the scaling, and the scale itself, which weakly typed frameworks round to the
             dtype. Two stores in a forward pass. Multi-head layers scale the query and store it before
             the product: this adds u_o of |scale| sum_i |Q_i K_i|, to dQ and to every query in dK, too.
    dT       Times the scale, stored like a score, and narrowed before the products.
    dQ       sum_j delta dT |K| + gamma_{n+2}(u_acc) sum_j |dT K|, stored once (u_o). If running sums
             are stored after every block of keys, every store adds u_o sum_j |dT K|.
    dK       As dQ, over the rows. With grouped heads, the part of every query head and their sum are
             stored, or one sum takes all rows of all heads. If running sums are stored in the case's
             dtype after every block of rows (head after head of a group), every store adds u_o times
             the running sum, which is at most sum_i |dT Q|.
    dscale   Elementwise products, each stored like a score, and their sum, which is over broadcast axes
             or a matrix product, stored once.
    T'       Each product, each step and each sum of parts stored like a score.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    gamma,
    magnitude,
    matrix_product,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Node
from attention_conformance.suite.spec.inputs import Inputs


def has_exact_scores(inputs: Inputs) -> bool:
    """Returns True if the recipe draws scores that no store rounds, in formats that hold them
    (`ExactScores`)."""
    return inputs.case.recipe == "level"


class ExactScores(Node):
    """Scores (B, H, Lq, Lk) that no store rounds, because they are numbers of the formats in which they
    may be stored. The accumulator rounds, and the log-sum-exps of parts of the keys may round.

    `query` and `key` (B, H or Hkv, L, .) are the exact operands. Let all q_i be multiples of a, and all
    k_ji of b, powers of two like the scale. Then every product and every sum of products is a multiple of
    a b, and a number of the format with unit roundoff u if sum_i |q_i k_ji| <= a b / u. Otherwise the
    bound is that of `scores`.
    """

    def __init__(self, scores: Node, query: np.ndarray, key: np.ndarray, scale: float) -> None:
        super().__init__(scores.u, scores)
        self.scores, self.scale = scores, abs(scale)
        self.operand_sizes = [
            magnitude(x) for x in (query, np.repeat(key, query.shape[1] // key.shape[1], 1))
        ]

    @cached_property
    def output(self) -> Bounded:
        scores, u = self.scores.output, self.u
        query, key = self.operand_sizes
        products, coarsest = query @ key.swapaxes(-1, -2), max(u.score, u.weight, u.output)
        units = [common_power_of_two(x) for x in self.operand_sizes]
        terms = (
            products.max(initial=0),
            query.max(initial=0) * units[1],
            key.max(initial=0) * units[0],
        )
        if max(terms) * coarsest > units[0] * units[1] or math.frexp(self.scale)[0] != 0.5:
            return scores
        error = gamma(query.shape[-1] + 2, u.accumulate) * self.scale * products
        return Bounded(scores.value, error)

    @property
    def recomputed(self) -> Bounded:
        return self.scores.recomputed

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (cotangent,)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        return tangents[0]


def common_power_of_two(x: np.ndarray) -> float:
    """Returns the largest power of two that divides all numbers of an array; infinity for zeros."""
    fractions, exponents = np.frexp(x[x != 0])
    integers = np.ldexp(fractions, 53).astype(np.int64)
    return float(np.ldexp((integers & -integers).astype(float), exponents - 53).min(initial=np.inf))


class Scores(Node):
    """T (B, H, Lq, Lk) for query (B, H, Lq, D) and key (B, Hkv, Lk, D).

    - `learned`: the scale if it is an array, ().
    - `scaled_query`: the query is scaled and stored before the product, in outputs and derivatives.
    """

    def __init__(
        self, u: Roundoffs, query: Node, key: Node, scale: float | np.floating, pairs: Pairs,
        *, scaled_query: bool = False, learned: Node | None = None,
    ) -> None:  # fmt: skip
        super().__init__(u, query, key, learned)
        self.pairs, self.scale, self.scaled_query, self.learned = (
            pairs,
            scale,
            scaled_query,
            learned,
        )
        self.query, self.key, self.factor = query, key, abs(float(scale))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pairs.shape

    @cached_property
    def attended_keys(self) -> Bounded:
        """The keys (B, H, Lk, D), zero if no row attends them."""
        return self.pairs.without_unattended(self.key.output)

    def as_operand(self, query: Bounded) -> Bounded:
        """Returns a query (B, H, Lq, D), or its tangent, as operand of the product: stored in the case's
        dtype if `scaled_query`."""
        return stored(query, self.u.results) if self.scaled_query else query

    @cached_property
    def product_query(self) -> Bounded:
        """The query (B, H, Lq, D) that the product takes."""
        return self.as_operand(self.query.output)

    @cached_property
    def output(self) -> Bounded:
        u, query = self.u, self.product_query
        key = self.pairs.without_hidden_nan(self.key.output)
        exact, depth = query @ key.mT, query.shape[-1]
        products = self.factor * (query.magnitude @ key.mT.magnitude)
        error = self.factor * exact.error + gamma(depth + 2, u.accumulate) * products
        error += depth * u.product_underflow
        return stored(Bounded(exact.value * self.scale, error), Store(2 * u.score))

    @cached_property
    def recomputed(self) -> Bounded:
        """The scaled scores (B, H, Lq, Lk) as a backward pass computes them again from the stored
        operands. Scaling the query, the product or both, and the store of a score, are three
        roundings."""
        u, query = self.u, self.product_query
        scaled = matrix_product(query, self.attended_keys.mT, query.shape[-1], u) * self.scale
        return stored(scaled, Store(3 * u.score))

    @cached_property
    def products(self) -> Bounded:
        """r = Q K^T, stored, (B, H, Lq, Lk)."""
        query = self.query.output
        products = matrix_product(query, self.attended_keys.mT, query.shape[-1], self.u)
        return stored(products, self.u.scores)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dQ (B, H, Lq, D), dK (B, Hkv, Lk, D) and dscale, ()."""
        u, dT = self.u, self._scaled(cotangent)
        dQ = self.query_gradient(dT)
        if u.gradient_blocks is not None:
            stores = -(-dT.shape[-1] // u.gradient_blocks[1])
            running_sum_error = stores * (
                u.output * (dT.magnitude @ self.attended_keys.magnitude) + u.floor
            )
            dQ = Bounded(dQ.value, dQ.error + running_sum_error)
        dQ = stored(dQ, u.results)
        if self.scaled_query:
            dQ = stored(dQ, u.results)
        dK = key_or_value_gradient(
            dT, self.product_query, self.pairs.rows_of_keys, self.key.shape[1], u
        )
        is_learned = self.learned is not None
        return dQ, dK, sum_of_products(cotangent, self.products, 0, u) if is_learned else None

    def query_gradient(self, dT: Bounded) -> Bounded:
        """Returns dT K (B, H, Lq, D) before the store, for the cotangent dT of the scaled scores."""
        return matrix_product(dT, self.attended_keys, self.pairs.allowed.sum(-1)[..., None], self.u)

    def _scaled(self, dT: Bounded) -> Bounded:
        """Returns dT times the scale, stored as operand of the products with queries and keys."""
        u = self.u
        dT = stored(dT * self.scale, Store(2 * u.score + 2 * u.accumulate, u.score_floor))
        # Implementations narrow dT before or after the scaling.
        dT = stored(dT, Store(u.weight, u.weight_underflow * max(self.factor, 1.0)))
        return self.pairs.without_hidden(dT)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, (query, key, scale) = self.u, tangents
        parts = [
            None if query is None else self._product(query, self.attended_keys),
            None if key is None else self._product(self.query.output, self.pairs.by_head(key)),
        ]
        total = sum_of_present(parts, u.scaled_scores)
        by_scale = None if scale is None else stored_product(self.products, scale, u)
        return sum_of_present([total, by_scale], u.scores)

    def _product(self, query: Bounded, key: Bounded) -> Bounded:
        """Returns scale Q K^T, stored. One of both operands is a tangent."""
        u, query = self.u, self.as_operand(query)
        products = matrix_product(query, key.mT, query.shape[-1], u) * self.scale
        return stored(products, Store(2 * u.score + 2 * u.accumulate, 2 * u.score_floor))


def key_or_value_gradient(
    a: Bounded, b: Bounded, summands: np.ndarray, heads: int, u: Roundoffs
) -> Bounded:
    """Returns a gradient of keys or values (B, Hkv, Lk, .), for Hkv = `heads`: a^T b, summed over the
    query heads of each group.

    a is (B, H, Lq, Lk), and b (B, H, Lq, .). `summands` (B, H, Lk, 1): number of nonzero rows of a per
    key.
    """
    a_mT, blocks = a.mT, u.gradient_blocks
    B, H, rows, _ = a.shape
    group = H // max(heads, 1)
    total = stored(matrix_product(a_mT, b, summands, u), u.results)
    if group == 1 and blocks is None:
        return total
    by_query_head = total.reshape(B, heads, group, *total.shape[2:])
    all_rows_size = (a_mT.magnitude @ b.magnitude).reshape(*by_query_head.shape).sum(2)
    if group > 1:
        group_sum = sum_over_axes(by_query_head, (2,), u)[:, :, 0]
        error = group_sum.error + gamma(group * rows, u.accumulate) * all_rows_size
        total = stored(Bounded(group_sum.value, error), u.results)
    if blocks is not None:
        stores = group * -(-rows // blocks[0])
        total = Bounded(total.value, total.error + stores * (u.output * all_rows_size + u.floor))
    return total


def stored_product(x: Bounded, factor: Bounded, u: Roundoffs) -> Bounded:
    """Returns x times `factor`, elementwise, stored like a score."""
    return stored(x * factor, Store(u.score + u.accumulate, u.floor))


def sum_of_products(a: Bounded, b: Bounded, trailing_axes: int, u: Roundoffs) -> Bounded:
    """Returns the sum of a b over all axes but the last `trailing_axes`. Each product is stored. The
    shapes broadcast."""
    products = stored(a * b, u.scaled_scores)
    axes = tuple(range(products.value.ndim - trailing_axes))
    total = stored(sum_over_axes(products, axes, u), u.results)
    return Bounded(total.value.squeeze(axes), total.error.squeeze(axes))

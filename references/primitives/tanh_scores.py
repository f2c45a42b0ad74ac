"""Scores c sum_u w_u tanh(a (Q_iu + K_ju)) of additive and concat attention.

With x_iju = Q_iu + K_ju, h = tanh(a x), r_ij = sum_u w_u h_iju and S = c r:

    dr = c dS,   dc = sum_ij dS_ij r_ij,   dw_u = sum_ij dr_ij h_iju
    dy_iju = dr_ij w_u (1 - h_iju^2),   da = sum_iju dy_iju x_iju
    dx = a dy,   dQ_iu = sum_j dx_iju,   dK_ju = sum_i dx_iju
    y' = a (Q' + K') + a' x,   h' = (1 - h^2) y',   r' = sum_u (w_u h'_u + w'_u h_u),   S' = c r' + c' r

Bounds, in the notation of `references.rounding`:

    x, a x       Stored in the case's dtype (u_o).
    h            The derivative of tanh is at most 1. tanh has an error of 4 u_acc, and is stored like a
                 score (u_s).
    r, S         gamma_U(u_acc) sum_u |w h|, products and sum stored like scores.
    dr, dx       Products with a number, stored like a score.
    dy, h'       The slope from the stored h with error e: `references.primitives.cap.times_slope`.
    dQ, dK       Sums over a broadcast axis, stored once.
    dc, da, dw   Elementwise products, each stored like a score, and their sum, which is over broadcast
                 axes or a matrix product, stored once.
    y', r', S'   As x, r and S. A sum of two parts is stored, too.

Sources: Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2 (c = a = 1); Luong, Pham, Manning, EMNLP 2015,
as Keras reads concat (w of ones).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.cap import times_slope
from attention_conformance.references.primitives.scores import stored_product, sum_of_products
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    gamma,
    magnitude,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Node


class TanhScores(Node):
    """S (B, Lq, Lk) for queries Q (B, Lq, U) and keys K (B, Lk, U).

    `vector` w (U,), `scale` a () and `weight` c () are ones if None.
    """

    def __init__(
        self, u: Roundoffs, query: Node, key: Node, vector: Node | None = None,
        scale: Node | None = None, weight: Node | None = None,
    ) -> None:  # fmt: skip
        super().__init__(u, query, key, vector, scale, weight)
        self.query, self.key, self.vector = query, key, vector
        self.scale, self.weight = scale, weight

    @cached_property
    def score_vector(self) -> Bounded:
        """w (U,), ones if `vector` is None."""
        if self.vector is not None:
            return self.vector.output
        q = self.query.output
        return Bounded.exact(np.ones(q.shape[-1], q.value.dtype))

    @cached_property
    def pair_sums(self) -> Bounded:
        """x = Q + K for all pairs, stored, (B, Lq, Lk, U)."""
        return stored(
            self.query.output[:, :, None] + self.key.output[:, None], Store(self.u.output)
        )

    @cached_property
    def tanh(self) -> Bounded:
        """h = tanh(a x), stored, (B, Lq, Lk, U)."""
        u, y = self.u, self.pair_sums
        if self.scale is not None:
            y = stored(y * self.scale.output, Store(u.output))
        h = np.tanh(y.value)
        error = np.minimum(y.error, 2.0) + 4 * u.accumulate * magnitude(h)
        return stored(Bounded(h, error), Store(u.score))

    @cached_property
    def weighted_sums(self) -> Bounded:
        """r = sum_u w_u h_u, stored, (B, Lq, Lk)."""
        return self._weighted_sum(self.tanh, self.score_vector)

    @cached_property
    def output(self) -> Bounded:
        """S = c r, stored, (B, Lq, Lk)."""
        if self.weight is None:
            return self.weighted_sums
        return stored(self.weighted_sums * self.weight.output, Store(self.u.score))

    def _weighted_sum(self, x: Bounded, vector: Bounded) -> Bounded:
        """Returns sum_u vector_u x_u over the last axis, products and sum stored like scores."""
        u, n, exact = self.u, vector.shape[0], x @ vector
        rounding = (gamma(n, u.accumulate) + u.score) * (x.magnitude @ vector.magnitude)
        error = exact.error + rounding + n * u.product_underflow
        return stored(Bounded(exact.value, error), Store(u.score))

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dQ, dK, dw, da and dc; None for an absent w, a or c."""
        u, dS = self.u, cotangent
        dr = dS if self.weight is None else stored_product(dS, self.weight.output, u)
        dh = (
            dr[..., None]
            if self.vector is None
            else stored_product(dr[..., None], self.score_vector, u)
        )
        dy = times_slope(dh, self.tanh, u, u.score_floor)  # (B, Lq, Lk, U)
        dx = dy if self.scale is None else stored_product(dy, self.scale.output, u)
        sums = [stored(sum_over_axes(dx, (axis,), u), u.results) for axis in (2, 1)]
        return (
            sums[0][:, :, 0],
            sums[1][:, 0],
            None if self.vector is None else sum_of_products(dr[..., None], self.tanh, 1, u),
            None if self.scale is None else sum_of_products(dy, self.pair_sums, 0, u),
            None if self.weight is None else sum_of_products(dS, self.weighted_sums, 0, u),
        )

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, (query, key, vector, scale, weight) = self.u, tangents
        everywhere = self.pair_sums.shape
        parts = [
            None if query is None else query[:, :, None].broadcast_to(everywhere),
            None if key is None else key[:, None].broadcast_to(everywhere),
        ]
        dx = sum_of_present(parts, u.results)
        if dx is not None and self.scale is not None:
            dx = stored_product(dx, self.scale.output, u)
        by_scale = None if scale is None else stored_product(self.pair_sums, scale, u)
        dy = sum_of_present([dx, by_scale], u.results)
        dh = None if dy is None else times_slope(dy, self.tanh, u, u.score_floor)
        parts = [
            None if dh is None else self._weighted_sum(dh, self.score_vector),
            None if vector is None else self._weighted_sum(self.tanh, vector),
        ]
        dr = sum_of_present(parts, u.scores)
        if dr is not None and self.weight is not None:
            dr = stored_product(dr, self.weight.output, u)
        by_weight = None if weight is None else stored_product(self.weighted_sums, weight, u)
        return sum_of_present([dr, by_weight], u.scores)

"""Scores c sum_u w_u tanh(a (Q_iu + K_ju)), as additive and concat attention have them: forward, backward
and along tangents, with how far rounding can move them.

With x_iju = Q_iu + K_ju, h = tanh(a x), r_ij = sum_u w_u h_iju and S = c r:

    dr = c dS,   dc = sum_ij dS_ij r_ij,   dw_u = sum_ij dr_ij h_iju
    dy_iju = dr_ij w_u (1 - h_iju^2),   da = sum_iju dy_iju x_iju
    dx = a dy,   dQ_iu = sum_j dx_iju,   dK_ju = sum_i dx_iju
    y' = a (Q' + K') + a' x,   h' = (1 - h^2) y',   r' = sum_u (w_u h'_u + w'_u h_u),   S' = c r' + c' r

Bounds, in the notation of `references.rounding`:

    x, a x       Stored in the case's dtype (u_o).
    h            The derivative of tanh is at most 1; tanh is off by 4 u_acc, and stored like a score
                 (u_s).
    r, S         gamma_U(u_acc) sum_u |w h|, products and sum stored like scores.
    dr, dx       Products with a number, stored like a score.
    dy, h'       The slope by h as it was stored: 1 - (h + e)^2 is off by (2 |h| + |e|) |e|, and by
                 its own roundings (see `references.scores.times_slope`).
    dQ, dK       Sums over a broadcast axis, stored once.
    dc, da, dw   Products element by element, each stored like a score, and their sum, which is one
                 over broadcast axes, or a product of matrices, stored once.
    y', r', S'   As x, r and S; where two parts are added, their sum is stored, too.

Sources: Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2 (c = a = 1); Luong, Pham, Manning, EMNLP 2015,
as Keras reads concat (w of ones).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    magnitude,
    stored,
    summed,
    together,
)
from references.scores import inner, times, times_slope


class TanhScores:
    """Scores of queries Q (B, Lq, U) and keys K (B, Lk, U), with a vector w (U,), None for ones, a
    `scale` a and a `weight` c."""

    def __init__(
        self, q: Bounded, k: Bounded, vector: np.ndarray | None, u: Roundoffs,
        scale: float | np.floating = 1.0, weight: float | np.floating = 1.0,
    ) -> None:  # fmt: skip
        self.q, self.k, self.u = q, k, u
        self.scale, self.weight = scale, weight
        self.ones = vector is None
        self.vector = np.ones(q.shape[-1], q.value.dtype) if vector is None else vector

    @cached_property
    def pairs(self) -> Bounded:
        """x, (B, Lq, Lk, U)."""
        return stored(self.q[:, :, None] + self.k[:, None], self.u.output)

    @cached_property
    def hidden(self) -> Bounded:
        """h, (B, Lq, Lk, U)."""
        u, y = self.u, self.pairs
        if self.scale != 1.0:
            y = stored(y * self.scale, u.output)
        h = np.tanh(y.value)
        error = np.minimum(y.error, 2.0) + 4 * u.accumulate * magnitude(h)
        return stored(Bounded(h, error), u.score)

    @cached_property
    def sums(self) -> Bounded:
        """r, (B, Lq, Lk)."""
        return self._weighted(self.hidden, self.vector)

    @cached_property
    def scores(self) -> Bounded:
        """S, (B, Lq, Lk)."""
        if self.weight == 1.0:
            return self.sums
        return stored(self.sums * self.weight, self.u.score)

    def _weighted(self, x: Bounded, vector: np.ndarray) -> Bounded:
        """sum_u vector_u x_u over the last axis, products and sum stored like scores."""
        u, n, size = self.u, len(vector), magnitude(vector)
        rounding = (gamma(n, u.accumulate) + u.score) * (x.size @ size) + n * u.product_underflow
        return stored(Bounded(x.value @ vector, x.error @ size + rounding), u.score)

    def gradients(self, dS: Bounded) -> dict[str, Bounded]:
        """Of Q and K as "query" and "key", and of every parameter there may be; dS (B, Lq, Lk)."""
        u = self.u
        dr = dS if self.weight == 1.0 else times(dS, self.weight, u)
        dh = dr[..., None] if self.ones else times(dr[..., None], self.vector, u)
        dy = times_slope(dh, self.hidden, u, u.score_floor)  # (B, Lq, Lk, U)
        dx = dy if self.scale == 1.0 else times(dy, self.scale, u)
        arrays = {
            "score_vector": inner(dr[..., None], self.hidden, 1, u),
            "concat_weight": inner(dS, self.sums, 0, u),
            "scale": inner(dy, self.pairs, 0, u),
        }
        for name, axis in (("query", 2), ("key", 1)):
            total = stored(summed(dx, (axis,), u), u.output, u.floor)
            arrays[name] = Bounded(total.value.squeeze(axis), total.error.squeeze(axis))
        return arrays

    def tangent(
        self, query: Bounded | None, key: Bounded | None, vector: np.ndarray | None = None,
        scale: np.ndarray | None = None, weight: np.ndarray | None = None,
    ) -> Bounded | None:  # fmt: skip
        """S', (B, Lq, Lk), as Q, K and the parameters move; None is what stands still."""
        u = self.u
        parts = [
            None if query is None else query[:, :, None],
            None if key is None else key[:, None],
        ]
        dx = self._everywhere(together(parts, u.output, u.floor))
        if dx is not None and self.scale != 1.0:
            dx = times(dx, self.scale, u)
        by_scale = None if scale is None else times(self.pairs, scale, u)
        dy = together([dx, by_scale], u.output, u.floor)
        dh = None if dy is None else times_slope(dy, self.hidden, u, u.score_floor)
        dr = together(
            [
                None if dh is None else self._weighted(dh, self.vector),
                None if vector is None else self._weighted(self.hidden, vector),
            ],
            u.score, u.score_floor,
        )  # fmt: skip
        if dr is not None and self.weight != 1.0:
            dr = times(dr, self.weight, u)
        by_weight = None if weight is None else times(self.sums, weight, u)
        return together([dr, by_weight], u.score, u.score_floor)

    def _everywhere(self, x: Bounded | None) -> Bounded | None:
        if x is None:
            return None
        shape = self.pairs.shape
        return Bounded(np.broadcast_to(x.value, shape), np.broadcast_to(x.error, shape))

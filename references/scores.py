"""Scores of queries and keys, S = cap tanh(T / cap) with T = scale Q K^T, or T itself without softcap:
forward, backward and along tangents, with how far rounding can move them.

    dT = dS (1 - tanh(T / cap)^2)
    dQ = scale dT K,   dK = scale dT^T Q          dK summed over the query heads of a group
    T' = scale (Q' K^T + Q K'^T),   S' = T' (1 - tanh(T / cap)^2)

Bounds, in the notation of `references.rounding`; delta is a bound on an error:

    T        gamma_{D+2}(u_acc) |scale| sum_i |Q_i K_i|, and three stores like scores in a backward pass:
             the product, the scaling, and the scale itself, which weakly typed frameworks round to the
             dtype; two in a forward pass. Libraries of layers scale the query and store it before the
             product: u_o more of |scale| sum_i |Q_i K_i|, on dQ, and on every query that dK sums.
    S        delta T by the slope of the cap, at most 1, plus 4 u_acc + u_s of |S|.
    dT       dS with scale and the slope, each stored like a score.
    dQ       sum_j delta dT |K| + gamma_{n+2}(u_acc) sum_j |dT K|, stored once (u_o). Where running sums
             are stored after every block of keys, every store adds u_o sum_j |dT K|.
    dK       likewise over the rows; see `references.derivatives` for grouped heads and blocks of rows.
    T'       each product and each step stored like a score.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.derivatives import Pairs, by_keys
from references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    magnitude,
    product,
    stored,
    summed,
    together,
)


def scaled_scores(
    query: Bounded, key: Bounded, scale: float | np.floating, u: Roundoffs
) -> Bounded:
    """scale query key^T of a layer, forward. query (..., Lq, D), key (..., Lk, D) -> (..., Lq, Lk).

    The query is scaled and stored before the product; scaling the scores rounds less.
    """
    query = stored(query, u.output)
    exact = query @ key.swapped
    factor, depth = abs(float(scale)), query.shape[-1]
    products = factor * (query.size @ key.swapped.size)
    error = factor * exact.error + gamma(depth + 2, u.accumulate) * products
    error += depth * u.product_underflow
    return stored(Bounded(exact.value * scale, error), 2 * u.score)


class ScaledScores:
    """S with its derivatives. query (B, H, Lq, D); key (B, H, Lk, D) with the heads of a group repeated
    (`group` times). `scaled_query`: the query is scaled and stored before the product."""

    def __init__(
        self, query: Bounded, key: Bounded, scale: float | np.floating, pairs: Pairs, u: Roundoffs,
        *, softcap: float | None = None, group: int = 1, scaled_query: bool = False,
    ) -> None:  # fmt: skip
        self.query, self.key, self.pairs, self.u = query, pairs.seen(key), pairs, u
        self.scale, self.softcap, self.group = scale, softcap, group
        self.factor, self.scaled_query = abs(float(scale)), scaled_query

    @cached_property
    def _capped(self) -> tuple[Bounded, np.ndarray]:
        """S, and tanh(T / cap), zeros without softcap."""
        u, query, key = self.u, self.query, self.key
        if self.scaled_query:
            query = stored(query, u.output)
        products = product(query, key.swapped, query.shape[-1], u)
        value = products.value * self.scale
        error = self.factor * products.error + 3 * u.score * magnitude(value)
        if self.softcap is None:
            return Bounded(value, error), np.zeros(value.shape)
        bend = np.tanh(value / self.softcap)
        slope = 1 - np.square(magnitude(bend))
        # tanh is flatter than its tangent at 0, and steeper elsewhere by 2 error / cap at most.
        slope = np.minimum(slope + 2 * error / self.softcap, 1.0)
        out = bend * self.softcap
        error = error * slope + (4 * u.accumulate + u.score) * magnitude(out)
        return Bounded(out, error), bend

    @property
    def scores(self) -> Bounded:
        """S as a backward pass has it, (B, H, Lq, Lk)."""
        return self._capped[0]

    def gradients(self, dS: Bounded) -> tuple[Bounded, Bounded]:
        """dQ (B, H, Lq, D) and dK (B, Hkv, Lk, D)."""
        u, query = self.u, self.query
        dT = self._scaled(dS)
        dQ = product(dT, self.key, self.pairs.allowed.sum(-1)[..., None], u)
        if u.gradient_blocks is not None:
            stores = -(-dT.shape[-1] // u.gradient_blocks[1])
            running = stores * (u.output * (dT.size @ self.key.size) + u.floor)
            dQ = Bounded(dQ.value, dQ.error + running)
        dQ = stored(dQ, u.output, u.floor)
        if self.scaled_query:
            dQ = stored(dQ, u.output, u.floor)
            query = stored(query, u.output, u.floor)
        return dQ, by_keys(dT, query, self.pairs.rows, self.group, u)

    def _scaled(self, dS: Bounded) -> Bounded:
        """dT times the scale: what the products with queries and keys take."""
        u = self.u
        dT = stored(self._bent(dS) * self.scale, 2 * u.score + 2 * u.accumulate, u.score_floor)
        # What narrows before the products may do so after the scale, or before it.
        dT = stored(dT, u.weight, u.weight_underflow * max(self.factor, 1.0))
        return self.pairs.attended(dT)

    def _bent(self, x: Bounded) -> Bounded:
        """x times the slope of the softcap."""
        if self.softcap is None:
            return x
        scores, bend = self._capped
        near = Bounded(bend, scores.error / self.softcap)
        return times_slope(x, near, self.u, self.u.score_floor)

    def tangent(self, query: Bounded | None, key: Bounded | None) -> Bounded | None:
        """S', as query (B, H, Lq, D) and key (B, H, Lk, D) move; None is what stands still."""
        u = self.u
        parts = [
            None if query is None else self._moved(query, self.key),
            None if key is None else self._moved(self.query, key),
        ]
        total = together(parts, u.score + u.accumulate, u.score_floor)
        return None if total is None else self.pairs.attended(self._bent(total))

    def _moved(self, query: Bounded, key: Bounded) -> Bounded:
        u = self.u
        if self.scaled_query:
            query = stored(query, u.output, u.floor)
        products = product(query, key.swapped, query.shape[-1], u) * self.scale
        return stored(products, 2 * u.score + 2 * u.accumulate, 2 * u.score_floor)


def times_slope(x: Bounded, bend: Bounded, u: Roundoffs, floor: float) -> Bounded:
    """x (1 - bend^2), the derivative of tanh by its value: with a factor before and after (a softcap's),
    or as (x + x bend) (1 - bend), each step stored.

    The slope by a bend that is off by e is off by (2 |bend| + e) e, and by its own roundings.
    """
    near = bend.error
    slope = 1 - np.square(bend.value)
    off = (2 * magnitude(bend.value) + near) * near + 2 * u.score + 5 * u.accumulate
    error = x.error * (magnitude(slope) + off) + magnitude(x.value) * off
    return stored(Bounded(x.value * slope, error), 5 * (u.score + u.accumulate), 2 * floor)


def times(x: Bounded, by: np.ndarray | float | np.floating, u: Roundoffs) -> Bounded:
    """x times exact numbers, stored like a score."""
    return stored(x * by, u.score + u.accumulate, u.floor)


def inner(a: Bounded, b: Bounded, kept: int, u: Roundoffs) -> Bounded:
    """The sum of a b over all but the `kept` last axes, each product stored; shapes broadcast."""
    each = stored(a * b, u.score + u.accumulate, u.score_floor)
    axes = tuple(range(each.value.ndim - kept))
    total = stored(summed(each, axes, u), u.output, u.floor)
    return Bounded(total.value.squeeze(axes), total.error.squeeze(axes))

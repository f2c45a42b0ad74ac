"""Elementwise products y = x f; f broadcasts to x.

    dx = dy f,   df = sum over the axes that f lacks of dy x,   y' = x' f + x f'

Bounds, in the notation of `references.rounding`: every product is rounded in the accumulator and
stored, like a score (u_s) or in the case's dtype (u_o). df is a sum over broadcast axes, stored once.
"""

from __future__ import annotations

from functools import cached_property

from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Node


class Times(Node):
    """x f for x and f of equal rank. `unit`: the relative error of a product of scores, which is stored
    like a score; None: products are stored in the case's dtype."""

    def __init__(self, u: Roundoffs, x: Node, factor: Node, unit: float | None = None) -> None:
        super().__init__(u, x, factor)
        self.x, self.factor = x, factor
        self.store = (
            Store(u.accumulate + u.output, u.floor) if unit is None else Store(unit, u.score_floor)
        )

    @cached_property
    def output(self) -> Bounded:
        return self._times(self.x.output, self.factor.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self._times(self.x.recomputed, self.factor.recomputed)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dx and df."""
        shape, factor = cotangent.shape, self.factor.recomputed
        axes = tuple(n for n, size in enumerate(factor.shape) if size == 1 and shape[n] != 1)
        total = sum_over_axes(self._times(cotangent, self.x.recomputed), axes, self.u)
        return self._times(cotangent, factor), stored(total, self.u.results)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        x, factor = tangents
        parts = [
            None if x is None else self._times(x, self.factor.recomputed),
            None if factor is None else self._times(self.x.recomputed, factor),
        ]
        return sum_of_present(parts, self.store)

    def _times(self, x: Bounded, factor: Bounded) -> Bounded:
        """Returns x times a factor, stored."""
        return stored(x * factor, self.store)

"""Rotations of pairs of components, y1 = x1 c - x2 s, y2 = x2 c + x1 s.

The VJP rotates back: the transpose of a rotation has -s for s.

Bound: products and sum in u_s, and the final rounding in u_o.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.rounding import Bounded, Roundoffs, Store, stored
from attention_conformance.references.tape import Gradients, Node
from attention_conformance.suite.spec.operators.rotary import Rotation


class Rotated(Node):
    """x (B, H, L, D) rotated by `cosine` and `sine`, (L, r / 2) or (B, 1, L, r / 2), for r rotated
    components. All other components are copied."""

    def __init__(
        self, u: Roundoffs, x: Node, cosine: Bounded, sine: Bounded, rotation: Rotation
    ) -> None:
        super().__init__(u, x)
        self.x, self.cosine, self.sine, self.rotation = x, cosine, sine, rotation

    @cached_property
    def output(self) -> Bounded:
        return self._rotated(self.x.output, 1.0)

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (self._rotated(cotangent, -1.0),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (x,) = tangents
        return None if x is None else self._rotated(x, 1.0)

    def _rotated(self, x: Bounded, direction: float) -> Bounded:
        """Returns x rotated by the angles times `direction`, 1.0 or -1.0."""
        u, rotation, cosine, sine = self.u, self.rotation, self.cosine, self.sine * direction
        half = rotation.size // 2
        if rotation.interleaved:
            places = slice(0, rotation.size, 2), slice(1, rotation.size, 2)
        else:
            places = slice(0, half), slice(half, rotation.size)
        x1, x2 = (x[..., place] for place in places)
        value, error = x.value.copy(), np.zeros(x.shape)
        store = Store(max(u.accumulate, u.score), u.score_floor)
        for place, direct, crossed in (
            (places[0], x1 * cosine, x2 * sine * -1.0),
            (places[1], x2 * cosine, x1 * sine),
        ):
            products = stored(direct, store), stored(crossed, store)
            total = stored(products[0] + products[1], Store(store.unit))
            result = stored(total, u.results)
            value[..., place] = result.value
            error[..., place] = result.error
        return Bounded(value, error)

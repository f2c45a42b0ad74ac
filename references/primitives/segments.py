"""Segments of packed tokens (L, ...): slices of the first axis, and their concatenation.

Nothing is rounded: segments do not overlap, so their gradients are only added to zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from attention_conformance.references.primitives.arranged import SharedTensor
from attention_conformance.references.rounding import Bounded, Roundoffs
from attention_conformance.references.tape import Gradients, Node


class Packed(SharedTensor):
    """x (L, ...), whose segments do not overlap: their cotangents are added without rounding."""

    def sum_cotangents(self, parts: list[Bounded]) -> Bounded:
        return reduce(Bounded.__add__, parts)


class Segment(Node):
    """`rows` of x (L, ...): a slice, or indices without repetition."""

    def __init__(self, x: SharedTensor, rows: slice | np.ndarray) -> None:
        super().__init__(x.u, x)
        self.x, self.rows = x, rows

    @cached_property
    def output(self) -> Bounded:
        return self.x.output[self.rows]

    def gradients(self, cotangent: Bounded) -> Gradients:
        gradient = Bounded(*(np.zeros(self.x.shape, part.dtype) for part in cotangent.parts))
        gradient.value[self.rows], gradient.error[self.rows] = cotangent.parts
        return (gradient,)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (x,) = tangents
        return None if x is None else x[self.rows]


class Concatenated(Node):
    """Segments (l, ...) concatenated to (L, ...)."""

    def __init__(self, u: Roundoffs, segments: Sequence[Node]) -> None:
        super().__init__(u, *segments)
        self.segments = segments

    @cached_property
    def output(self) -> Bounded:
        return concatenated([segment.output for segment in self.segments])

    @property
    def recomputed(self) -> Bounded:
        return concatenated([segment.recomputed for segment in self.segments])

    def gradients(self, cotangent: Bounded) -> Gradients:
        edges = np.cumsum([0, *(segment.shape[0] for segment in self.segments)])
        return [cotangent[start:stop] for start, stop in pairwise(edges)]

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        # Segments are parts of one array, so either all have a tangent or none has.
        return concatenated([part for part in tangents if part is not None])


def concatenated(parts: Sequence[Bounded]) -> Bounded:
    """Returns the parts (l, ...) concatenated along the first axis."""
    return reduce(lambda before, part: before.concatenated(part, 0), parts)

"""Segments of packed tokens, (L, ...): taken out along the first axis, and put one behind the other.
Nothing is rounded: what segments give back is added to zeros, since no two of them overlap."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from references.primitives.arranged import OneTensor
from references.rounding import Bounded, Roundoffs
from references.tape import Gradients, Node


class Packed(OneTensor):
    """x (L, ...), of which segments are taken."""

    def received(self, parts: list[Bounded]) -> Bounded:
        return reduce(Bounded.__add__, parts)


class Segment(Node):
    """The rows of x (L, ...) at a place."""

    def __init__(self, x: Packed, place: slice) -> None:
        super().__init__(x.u, x)
        self.x, self.place = x, place

    @cached_property
    def output(self) -> Bounded:
        return self.x.output[self.place]

    def gradients(self, received: Bounded) -> Gradients:
        whole = Bounded(*(np.zeros(self.x.shape, part.dtype) for part in received.parts))
        whole.value[self.place], whole.error[self.place] = received.parts
        return (whole,)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (x,) = moved
        return None if x is None else x[self.place]


class Concatenated(Node):
    """Segments (l, ...) one behind the other, (L, ...)."""

    def __init__(self, u: Roundoffs, segments: Sequence[Node]) -> None:
        super().__init__(u, *segments)
        self.segments = segments

    @cached_property
    def output(self) -> Bounded:
        return concatenated([segment.output for segment in self.segments])

    @property
    def again(self) -> Bounded:
        return concatenated([segment.again for segment in self.segments])

    def gradients(self, received: Bounded) -> Gradients:
        edges = np.cumsum([0, *(segment.shape[0] for segment in self.segments)])
        return [received[start:stop] for start, stop in pairwise(edges)]

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        # Segments move together, as parts of one array: none stands still.
        return concatenated([part for part in moved if part is not None])


def concatenated(parts: Sequence[Bounded]) -> Bounded:
    """Parts (l, ...) one behind the other."""
    return reduce(lambda before, part: before.beside(part, 0), parts)

"""Rearrangements, which round nothing; a tensor that several nodes use; and residuals.

A residual x + y and its tangent are stored in the case's dtype; x and y both receive its cotangent. If
one tensor is query, key and value, the three cotangents are summed (`references.tape.vjp_of`) before
anything else is added.
"""

from __future__ import annotations

from functools import cached_property

from attention_conformance.references.rounding import Bounded, Roundoffs, stored, sum_of_present
from attention_conformance.references.tape import Gradients, Node


class Reshaped(Node):
    """x reshaped."""

    def __init__(self, x: Node, shape: tuple[int, ...]) -> None:
        super().__init__(x.u, x)
        self.x, self._shape = x, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @cached_property
    def output(self) -> Bounded:
        return self.x.output.reshape(*self.shape)

    @property
    def recomputed(self) -> Bounded:
        return self.x.recomputed.reshape(*self.shape)

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (cotangent.reshape(*self.x.shape),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (x,) = tangents
        return None if x is None else x.reshape(*self.shape)


class MovedAxis(Node):
    """x with one axis moved."""

    def __init__(self, x: Node, source: int, destination: int) -> None:
        super().__init__(x.u, x)
        self.x, self.source, self.destination = x, source, destination

    @property
    def shape(self) -> tuple[int, ...]:
        axes = list(self.x.shape)
        axes.insert(self.destination, axes.pop(self.source))
        return tuple(axes)

    @cached_property
    def output(self) -> Bounded:
        return self.x.output.move_axis(self.source, self.destination)

    @property
    def recomputed(self) -> Bounded:
        return self.x.recomputed.move_axis(self.source, self.destination)

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (cotangent.move_axis(self.destination, self.source),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (x,) = tangents
        return None if x is None else x.move_axis(self.source, self.destination)


class SharedTensor(Node):
    """x, which is an operand of several nodes: their cotangents are summed here."""

    def __init__(self, x: Node) -> None:
        super().__init__(x.u, x)
        self.x = x

    @property
    def output(self) -> Bounded:
        return self.x.output

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (cotangent,)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        return tangents[0]


class Residual(Node):
    """x + y, stored, for x and y of one shape."""

    def __init__(self, u: Roundoffs, x: Node, y: Node) -> None:
        super().__init__(u, x, y)
        self.x, self.y = x, y

    @cached_property
    def output(self) -> Bounded:
        return stored(self.x.output + self.y.output, self.u.results)

    def gradients(self, cotangent: Bounded) -> Gradients:
        return cotangent, cotangent

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        return sum_of_present(list(tangents), self.u.results)

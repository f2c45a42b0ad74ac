"""Rearrangements, which round nothing, one tensor with several uses, and residuals.

A residual x + y and its tangent are stored in the case's dtype; x and y both receive its cotangent. If
one tensor is query, key and value, the three cotangents are summed (`references.tape.backward`) before
anything else is added.
"""

from __future__ import annotations

from functools import cached_property

from attention_conformance.references.rounding import Bounded, Roundoffs, stored, together
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

    def gradients(self, received: Bounded) -> Gradients:
        return (received.reshape(*self.x.shape),)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (x,) = moved
        return None if x is None else x.reshape(*self.shape)


class Moved(Node):
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
        return self.x.output.moved(self.source, self.destination)

    @property
    def recomputed(self) -> Bounded:
        return self.x.recomputed.moved(self.source, self.destination)

    def gradients(self, received: Bounded) -> Gradients:
        return (received.moved(self.destination, self.source),)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (x,) = moved
        return None if x is None else x.moved(self.source, self.destination)


class OneTensor(Node):
    """x with several uses as operand."""

    def __init__(self, x: Node) -> None:
        super().__init__(x.u, x)
        self.x = x

    @property
    def output(self) -> Bounded:
        return self.x.output

    def gradients(self, received: Bounded) -> Gradients:
        return (received,)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        return moved[0]


class Residual(Node):
    """x + y, stored. Both have one shape."""

    def __init__(self, u: Roundoffs, x: Node, y: Node) -> None:
        super().__init__(u, x, y)
        self.x, self.y = x, y

    @cached_property
    def output(self) -> Bounded:
        return stored(self.x.output + self.y.output, self.u.results)

    def gradients(self, received: Bounded) -> Gradients:
        return received, received

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        return together(list(moved), self.u.results)

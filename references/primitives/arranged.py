"""What only arranges numbers, and rounds nothing; and one tensor in several places, and residuals.

A residual x + y is stored in the case's dtype, and so is its tangent; both receive what it does. One
tensor that is handed in as query, key and value receives the sum of what these do
(`references.tape.backward`) before that meets anything else.
"""

from __future__ import annotations

from functools import cached_property

from references.rounding import Bounded, Roundoffs, stored, together
from references.tape import Gradients, Node


class Reshaped(Node):
    """x in another shape."""

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
    def again(self) -> Bounded:
        return self.x.again.reshape(*self.shape)

    def gradients(self, received: Bounded) -> Gradients:
        return (received.reshape(*self.x.shape),)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (x,) = moved
        return None if x is None else x.reshape(*self.shape)


class Moved(Node):
    """x with one axis at another place."""

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
    def again(self) -> Bounded:
        return self.x.again.moved(self.source, self.destination)

    def gradients(self, received: Bounded) -> Gradients:
        return (received.moved(self.destination, self.source),)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (x,) = moved
        return None if x is None else x.moved(self.source, self.destination)


class OneTensor(Node):
    """x as it is handed in several times."""

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
    """x + y of one shape, stored."""

    def __init__(self, u: Roundoffs, x: Node, y: Node) -> None:
        super().__init__(u, x, y)
        self.x, self.y = x, y

    @cached_property
    def output(self) -> Bounded:
        return stored(self.x.output + self.y.output, self.u.output, self.u.floor)

    def gradients(self, received: Bounded) -> Gradients:
        return received, received

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        return together(list(moved), self.u.output, self.u.floor)

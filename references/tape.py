"""The tape: a computation whose steps remember their operands, run forward, backward and along tangents.

Every primitive (`references.primitives`) is a `Node`: it has an output with a bound, and knows what its
operands receive of a cotangent and how it moves as they do. `backward` and `along` lead these through all
that an output is made of.

A backward pass that computes a step again rounds it in other places than the answer's own pass, scores
and weights above all: such a step is bounded twice, `output` as the answer has it and `again` as
derivatives have it. What lies behind takes the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from references.rounding import Bounded, Roundoffs, stored

Gradients = Sequence[Bounded | None]
"""What each operand of a node receives; None for those that receive nothing."""


class Node:
    """A step of a computation, with the roundoffs that it is made with; an operand that an operator lacks
    is None."""

    def __init__(self, u: Roundoffs, *operands: Node | None) -> None:
        self.u, self.operands = u, operands

    @cached_property
    def output(self) -> Bounded:
        """The result as the answer's own pass has it."""
        raise NotImplementedError

    @property
    def again(self) -> Bounded:
        """The result as a backward pass has it, or a tangent."""
        return self.output

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, known without it where a subclass says so."""
        return self.output.shape

    def received(self, parts: list[Bounded]) -> Bounded:
        """What the output receives from several places, each of which is stored, in any order: every
        partial sum is stored, and no larger than all of them together."""
        u = self.u
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2:
            return stored(parts[0] + parts[1], u.output, u.floor)
        value = np.sum([part.value for part in parts], 0)
        size = np.sum([part.size for part in parts], 0)
        error = np.sum([part.error for part in parts], 0)
        return Bounded(value, error + (len(parts) - 1) * (u.output * size + u.floor))

    def gradients(self, received: Bounded) -> Gradients:
        """What each operand receives, for what the output has received."""
        raise NotImplementedError

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        """How the output moves as the operands do, of which one moves at least; None stands still."""
        raise NotImplementedError


class Leaf(Node):
    """An array that a computation begins with; without a name it is a constant."""

    def __init__(self, u: Roundoffs, array: Bounded, name: str = "") -> None:
        super().__init__(u)
        self.array, self.name = array, name

    @property
    def output(self) -> Bounded:
        return self.array


def order(end: Node) -> list[Node]:
    """The nodes that `end` is made of, each behind its operands."""
    nodes: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for operand in node.operands:
            if operand is not None and operand not in nodes:
                visit(operand)
        nodes[node] = None

    visit(end)
    return list(nodes)


def backward(end: Node, cotangent: Bounded) -> dict[str, Bounded]:
    """The gradients of the leaves by name, for a cotangent of `end`."""
    received: dict[Node, list[Bounded]] = {end: [cotangent]}
    gradients: dict[str, Bounded] = {}
    for node in reversed(order(end)):
        if node not in received:
            continue
        total = node.received(received.pop(node))
        if isinstance(node, Leaf):
            gradients[node.name] = total
            continue
        for operand, part in zip(node.operands, node.gradients(total), strict=True):
            if operand is not None and part is not None:
                received.setdefault(operand, []).append(part)
    return gradients


def along(end: Node, tangents: Mapping[str, Bounded]) -> Bounded | None:
    """How `end` moves as leaves do, by name; None where it stands still."""
    moved: dict[Node | None, Bounded | None] = {None: None}
    for node in order(end):
        if isinstance(node, Leaf):
            moved[node] = tangents.get(node.name)
        else:
            own = [moved[operand] for operand in node.operands]
            moves = any(tangent is not None for tangent in own)
            moved[node] = node.tangent(*own) if moves else None
    return moved[end]

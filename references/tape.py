"""The tape: reverse and forward differentiation of compositions of primitives, with bounds.

Every primitive (`references.primitives`) is a `Node` with an output, a VJP and a JVP. `vjp_of` and
`jvp_of` chain these over all nodes of an output.

A backward pass that recomputes a step (scores, weights) may round it differently from the forward pass.
Such a node has two bounds: `output` for the forward pass, `recomputed` for derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from attention_conformance.references.rounding import Bounded, Roundoffs, stored

Gradients = Sequence[Bounded | None]
"""The cotangent of each operand, or None."""


class Node:
    """A step of a computation: its roundoffs `u` and its operands. An absent operand is None."""

    def __init__(self, u: Roundoffs, *operands: Node | None) -> None:
        self.u, self.operands = u, operands

    @cached_property
    def output(self) -> Bounded:
        """The result of the forward pass."""
        raise NotImplementedError

    @property
    def recomputed(self) -> Bounded:
        """The result as derivatives recompute it."""
        return self.output

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result. Subclasses override this to avoid computing the result."""
        return self.output.shape

    def sum_cotangents(self, parts: list[Bounded]) -> Bounded:
        """Returns the sum of this node's cotangents, one part per use. Parts are added in any order, and
        every partial sum, which is at most the sum of all magnitudes, is stored."""
        u = self.u
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2:
            return stored(parts[0] + parts[1], u.results)
        value = np.sum([part.value for part in parts], 0)
        size = np.sum([part.magnitude for part in parts], 0)
        error = np.sum([part.error for part in parts], 0)
        return Bounded(value, error + (len(parts) - 1) * (u.output * size + u.floor))

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns the cotangents of the operands for a cotangent of the output."""
        raise NotImplementedError

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        """Returns the tangent of the output for tangents of the operands. None is a zero tangent; at
        least one tangent is not None."""
        raise NotImplementedError


class Leaf(Node):
    """An array that starts a computation. A leaf without a name is a constant."""

    def __init__(self, u: Roundoffs, array: Bounded, name: str = "") -> None:
        super().__init__(u)
        self.array, self.name = array, name

    @property
    def output(self) -> Bounded:
        return self.array


def order(end: Node) -> list[Node]:
    """Returns the node `end` and all nodes that it depends on, in topological order: operands first."""
    nodes: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for operand in node.operands:
            if operand is not None and operand not in nodes:
                visit(operand)
        nodes[node] = None

    visit(end)
    return list(nodes)


def vjp_of(end: Node, cotangent: Bounded) -> dict[str, Bounded]:
    """Returns the gradients of the leaves by name, for a cotangent of the node `end`."""
    cotangents: dict[Node, list[Bounded]] = {end: [cotangent]}
    gradients: dict[str, Bounded] = {}
    for node in reversed(order(end)):
        if node not in cotangents:
            continue
        total = node.sum_cotangents(cotangents.pop(node))
        if isinstance(node, Leaf):
            gradients[node.name] = total
            continue
        for operand, part in zip(node.operands, node.gradients(total), strict=True):
            if operand is not None and part is not None:
                cotangents.setdefault(operand, []).append(part)
    return gradients


def jvp_of(end: Node, tangents: Mapping[str, Bounded]) -> Bounded | None:
    """Returns the JVP of the node `end` for tangents of leaves by name; None if it is zero."""
    found_tangents: dict[Node | None, Bounded | None] = {None: None}
    for node in order(end):
        if isinstance(node, Leaf):
            found_tangents[node] = tangents.get(node.name)
        else:
            operand_tangents = [found_tangents[operand] for operand in node.operands]
            is_nonzero = any(tangent is not None for tangent in operand_tangents)
            found_tangents[node] = node.tangent(*operand_tangents) if is_nonzero else None
    return found_tangents[end]

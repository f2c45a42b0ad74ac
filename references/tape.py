"""The tape: a computation whose steps remember their operands, run forward, backward and along tangents.

An operator says how its output is composed of primitives (`references.primitives`), and no more. Every
primitive is a `Node`: it has an output with a bound, and knows what its operands receive of a cotangent
and how it moves as they do. `backward` and `along` lead these through a composition in the order of its
operands; `Reference` is what the judge asks of an operator.

A backward pass that computes a step again rounds it in other places than the answer's own pass, scores
and weights above all: such a step is bounded twice, `output` as the answer has it and `again` as
derivatives have it. What lies behind takes the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from references.outputs import (
    EMPTY_ROW_GRADIENTS,
    EMPTY_ROWS,
    Outputs,
    check_empty_rows,
    moving,
    wide,
)
from references.rounding import Bounded, Roundoffs, known, narrowed, stored
from suite.spec.inputs import Inputs

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
        total = _added_up(received.pop(node), node.u)
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


def _added_up(parts: list[Bounded], u: Roundoffs) -> Bounded:
    """What an array receives from several places, each of which is stored, in any order: every partial
    sum is stored, and no larger than all of them together."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return stored(parts[0] + parts[1], u.output, u.floor)
    value = np.sum([part.value for part in parts], 0)
    size = np.sum([part.size for part in parts], 0)
    error = np.sum([part.error for part in parts], 0)
    return Bounded(value, error + (len(parts) - 1) * (u.output * size + u.floor))


class Problem:
    """What an operator is composed for: its arrays as leaves, where an implementation rounds, and what
    rows without keys are, in the answer (`rows`) and to a derivative (`gradient_rows`)."""

    def __init__(self, inputs: Inputs, u: Roundoffs, rows: str, gradient_rows: str) -> None:
        self.inputs, self.u, self.sizes = inputs, u, inputs.sizes
        self.rows, self.gradient_rows = rows, gradient_rows
        self.arrays = wide(inputs)
        self._leaves: dict[str, Leaf] = {}

    def leaf(self, name: str) -> Leaf:
        """An array, `narrowed`. Where query, key and value are one tensor all three are the query."""
        if self.inputs.self_attention and name in ("key", "value"):
            name = "query"
        if name not in self._leaves:
            self._leaves[name] = Leaf(self.u, narrowed(self.arrays[name], self.u), name)
        return self._leaves[name]

    def exact(self, name: str) -> Leaf | None:
        """An array that is added, or multiplies scores, as it is: no product of matrices or norm takes
        it. None where the inputs have none."""
        return Leaf(self.u, Bounded.exact(self.arrays[name]), name) if name in self.arrays else None

    @property
    def default_scale(self) -> np.floating:
        """1 / sqrt(D), 1 where D is 0."""
        scale: np.floating = 1 / np.sqrt(self.arrays["query"].dtype.type(self.sizes.D or 1))
        return scale

    def optional(self, name: str) -> Leaf | None:
        """An array, None where the inputs have none."""
        return self.leaf(name) if name in self.arrays else None


@dataclass(frozen=True)
class Composition:
    """The output of an operator, and what is returned beside it, by name; `keys` and `sunk` as
    `references.outputs.Outputs` has them."""

    output: Node
    beside: Mapping[str, Node] = field(default_factory=dict)
    keys: np.ndarray | None = None
    sunk: np.ndarray | None = None


class Reference:
    """An operator with its derivatives, from a function that composes its output."""

    def __init__(self, compose: Callable[[Problem], Composition]) -> None:
        self.compose = compose

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output, and what is asked for beside it (weights), each with its bound.

        `empty_rows` says what a row without keys answers, see `references.outputs.EMPTY_ROWS`. Raises
        ValueError for another one, and NoExtendedPrecision where float64 cannot be judged here.
        """
        check_empty_rows(empty_rows, EMPTY_ROWS)
        composition = self.compose(Problem(inputs, rounding, empty_rows, "zeros"))
        nodes = {"output": composition.output, **composition.beside}
        arrays = {name: node.output for name, node in nodes.items()}
        return _outputs(inputs, composition, arrays)

    @np.errstate(all="ignore")
    def again(self, inputs: Inputs, rounding: Roundoffs) -> Outputs:
        """The output alone, as a backward pass computes it again."""
        composition = self._differentiable(inputs, rounding, "zeros")
        return _outputs(inputs, composition, {"output": composition.output.again})

    @np.errstate(all="ignore")
    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", of: str = "output",
    ) -> Outputs:  # fmt: skip
        """The gradients of all arrays that have one, in their shapes, for a cotangent of the output
        called `of`; where query, key and value are one tensor, that of "query" is what it receives as all
        three.

        `empty_rows` says what a row without keys is, see
        `references.outputs.EMPTY_ROW_GRADIENTS`. NaN in slots that no row
        attends is of no influence. Raises ValueError for another one, and NoExtendedPrecision.
        """
        composition = self._differentiable(inputs, rounding, empty_rows)
        end = composition.output if of == "output" else composition.beside[of]
        received = narrowed(wide(inputs, {"cotangent": cotangent})["cotangent"], rounding)
        gradients = backward(end, received)
        arrays = {name: array for name, array in gradients.items() if name in inputs.arrays}
        return _outputs(inputs, composition, arrays)

    @np.errstate(all="ignore")
    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """How the output moves as arrays move along `tangents`, which have their shapes.

        `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array
        or a constant one.
        """
        composition = self._differentiable(inputs, rounding, empty_rows)
        moved = {name: narrowed(x, rounding) for name, x in moving(inputs, tangents).items()}
        tangent = along(composition.output, moved)
        if tangent is None:
            tangent = Bounded.exact(np.zeros_like(composition.output.output.value))
        return _outputs(inputs, composition, {"output": tangent})

    def _differentiable(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> Composition:
        check_empty_rows(empty_rows, EMPTY_ROW_GRADIENTS)
        rows = "zeros" if empty_rows == "zeros" else "uniform"
        return self.compose(Problem(inputs, u, rows, empty_rows))


def _outputs(inputs: Inputs, composition: Composition, arrays: Mapping[str, Bounded]) -> Outputs:
    keys, sunk = composition.keys, composition.sunk
    if keys is None:  # No row is without keys.
        keys = np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int)
    known_arrays = {name: known(array) for name, array in arrays.items()}
    return Outputs(known_arrays, keys, sunk=np.zeros((1, 1), bool) if sunk is None else sunk)

"""Operators as compositions: an operator says how its output is composed of primitives, and no more.
`Reference` is what the judge asks of it: the answer, gradients and tangents, each with its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from references.outputs import (
    EMPTY_ROW_GRADIENTS,
    EMPTY_ROWS,
    Outputs,
    check_empty_rows,
    moving,
    wide,
)
from references.rounding import Bounded, Roundoffs, known, narrowed
from references.tape import Leaf, Node, along, backward
from suite.spec.inputs import Inputs


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
        return self._leaf(name, narrowed)

    def exact(self, name: str) -> Leaf | None:
        """An array that is added, or multiplies scores, as it is: no product of matrices or norm takes
        it. None where the inputs have none."""
        if name not in self.arrays:
            return None
        return self._leaf(name, lambda array, u: Bounded.exact(array))

    def _leaf(self, name: str, bounded: Callable[[np.ndarray, Roundoffs], Bounded]) -> Leaf:
        if name not in self._leaves:
            self._leaves[name] = Leaf(self.u, bounded(self.arrays[name], self.u), name)
        return self._leaves[name]

    @property
    def scale(self) -> np.floating:
        """The scale that is given, else 1 / sqrt(D), 1 where D is 0."""
        precision = self.arrays["query"].dtype.type
        given, default = self.inputs.scale, 1 / np.sqrt(precision(self.sizes.D or 1))
        scale: np.floating = default if given is None else precision(given)
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

    def roundoffs(self, inputs: Inputs, u: Roundoffs) -> Roundoffs:
        """What steps round with, where an implementation rounds with `u`."""
        return u

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output, and what is asked for beside it (weights), each with its bound.

        `empty_rows` says what a row without keys answers, see `references.outputs.EMPTY_ROWS`. Raises
        ValueError for another one, and NoExtendedPrecision where float64 cannot be judged here.
        """
        check_empty_rows(empty_rows, EMPTY_ROWS)
        problem = Problem(inputs, self.roundoffs(inputs, rounding), empty_rows, "zeros")
        composition = self.compose(problem)
        returned = inputs.operator.outputs(inputs.case)
        beside = {name: node for name, node in composition.beside.items() if name in returned}
        nodes = {"output": composition.output, **beside}
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
        u = self.roundoffs(inputs, rounding)
        received = narrowed(wide(inputs, {"cotangent": cotangent})["cotangent"], u)
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
        u = self.roundoffs(inputs, rounding)
        moved = {name: narrowed(x, u) for name, x in moving(inputs, tangents).items()}
        tangent = along(composition.output, moved)
        if tangent is None:
            tangent = Bounded.exact(np.zeros_like(composition.output.output.value))
        return _outputs(inputs, composition, {"output": tangent})

    def _differentiable(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> Composition:
        check_empty_rows(empty_rows, EMPTY_ROW_GRADIENTS)
        rows = "zeros" if empty_rows == "zeros" else "uniform"
        return self.compose(Problem(inputs, self.roundoffs(inputs, u), rows, empty_rows))


def _outputs(inputs: Inputs, composition: Composition, arrays: Mapping[str, Bounded]) -> Outputs:
    keys, sunk = composition.keys, composition.sunk
    if keys is None:  # No row is without keys.
        keys = np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int)
    known_arrays = {name: known(array) for name, array in arrays.items()}
    return Outputs(known_arrays, keys, sunk=np.zeros((1, 1), bool) if sunk is None else sunk)

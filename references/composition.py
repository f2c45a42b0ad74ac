"""Operators as compositions of primitives. `Reference` computes outputs, VJPs and JVPs, each with its
bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from attention_conformance.references.outputs import (
    EMPTY_ROW_GRADIENTS,
    EMPTY_ROWS,
    Outputs,
    check_empty_rows,
    checked_tangents,
    in_precision,
)
from attention_conformance.references.rounding import Bounded, Roundoffs, nan_to_inf, rounded_input
from attention_conformance.references.tape import Leaf, Node, jvp_of, vjp_of
from attention_conformance.suite.spec.inputs import Inputs


class Problem:
    """What an operator is composed from: the arrays of the inputs, as leaves, and the roundoffs `u`.

    `empty_rows` (one of `references.outputs.EMPTY_ROWS`) is the output of fully masked rows.
    `gradient_rows` (one of `EMPTY_ROW_GRADIENTS`) says how derivatives treat these rows.
    """

    def __init__(self, inputs: Inputs, u: Roundoffs, empty_rows: str, gradient_rows: str) -> None:
        self.inputs, self.u, self.sizes = inputs, u, inputs.sizes
        self.empty_rows, self.gradient_rows = empty_rows, gradient_rows
        self.arrays = in_precision(inputs)
        self._leaves: dict[str, Leaf] = {}

    def leaf(self, name: str) -> Leaf:
        """Returns the leaf of the array `name`, an operand of a matrix product or norm, with the error of
        `rounded_input`. If query, key and value are one tensor, all three names give the query's leaf."""
        if self.inputs.self_attention and name in ("key", "value"):
            name = "query"
        return self._leaf(name, rounded_input)

    def exact_leaf(self, name: str) -> Leaf | None:
        """Returns the leaf of the array `name` without error; None if the inputs lack the array. Operands
        of matrix products and norms use `leaf`."""
        if name not in self.arrays:
            return None
        return self._leaf(name, lambda array, u: Bounded.exact(array))

    def _leaf(self, name: str, bounded: Callable[[np.ndarray, Roundoffs], Bounded]) -> Leaf:
        """Returns the leaf of an array, always the same one; `bounded` gives the array its error."""
        if name not in self._leaves:
            self._leaves[name] = Leaf(self.u, bounded(self.arrays[name], self.u), name)
        return self._leaves[name]

    @property
    def scale(self) -> np.floating:
        """The given scale, or 1 / sqrt(D), or 1 if D is 0."""
        precision = self.arrays["query"].dtype.type
        option, default = self.inputs.scale, 1 / np.sqrt(precision(self.inputs.depth or 1))
        scale: np.floating = default if option is None else precision(option)
        return scale

    def optional_leaf(self, name: str) -> Leaf | None:
        """Returns `leaf(name)`, or None if the inputs lack the array."""
        return self.leaf(name) if name in self.arrays else None


@dataclass(frozen=True)
class Composition:
    """The output of an operator and its further outputs by name, as nodes. For `keys` and `has_sink`
    see `references.outputs.Outputs`; `keys` is None if no row is fully masked."""

    output: Node
    further_outputs: Mapping[str, Node] = field(default_factory=dict)
    keys: np.ndarray | None = None
    has_sink: np.ndarray = field(default_factory=lambda: np.zeros((1, 1), bool))


class Reference:
    """An operator and its derivatives, from a function that composes its output."""

    def __init__(self, compose: Callable[[Problem], Composition]) -> None:
        self.compose = compose

    def roundoffs(self, inputs: Inputs, u: Roundoffs) -> Roundoffs:
        """Returns the roundoffs for the composition: by default the roundoffs `u` of the
        implementation."""
        return u

    def inputs_given(self, inputs: Inputs, answer: Mapping[str, np.ndarray]) -> Inputs:
        """Returns the inputs by which the output in `answer` is judged: by default `inputs`. An operator
        may replace arrays by further outputs of the answer, such as codes that the call wrote."""
        return inputs

    @np.errstate(all="ignore")
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the output and the further outputs requested (weights), each with its bound.

        `empty_rows` is the output of fully masked rows (`references.outputs.EMPTY_ROWS`). Raises
        ValueError for an unknown value, and NoExtendedPrecision if float64 cannot be judged here.
        """
        check_empty_rows(empty_rows, EMPTY_ROWS)
        problem = Problem(inputs, self.roundoffs(inputs, rounding), empty_rows, "zeros")
        composition, returned = self.compose(problem), inputs.operator.outputs(inputs.case)
        nodes = {"output": composition.output, **composition.further_outputs}
        arrays = {name: node.output for name, node in nodes.items() if name in returned}
        return _outputs(inputs, composition, arrays)

    @np.errstate(all="ignore")
    def recomputed(self, inputs: Inputs, rounding: Roundoffs) -> Outputs:
        """Returns the output as a backward pass recomputes it, with its bound."""
        composition = self._differentiable(inputs, rounding, "zeros")
        return _outputs(inputs, composition, {"output": composition.output.recomputed})

    @np.errstate(all="ignore")
    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """Gradients of all differentiable arrays, in their shapes, for a cotangent of the output named
        `output`.

        With one tensor as query, key and value, the gradient "query" is the sum of all three.
        `empty_rows` says how derivatives treat fully masked rows
        (`references.outputs.EMPTY_ROW_GRADIENTS`). NaN in slots that no row attends has no influence.
        Raises ValueError for an unknown `empty_rows`, and NoExtendedPrecision.
        """
        composition = self._differentiable(inputs, rounding, empty_rows)
        nodes = {"output": composition.output, **composition.further_outputs}
        precise = in_precision(inputs, {output: cotangent})[output]
        rounded_cotangent = rounded_input(precise, self.roundoffs(inputs, rounding))
        gradients = vjp_of(nodes[output], rounded_cotangent)
        arrays = {name: array for name, array in gradients.items() if name in inputs.arrays}
        return _outputs(inputs, composition, arrays)

    @np.errstate(all="ignore")
    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """Returns the JVP of the output for `tangents`, which have the shapes of their arrays.

        `empty_rows` as in `vjp`. Raises ValueError as `vjp` does, and for tangents of unknown or
        constant arrays.
        """
        composition = self._differentiable(inputs, rounding, empty_rows)
        u = self.roundoffs(inputs, rounding)
        precise = checked_tangents(inputs, tangents)
        rounded_tangents = {name: rounded_input(x, u) for name, x in precise.items()}
        tangent = jvp_of(composition.output, rounded_tangents)
        if tangent is None:
            tangent = Bounded.exact(np.zeros_like(composition.output.output.value))
        return _outputs(inputs, composition, {"output": tangent})

    def _differentiable(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> Composition:
        """Returns the composition for derivatives. Raises ValueError for an unknown `empty_rows`."""
        check_empty_rows(empty_rows, EMPTY_ROW_GRADIENTS)
        output_rows = "zeros" if empty_rows == "zeros" else "uniform"
        return self.compose(Problem(inputs, self.roundoffs(inputs, u), output_rows, empty_rows))


def _outputs(inputs: Inputs, composition: Composition, arrays: Mapping[str, Bounded]) -> Outputs:
    """Returns the `Outputs` with these arrays. A bound of NaN becomes infinite."""
    keys = composition.keys
    if keys is None:
        keys = np.ones((inputs.sizes.B, 1, inputs.sizes.Lq), int)
    bounded = {name: nan_to_inf(array) for name, array in arrays.items()}
    return Outputs(bounded, keys, has_sink=composition.has_sink)

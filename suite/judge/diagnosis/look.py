"""Looks: what an implementation answers to the plain inputs of a cell, beside what would be right."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attention_conformance.backends.protocol import ENDS, Implementation
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.derivative import vjp
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import Deviation, HarnessError, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs

FLAGS = "causal|window|length"
"""What the names of arguments contain that give a mask by flags."""

Arrays = Mapping[str, np.ndarray]


@dataclass(eq=False)
class Look:
    """What an implementation answers in a cell, and what would be right.

    `got` are outputs by name. If the check differentiates and the outputs are right, gradients by operand
    are there, too (`differentiates`). `limits` are largest bounds by array, by what rounds.
    """

    cell: Cell
    inputs: Inputs
    got: Arrays
    differentiates: bool = False
    limits: dict[Hashable, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, cell: Cell) -> Look | None:
        """The look at a cell; None if the case has no values, or the call gives no answer."""
        if not isinstance(cell.case, Case):
            return None
        try:
            inputs = cell.inputs
        except (Deviation, HarnessError, NotApplicable):
            return None
        got = observed(cell, False)
        if got is None:
            return None
        look = cls(cell, inputs, got)
        try:
            look.presented = presented(cell)
        except NotApplicable:
            return None
        if "gradient" in cell.check.needs and look.expected and not look.is_wrong:
            both = observed(cell, True)
            if both is not None:
                shown = look.presented
                look = cls(cell, inputs, both, True)
                look.presented = shown
        return look if look.expected else None

    @classmethod
    def of_call(
        cls, check: Check, inputs: Inputs, given: Implementation, got: Arrays, oracle: Oracle
    ) -> Look:
        """The look at one call whose arrays `got` a person has: the arrays that the oracle knows.
        `given` is any implementation of the operator."""
        cell = Cell(check, inputs.case, given)
        cell.inputs = inputs
        look = cls(cell, inputs, got)
        look.presented = inputs
        look.expected = with_limits(oracle.expected)
        return look

    @cached_property
    def expected(self) -> Mapping[str, tuple[np.ndarray, float]]:
        """The right arrays, each with its largest bound; {} if nobody knows them."""
        return right(self.cell, self.inputs, self.differentiates)

    @cached_property
    def presented(self) -> Inputs:
        """The inputs for faults."""
        return presented(self.cell)

    @cached_property
    def is_wrong(self) -> bool:
        """True if the answer to the plain inputs is wrong."""
        return any(wrong.any() for wrong in self.wrong.values())

    @cached_property
    def wrong(self) -> Arrays:
        """A flag for every element that is wrong, by array."""
        return {
            name: ~close(self, name, self.got[name], want, limit)
            for name, (want, limit) in self.expected.items()
            if name in self.got
        }

    @property
    def has_rows(self) -> bool:
        """True if the output has a row of values for every query."""
        return self.inputs.operator.outputs(self.inputs.case).get("output") == "bhqv"

    @property
    def differs_in_numbers(self) -> bool:
        """True if a wrong element is finite."""
        return any(np.isfinite(self.got[name][of]).any() for name, of in self.wrong.items())

    @property
    def has_numbers(self) -> bool:
        """True if an element is finite."""
        return any(np.isfinite(self.got[name]).any() for name in self.wrong)


def presented(cell: Cell) -> Inputs:
    """The inputs of a cell, with the mask in the form in which the implementation is given it: by flags,
    as an array, or as -inf in the bias. Raises NotApplicable for a flag beside an array."""
    inputs, implementation = cell.inputs, cell.implementation
    if (inputs.mask is None and inputs.mask_array is None) or inputs.operator.is_layer:
        return inputs
    arguments, backend = implementation.prepare(inputs).arguments, implementation.backend
    flags = [value for name, value in arguments.items() if re.search(FLAGS, name)]
    flagged = any(value is not None and value is not False for value in flags)
    arrays = [value for value in arguments.values() if backend.is_array(value)]
    masked = any("bool" in backend.dtype_name(array) for array in arrays)
    if flagged and masked:
        raise NotApplicable("a flag and a mask are given, which faults take in another form")
    if flagged:
        return inputs
    if masked:
        return inputs.replace(form="dense")
    mask = inputs.dense_mask
    if inputs.bias is None or mask is None:
        return inputs
    bias = np.where(mask, inputs.bias, -np.inf)
    return inputs.replace(mask=None, mask_array=None, form="native", bias=bias)


def observed(cell: Cell, gradients: bool) -> Arrays | None:
    """The answer of a cell's implementation to the plain inputs of its case; None if the call fails."""
    try:
        if not gradients:
            return dict(cell.run(cell.inputs).arrays)
        answer, of = vjp(cell)
        return {**answer.arrays, **{f"gradient of {name}": array for name, array in of.items()}}
    except ENDS:
        raise
    except BaseException:
        return None


def right(cell: Cell, inputs: Inputs, gradients: bool) -> dict[str, tuple[np.ndarray, float]]:
    """The right arrays of a cell by name, each with the largest bound of an element; {} if nobody knows
    them."""
    try:
        rounding = cell.rounding
        expected = dict(Oracle.forward(inputs, rounding, "unmasked").expected)
        if gradients:
            if inputs.has_empty_rows:
                return {}
            of = Oracle.vjp(inputs, cell.cotangent, rounding).expected
            expected |= {f"gradient of {name}": want for name, want in of.items()}
    except (Deviation, HarnessError, NotApplicable):
        return {}
    return with_limits(expected)


def with_limits(expected: Mapping[str, Bounded]) -> dict[str, tuple[np.ndarray, float]]:
    """Arrays by name, each with its largest finite bound."""
    return {
        name: (want.value, float(np.max(want.error, initial=0.0, where=np.isfinite(want.error))))
        for name, want in expected.items()
    }


def close(look: Look, name: str, got: np.ndarray, want: np.ndarray, limit: float) -> np.ndarray:
    """A flag for every element: equal within the limit, or in a fully masked row."""
    with np.errstate(invalid="ignore"):
        near = (np.abs(got - want) <= limit) | (got == want) | (np.isnan(got) & np.isnan(want))
    axes = look.inputs.operator.outputs(look.inputs.case).get(name)
    if axes is not None and look.inputs.has_empty_rows:
        empty = look.inputs.rows_along(look.inputs.fully_masked_rows, axes)
        near |= np.broadcast_to(empty, near.shape)
    return near


def unkeyed(look: Look, got: np.ndarray, answer: np.ndarray, limit: float) -> np.ndarray:
    """A flag for every element of rows that the fault leaves without keys, and where the implementation
    has one of the values that are elected for such rows: zeros, NaN, or the mean of all values."""
    left = ((answer == 0) | np.isnan(answer)).all(-1)
    blank = np.isnan(got).all(-1) | (got == 0).all(-1)
    value = look.inputs.arrays.get("value")
    if left.any() and value is not None and value.ndim == 4 and value.shape[2]:
        mean = np.repeat(value.mean(2), got.shape[1] // value.shape[1], 1)[:, :, None]
        blank |= (np.abs(got - mean) <= limit).all(-1)
    return (left & blank)[..., None]

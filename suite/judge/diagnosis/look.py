"""Looks: what an implementation answers to the plain inputs of a cell, beside what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
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
from attention_conformance.suite.spec.dtypes import Code
from attention_conformance.suite.spec.inputs import Inputs

FLAGS = "causal|window|length"
"""What the names of arguments contain that give a mask by flags."""

Arrays = Mapping[str, np.ndarray]

Limit = float | np.ndarray
"""How far elements may lie from the right ones: one number, or one for each element."""

Expected = Mapping[str, tuple[np.ndarray, Limit]]
"""Right arrays by name, each with its limit."""


@dataclass(eq=False)
class Answered:
    """What an implementation answers to inputs: arrays by name, `got`, and `expected`, the right ones,
    each with its limit (see `with_limits`)."""

    inputs: Inputs
    got: Arrays
    expected: Expected

    @cached_property
    def wrong(self) -> Arrays:
        """A flag for every element that is wrong, by array."""
        return {
            name: ~self.close(name, self.got[name], want, limit)
            for name, (want, limit) in self.expected.items()
            if name in self.got
        }

    @cached_property
    def is_wrong(self) -> bool:
        """True if an element is wrong."""
        return any(wrong.any() for wrong in self.wrong.values())

    @property
    def differs_in_numbers(self) -> bool:
        """True if a wrong element is finite."""
        return any(np.isfinite(self.got[name][of]).any() for name, of in self.wrong.items())

    @property
    def has_numbers(self) -> bool:
        """True if an element is finite."""
        return any(np.isfinite(self.got[name]).any() for name in self.wrong)

    def close(self, name: str, got: np.ndarray, want: np.ndarray, limit: Limit) -> np.ndarray:
        """A flag for every element: equal within the limit, or in a fully masked row."""
        with np.errstate(invalid="ignore"):
            near = (np.abs(got - want) <= limit) | (got == want) | (np.isnan(got) & np.isnan(want))
        axes = self.inputs.operator.outputs(self.inputs.case).get(name)
        if axes is not None and self.inputs.has_empty_rows:
            empty = self.inputs.rows_along(self.inputs.fully_masked_rows, axes)
            near |= np.broadcast_to(empty, near.shape)
        return near

    def unkeyed(self, name: str, answer: np.ndarray, limit: Limit) -> np.ndarray | bool:
        """A flag for every element of rows that a deviation leaves without keys, and where the
        implementation has one of the values that are elected for such rows: zeros, NaN, or the mean of
        all values. False if the array has no row of values for every query."""
        if name != "output" or self.inputs.operator.outputs(self.inputs.case).get(name) != "bhqv":
            return False
        # Of an implementation that was not asked the answer is taken for right.
        got = self.got.get(name, self.expected[name][0])
        value = self.inputs.arrays.get("value")
        left = ((answer == 0) | np.isnan(answer)).all(-1)
        blank = np.isnan(got).all(-1) | (got == 0).all(-1)
        if left.any() and value is not None and value.ndim == 4 and value.shape[2]:
            mean = np.repeat(value.mean(2), got.shape[1] // value.shape[1], 1)[:, :, None]
            blank |= (np.abs(got - mean) <= limit).all(-1)
        return np.asarray((left & blank)[..., None])


@dataclass(eq=False)
class Look(Answered):
    """What an implementation answers in a cell, and what would be right.

    If the check differentiates and the outputs are right, gradients by operand are there, too
    (`differentiates`). `presented` are the inputs for deviations.
    """

    cell: Cell
    presented: Inputs
    differentiates: bool = False

    @classmethod
    def of(cls, cell: Cell) -> Look | None:
        """The look at a cell; None if the case has no values, or the call gives no answer."""
        look = cls._at(cell, False)
        if look is not None and "gradient" in cell.check.needs and not look.is_wrong:
            look = cls._at(cell, True) or look
        return look

    @classmethod
    def _at(cls, cell: Cell, gradients: bool, asked: bool = True) -> Look | None:
        if not isinstance(cell.case, Case):
            return None
        try:
            inputs = cell.inputs
            got = observed(cell, gradients) if asked else {}
            expected = {} if got is None else right(cell, inputs, gradients, got)
            if got is None or not expected:
                return None
            return cls(inputs, got, expected, cell, presented(cell), gradients)
        except (Deviation, HarnessError, NotApplicable):
            return None

    @classmethod
    def of_right(cls, cell: Cell) -> Look | None:
        """The look at a cell whose outputs are right, without a call."""
        return cls._at(cell, False, asked=False)

    @classmethod
    def of_call(
        cls, check: Check, inputs: Inputs, given: Implementation, got: Arrays, oracle: Oracle
    ) -> Look:
        """The look at one call whose arrays `got` a person has: the arrays that the oracle knows.
        `given` is any implementation of the operator."""
        cell = Cell(check, inputs.case, given)
        cell.inputs = inputs
        return cls(inputs, got, with_limits(oracle.expected, inputs), cell, inputs)


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


def right(cell: Cell, inputs: Inputs, gradients: bool, got: Arrays) -> Expected:
    """The right arrays of a cell by name, beside what was `got`, with their limits; {} if nobody knows
    them."""
    try:
        rounding = cell.rounding
        expected = dict(Oracle.forward(inputs, rounding, "unmasked").expected_given(got))
        if gradients:
            if inputs.has_empty_rows:
                return {}
            of = Oracle.vjp(inputs, cell.cotangent, rounding).expected
            expected |= {f"gradient of {name}": want for name, want in of.items()}
    except (Deviation, HarnessError, NotApplicable):
        return {}
    return with_limits(expected, inputs)


def with_limits(expected: Mapping[str, Bounded], inputs: Inputs) -> Expected:
    """Arrays by name, each with its largest finite bound. Codes have their own bounds: each is rounded by
    itself, by a step of its size."""
    return {
        name: (
            want.value,
            want.error
            if isinstance(inputs.output_dtype(name), Code)
            else float(np.max(want.error, initial=0.0, where=np.isfinite(want.error))),
        )
        for name, want in expected.items()
    }

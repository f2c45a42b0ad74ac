"""Outcomes: an implementation's answer to the inputs of a cell, and the right answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attention_conformance.backends.protocol import ENDS, Implementation
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.derivative import vjp
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import Code
from attention_conformance.suite.spec.inputs import Inputs

FLAGS = "causal|window|length"
"""Parts of the names of arguments by which a mask is given as a flag."""

Arrays = Mapping[str, np.ndarray]

Limit = float | np.ndarray
"""The largest error of a right element: one number, or one for each element."""

Expected = Mapping[str, tuple[np.ndarray, Limit]]
"""Right arrays by name, each with its limit."""


@dataclass(eq=False)
class Comparison:
    """An implementation's arrays for inputs by name (`got`), and the right arrays with their limits
    (`expected`, see `with_limits`)."""

    inputs: Inputs
    got: Arrays
    expected: Expected

    @cached_property
    def wrong(self) -> Arrays:
        """Boolean arrays by name, in the shapes of the expected arrays: True for wrong elements."""
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
    def has_wrong_numbers(self) -> bool:
        """True if a wrong element is finite."""
        return any(np.isfinite(self.got[name][where]).any() for name, where in self.wrong.items())

    @property
    def has_numbers(self) -> bool:
        """True if an element is finite."""
        return any(np.isfinite(self.got[name]).any() for name in self.wrong)

    def close(self, name: str, got: np.ndarray, want: np.ndarray, limit: Limit) -> np.ndarray:
        """Returns a boolean array: True for elements of `got` that equal `want` within `limit`, or lie in
        fully masked rows."""
        with np.errstate(invalid="ignore"):
            near = (np.abs(got - want) <= limit) | (got == want) | (np.isnan(got) & np.isnan(want))
        return np.asarray(near | self.fully_masked_elements(name))

    def fully_masked_elements(self, name: str) -> np.ndarray | bool:
        """Returns a boolean array that broadcasts to the array `name`: True in fully masked rows, which
        elections decide. Returns False without such rows."""
        axes = self.inputs.operator.outputs(self.inputs.case).get(name)
        if axes is None or not self.inputs.has_empty_rows:
            return False
        return np.asarray(self.inputs.rows_along(self.inputs.fully_masked_rows, axes))

    def emptied_elements(self, name: str, answer: np.ndarray, limit: Limit) -> np.ndarray | bool:
        """Returns a boolean array (B, H, Lq, 1), or (Lq, H, 1). True for rows that a deviation's `answer`
        leaves without keys (zeros or NaN), if the implementation returns an elected value there: zeros,
        NaN, or the mean of all values (B, H, Lk, Dv). Returns False for outputs without the axis Dv."""
        axes = self.inputs.operator.outputs(self.inputs.case).get(name, "")
        if name != "output" or not axes.endswith("v"):
            return False
        # Without a call (`of_passing_cell`) the answer counts as right.
        got = self.got.get(name, self.expected[name][0])
        value = self.inputs.arrays.get("value")
        without_keys = ((answer == 0) | np.isnan(answer)).all(-1)
        is_elected = np.isnan(got).all(-1) | (got == 0).all(-1)
        if without_keys.any() and axes == "bhqv" and value is not None and value.shape[2]:
            mean = np.repeat(value.mean(2), got.shape[1] // value.shape[1], 1)[:, :, None]
            is_elected |= (np.abs(got - mean) <= limit).all(-1)
        return np.asarray((without_keys & is_elected)[..., None])


@dataclass(eq=False)
class Outcome(Comparison):
    """An implementation's answer in a cell, and the right answer.

    If the check differentiates and the outputs are right, the arrays include gradients by operand
    (`has_gradients`). `fault_inputs` are the inputs for the faults of the catalogue.
    """

    cell: Cell
    fault_inputs: Inputs
    has_gradients: bool = False
    _neighbours: dict[str, Outcome | None] = field(default_factory=dict)

    def neighbour(self, case: Case) -> Outcome | None:
        """Returns the outcome of the cell with another case, from a cache, with gradients if this
        outcome has them; None as in `from_cell`."""
        if case.id not in self._neighbours:
            cell = Cell(self.cell.check, case, self.cell.implementation, self.cell.seed)
            self._neighbours[case.id] = Outcome._at(cell, self.has_gradients)
        return self._neighbours[case.id]

    @classmethod
    def from_cell(cls, cell: Cell) -> Outcome | None:
        """Returns the outcome of a cell; None if the case has no values, or the call fails. Gradients are
        included if the check differentiates and the outputs are right."""
        outcome = cls._at(cell, False)
        if outcome is not None and "gradient" in cell.check.needs and not outcome.is_wrong:
            outcome = cls._at(cell, True) or outcome
        return outcome

    @classmethod
    def _at(cls, cell: Cell, with_gradients: bool, with_call: bool = True) -> Outcome | None:
        """Returns the outcome of a cell. None if the case has no values, the call fails, or no oracle
        exists. Gradients are included if `with_gradients`. Without `with_call` nothing is called."""
        if not isinstance(cell.case, Case):
            return None
        try:
            inputs = cell.inputs
            got = answer_arrays(cell, with_gradients) if with_call else {}
            expected = {} if got is None else expected_arrays(cell, inputs, with_gradients, got)
            if got is None or not expected:
                return None
            inputs_of_faults = fault_inputs(inputs, cell.implementation)
            return cls(inputs, got, expected, cell, inputs_of_faults, with_gradients)
        except (WrongAnswer, HarnessError, NotApplicable):
            return None

    @classmethod
    def from_passing_cell(cls, cell: Cell) -> Outcome | None:
        """Returns the outcome of a cell whose outputs are right, without a call: `got` is {}. None as in
        `from_cell`."""
        return cls._at(cell, False, with_call=False)

    @classmethod
    def from_call(
        cls, check: Check, inputs: Inputs, kernel: Implementation, got: Arrays, oracle: Oracle
    ) -> Outcome:
        """Returns the outcome of one call with the outputs `got`. The outputs that `oracle` expects are
        compared. `kernel` is any implementation of the operator."""
        cell = Cell(check, inputs.case, kernel)
        cell.inputs = inputs
        return cls(inputs, got, with_limits(oracle.expected, inputs), cell, inputs)


def fault_inputs(inputs: Inputs, implementation: Implementation) -> Inputs:
    """Returns the inputs with the mask in the form that the implementation's call has: a flag, an array,
    or -inf in the bias. Raises NotApplicable if the call has a flag and an array."""
    if (inputs.mask is None and inputs.mask_array is None) or inputs.operator.is_layer:
        return inputs
    arguments, backend = implementation.prepare(inputs).arguments, implementation.backend
    flags = [value for name, value in arguments.items() if re.search(FLAGS, name)]
    has_flag = any(value is not None and value is not False for value in flags)
    arrays = [value for value in arguments.values() if backend.is_array(value)]
    has_mask_array = any("bool" in backend.dtype_name(array) for array in arrays)
    if has_flag and has_mask_array:
        raise NotApplicable("a flag and a mask are given, which faults take in another form")
    if has_flag:
        return inputs
    if has_mask_array:
        return inputs.replace(form="dense")
    mask = inputs.dense_mask
    if inputs.bias is None or mask is None:
        return inputs
    bias = np.where(mask, inputs.bias, -np.inf)
    return inputs.replace(mask=None, mask_array=None, form="native", bias=bias)


def answer_arrays(cell: Cell, with_gradients: bool) -> Arrays | None:
    """Returns the outputs of a cell's implementation by name, in float64; None if the call fails. If
    `with_gradients`, the gradients are added under names such as "gradient of query"."""
    try:
        if not with_gradients:
            return dict(cell.run(cell.inputs).arrays)
        answer, gradients = vjp(cell)
        return {**answer.arrays, **{f"gradient of {n}": array for n, array in gradients.items()}}
    except ENDS:
        raise
    except BaseException:
        return None


def expected_arrays(cell: Cell, inputs: Inputs, with_gradients: bool, got: Arrays) -> Expected:
    """Returns the right arrays of a cell by name, each with its limit; {} without an oracle. If `output`
    depends on other outputs, these are taken from `got`."""
    try:
        rounding = cell.rounding
        expected = dict(Oracle.forward(inputs, rounding, "unmasked").expected_given(got))
        if with_gradients:
            if inputs.has_empty_rows:
                return {}
            right_gradients = Oracle.vjp(inputs, cell.cotangent, rounding).expected
            expected |= {f"gradient of {name}": want for name, want in right_gradients.items()}
    except (WrongAnswer, HarnessError, NotApplicable):
        return {}
    return with_limits(expected, inputs)


def with_limits(expected: Mapping[str, Bounded], inputs: Inputs) -> Expected:
    """Returns the arrays by name, each with a limit: its largest finite bound. The limits of codes are
    the bounds of single elements, because the step of the rounding differs."""
    return {
        name: (
            want.value,
            want.error
            if isinstance(inputs.output_dtype(name), Code)
            else float(np.max(want.error, initial=0.0, where=np.isfinite(want.error))),
        )
        for name, want in expected.items()
    }

"""The oracle: expected outputs for inputs, with the bound of rounding errors in one numerics class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance import references
from attention_conformance.backends.protocol import AS_CLASS, DeclaredRounding
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.rounding import Bounded, NoExtendedPrecision, Roundoffs
from attention_conformance.suite.judge.comparison import against_oracle, first_index
from attention_conformance.suite.judge.tolerance import (
    MODEL_ERROR,
    RMS_CLASSES,
    declared_roundoffs,
    grade,
    in_both_dtypes,
    rms_limit,
)
from attention_conformance.suite.judge.verdict import (
    HarnessError,
    Measured,
    NotApplicable,
    WrongAnswer,
)
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs

_CACHE: Cache[Outputs] = Cache(512)

UNJUDGED = ("nan", "unmasked", "unread")
"""The values of `Oracle.rows` for which the numbers of fully masked rows are not compared."""


@dataclass(frozen=True)
class Rounding:
    """The roundings of an implementation: its numerics class, and its other declarations.

    `beside`: under automatic mixed precision the second dtype, and True if the implementation flushes
    subnormals in that dtype; otherwise None."""

    numerics: str
    flushes: bool = False
    declared: DeclaredRounding = AS_CLASS
    beside: tuple[DType, bool] | None = None

    def roundoffs(self, inputs: Inputs, backward: bool = False) -> Roundoffs:
        """Returns the unit roundoffs in the dtype of the inputs, for the answer, or for a derivative if
        `backward`."""
        dtypes = [(inputs.dtype, self.flushes), *([self.beside] if self.beside else [])]
        first, *second = (
            declared_roundoffs(self.declared, self.numerics, dtype, flushes, backward)
            for dtype, flushes in dtypes
        )
        return in_both_dtypes(first, *second) if second else first


@dataclass(frozen=True)
class Oracle:
    """Expected arrays by name, each with its bound.

    `rows` are the expected fully masked rows: "zeros", "uniform", "nan", "unmasked" (as if the mask were
    absent; not judged), or "unread" (not judged, because nobody reads them).
    """

    outputs: Outputs
    inputs: Inputs
    rounding: Rounding
    rows: str = "zeros"

    @classmethod
    def forward(cls, inputs: Inputs, rounding: Rounding, rows: str = "zeros") -> Oracle:
        """Returns the oracle of the outputs for `inputs`. Raises HarnessError if the machine cannot judge
        float64."""
        mode = "uniform" if rows == "uniform" else "zeros"
        u = rounding.roundoffs(inputs)
        reference = references.find(inputs.operator).forward
        outputs = _cached(("forward", inputs.digest, u, mode), lambda: reference(inputs, u, mode))
        return cls(outputs, inputs, rounding, rows)

    @classmethod
    def vjp(
        cls, inputs: Inputs, cotangent: np.ndarray, rounding: Rounding, mode: str = "zeros",
        output: str = "output",
    ) -> Oracle:  # fmt: skip
        """Returns the oracle of the gradients for a cotangent of the shape of the output called `output`.
        `mode`: how fully masked rows are derived, one of `references.outputs.EMPTY_ROW_GRADIENTS`."""
        u = rounding.roundoffs(inputs, backward=True)
        reference = references.find(inputs.operator).vjp
        options = {} if output == "output" else {"output": output}
        key = ("vjp", inputs.digest, cotangent.tobytes(), u, mode, output)
        outputs = _cached(key, lambda: reference(inputs, cotangent, u, mode, **options))
        return cls(outputs, inputs, rounding)

    @classmethod
    def jvp(
        cls,
        inputs: Inputs,
        tangents: Mapping[str, np.ndarray],
        rounding: Rounding,
        mode: str = "zeros",
    ) -> Oracle:
        """Returns the oracle of the JVP of the output for `tangents` by name. `mode` as in `vjp`."""
        u = rounding.roundoffs(inputs, backward=True)
        reference = references.find(inputs.operator).jvp
        key = ("jvp", inputs.digest, *((n, t.tobytes()) for n, t in tangents.items()), u, mode)
        return cls(_cached(key, lambda: reference(inputs, tangents, u, mode)), inputs, rounding)

    @property
    def expected(self) -> Mapping[str, Bounded]:
        return self.outputs.arrays

    def bound(self, name: str = "output") -> np.ndarray:
        """Returns the bounds of the rounding errors of the array called `name`, element by element."""
        return self.expected[name].error

    def in_class(self, numerics: str) -> Oracle:
        """Returns the oracle of the outputs in another class."""
        return Oracle.forward(self.inputs, replace(self.rounding, numerics=numerics), self.rows)

    def given_outputs(self, arrays: Mapping[str, np.ndarray]) -> Oracle:
        """Returns an oracle whose `output` is computed from the other outputs in `arrays`. This matters
        if a call writes codes and then attends them. Returns this oracle if `output` depends on no other
        output."""
        inputs = references.find(self.inputs.operator).inputs_given(self.inputs, arrays)
        if inputs is self.inputs:
            return self
        return Oracle.forward(inputs, self.rounding, self.rows)

    def expected_given(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Bounded]:
        """Returns the expected arrays by name. `output` is computed from the other outputs in `arrays`,
        see `given_outputs`."""
        return {**self.expected, "output": self.given_outputs(arrays).expected["output"]}

    def judge(self, arrays: Mapping[str, np.ndarray]) -> Measured:
        """Compare outputs by name with the expected arrays. Returns the figures of the worst output, with
        the grade and root mean square of the array `output`.

        If `output` depends on other outputs, these are judged first. Raises WrongAnswer "value" or
        "non-finite" with the worst element, and HarnessError if a judged element of the oracle is NaN.
        """
        output_oracle = self.given_outputs(arrays)
        other_names = [name for name in arrays if name != "output"]
        order = ["output", *other_names] if output_oracle is self else [*other_names, "output"]
        measured_by_name = {
            name: output_oracle._judge_output(arrays[name])
            if name == "output"
            else self._judge_other(name, arrays[name])
            for name in order
        }
        worst = measured_by_name["output"]
        grade, rms = worst.grade, worst.rms
        for name in other_names:
            worst.worst_of(measured_by_name[name])
        worst.grade, worst.rms = grade, rms
        return worst

    def _judge_output(self, got: np.ndarray) -> Measured:
        """Judge the array `output`, and return its figures. Raises WrongAnswer, HarnessError, and
        NotApplicable if no judged element has a bound."""
        want, inputs = self.expected["output"], self.inputs
        axes = inputs.operator.outputs(inputs.case)["output"]
        fully_masked_rows = np.broadcast_to(
            inputs.rows_along(inputs.fully_masked_rows, axes), got.shape
        )
        judged = judged_elements(got, fully_masked_rows, self.rows)
        has_bound = np.isfinite(want.error) | np.isnan(want.value)
        if judged.any() and not has_bound[judged].any():
            raise NotApplicable("in this dtype the worst of all roundings has no bound here")
        error, measured, deviation = against_oracle(
            got, want.value, want.error, judged, inputs.dtype, self.rounding.numerics, axes=axes
        )
        measured.grade = grade(error, lambda n: self.in_class(n).expected["output"].error)
        self._measure_rms(error, judged, measured)
        if deviation is not None:
            deviation.measured = measured
            raise deviation
        rms = measured.rms
        if rms is not None and rms > MODEL_ERROR and self.rounding.numerics in RMS_CLASSES:
            count = self._independent_count(judged)
            limit = rms_limit(count)
            if rms > limit:
                raise WrongAnswer(
                    "value",
                    f"root mean square of error over standard deviation {rms:.3g}, at most {limit:.3g} "
                    f"where {count:.0f} errors are independent: the error is systematic",
                    measured,
                )
        return measured

    def _independent_count(self, judged: np.ndarray) -> float:
        """Returns a lower limit of the number of independent errors in the variance model.

        Elements with common roundings are a group: a row if scores or weights are stored, else one
        element. Groups of equal values have equal errors, and count as one error. The limit is the number
        of elements divided by that of the largest group.
        """
        modelled = self._modelled_elements(judged)
        length = 1 if self.rounding.numerics == "exact" else modelled.shape[-1]
        groups = self.expected["output"].value.reshape(-1, length)
        _, group = np.unique(groups, axis=0, return_inverse=True)
        sizes = np.bincount(group.ravel(), modelled.reshape(groups.shape).sum(-1))
        return modelled.sum() / sizes.max()

    def _modelled_elements(self, judged: np.ndarray) -> np.ndarray:
        """Returns a boolean array: True for the elements that the variance model covers. The model has no
        underflow, so elements near underflow are left out."""
        deviation, want = self.outputs.deviation, self.expected["output"].value
        assert deviation is not None
        fmt = self.inputs.dtype
        large = np.abs(want) * fmt.unit_roundoff > fmt.smallest_normal
        return (deviation > 0) & judged & np.isfinite(want) & large

    def _measure_rms(self, error: np.ndarray, judged: np.ndarray, measured: Measured) -> None:
        """Set `measured.rms`, the root mean square of error / standard deviation, if the model gives
        one."""
        deviation = self.outputs.deviation
        if deviation is None or not error.size:
            return
        modelled = self._modelled_elements(judged)
        if modelled.any():
            scaled = error[modelled].astype(np.float64) / deviation[modelled]
            measured.rms = float(np.sqrt(np.mean(np.square(scaled))))

    def _judge_other(self, name: str, got: np.ndarray) -> Measured:
        """Judge an output other than `output`, and return its figures. Fully masked rows are left out:
        there the weights follow from the output, and the log-sum-exp is elected."""
        want, inputs = self.expected[name], self.inputs
        axes = inputs.operator.outputs(inputs.case)[name]
        judged = np.broadcast_to(~inputs.rows_along(inputs.fully_masked_rows, axes), got.shape)
        _, measured, deviation = against_oracle(
            got,
            want.value,
            want.error,
            judged,
            inputs.output_dtype(name),
            self.rounding.numerics,
            f"{name} ",
            axes,
        )
        if deviation is not None:
            raise deviation
        return measured


def judged_elements(got: np.ndarray, fully_masked_rows: np.ndarray, rows: str) -> np.ndarray:
    """Returns a boolean array: True for the elements of an answer that are judged.

    The elements of fully masked rows are left out if `rows` is in `UNJUDGED`. Raises WrongAnswer
    "non-finite" if such an element is elected to be NaN and is a number.
    """
    if rows == "nan":
        wrong = fully_masked_rows & ~np.isnan(got)
        if wrong.any():
            at = first_index(wrong)
            raise WrongAnswer(
                "non-finite", f"element {at} of a row without keys: got {got[at]!r}, elected NaN"
            )
    return ~fully_masked_rows if rows in UNJUDGED else np.ones(fully_masked_rows.shape, bool)


def _cached(key: tuple, compute: object) -> Outputs:
    """Returns the outputs of a reference from the cache, or else those of `compute()`. Raises
    HarnessError if the machine cannot judge float64."""
    try:
        with np.errstate(all="ignore"):
            return _CACHE.get(key, compute)  # type: ignore[arg-type]
    except NoExtendedPrecision as error:
        raise HarnessError(str(error)) from error

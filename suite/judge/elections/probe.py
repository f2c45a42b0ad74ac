"""The probe: puts inputs to an implementation, and tells whose answer it gave."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.protocol import ForwardOnly, Implementation
from suite.judge import refusal
from suite.judge.answer import names_of, parts, swap_heads_and_length, vjp_of_lse
from suite.judge.oracle import Oracle, Rounding
from suite.judge.tolerance import ratios
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.case import Case
from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs, draw, draw_cotangent
from suite.spec.vocabulary import NUMERICS, OPERANDS

HIDDEN_KEY = 3
"""The key that probes hide from every row; the last one where there are fewer."""

EMPTY_ROW = 2
"""The row that probes leave without keys; the last one where there are fewer."""


def empty_row(inputs: Inputs) -> int:
    """The index of `EMPTY_ROW` in the inputs."""
    return min(EMPTY_ROW, inputs.sizes.Lq - 1)


def hidden_key(inputs: Inputs) -> int:
    """The index of `HIDDEN_KEY` in the inputs."""
    return min(HIDDEN_KEY, inputs.sizes.Lk - 1)


class Probe:
    """One implementation in one dtype.

    A probe tells meanings apart, not roundings: answers are recognised in a wide numerics class; in
    float64 in one that recognises what was computed in float32 inside. `any_error`: every error is an
    answer; otherwise those alone that refuse a call (`suite.judge.refusal`), if a refusal is one.
    """

    def __init__(
        self,
        implementation: Implementation,
        dtype: DType,
        any_error: bool = True,
        may_refuse: bool = True,
    ) -> None:
        if not implementation.declared.takes_parameters:
            raise NotApplicable("the layer takes no parameters: no answer can be recognised")
        self.implementation, self.dtype = implementation, dtype
        self.any_error, self.may_refuse = any_error, may_refuse
        self.operator = implementation.operator
        least = "single" if dtype.name == "f64" else "stepwise"
        wide = max(implementation.numerics_for(dtype), least, key=NUMERICS.index)
        flushes = implementation.elected("subnormal-output", dtype) == "flushed"
        if self.operator.is_layer:
            flushes = dtype.name != "f16"
        self.rounding = Rounding(wide, flushes, implementation.declared)

    def inputs(self, mask: str = "none", **changes: Any) -> Inputs:
        """The operator's probe with a mask, varied."""
        return self.drawn(self.operator.questions.probe, mask).replace(**changes)

    def drawn(self, probe: str, mask: str = "none") -> Inputs:
        """The inputs of a probe with a mask, in the sizes nearest to its own that the implementation
        takes."""
        case = Case.parse(probe.format(mask=mask, dt=self.dtype.name))
        return draw(self.implementation.nearest_supported(case) or case)

    def cross(self, **changes: Any) -> Inputs:
        """Inputs with other numbers of queries than of keys, and no mask but what `changes` say."""
        return self.cross_with_its_mask().replace(**{"mask": None, "form": "native", **changes})

    def cross_with_its_mask(self) -> Inputs:
        """The operator's probe of gradients with the mask that it has."""
        return self.drawn(self.operator.questions.gradient_probe)

    def require(self, inputs: Inputs, lacking: bool = False) -> None:
        """Raise NotApplicable where the implementation does not support the inputs.

        `lacking`: features that it lacks are no reason, since that is what is asked.
        """
        reason = self.implementation.refuses(inputs)
        if reason is None or (lacking and reason == self.implementation.missing(inputs.needs)):
            return
        raise NotApplicable(reason)

    def arrays(self, inputs: Inputs, lacking: bool = False) -> dict[str, np.ndarray] | None:
        """The outputs by name in float64, or None where the framework raises. Raises Refused where a
        person's function refuses, and Deviation "raised" and "shape".

        `lacking`: the inputs may need what the implementation lacks; that it raises is the answer.
        """
        self.require(inputs, lacking)
        # What is observed is remembered, and must not hang on programs of cells before this one.
        prepared = self.implementation.prepare_fresh(inputs)
        try:
            native = prepared()
        except Exception as error:
            self._take_as_answer(error)
            return None
        backend = self.implementation.backend
        arrays = {
            name: swap_heads_and_length(backend.to_numpy(array), prepared)
            for name, array in parts(native, prepared).items()
            if array is not None
        }
        want, got = inputs.output_shape("output"), arrays["output"].shape
        if got != want:
            raise Deviation("shape", f"expected shape {want} of the output, got {got}")
        return arrays

    def _take_as_answer(self, error: Exception) -> None:
        """Raise Refused for an error by which a person's function refuses to answer, and Deviation
        "raised" for an error that is no answer."""
        person = self.implementation.declared.is_user_code
        inside = self.implementation.backend.raised_inside(error)
        if person and isinstance(inside, NotImplementedError):
            raise refusal.outcome(self.implementation, error) from error
        if self.any_error:
            return
        refuses = refusal.refuses(self.implementation, error)
        if not refuses or (person and not self.may_refuse):
            raise refusal.outcome(self.implementation, error) from error

    def values(self, inputs: Inputs, lacking: bool = False) -> np.ndarray | None:
        """The output in float64, or None where the framework raises."""
        arrays = self.arrays(inputs, lacking)
        return None if arrays is None else arrays["output"]

    def matches(
        self, got: np.ndarray, inputs: Inputs, rows: str = "zeros", where: np.ndarray | None = None
    ) -> bool:
        """Whether `got` is the output for `inputs`, in those rows (B, H, Lq) that `where` chooses."""
        oracle = Oracle.forward(inputs, self.rounding, rows)
        output = got
        if where is not None:
            axes = inputs.operator.outputs(inputs.case)["output"]
            expected = oracle.expected["output"].value.astype(np.float64)
            output = np.where(inputs.rows_along(where, axes), got, expected)
        try:
            oracle.judge({"output": output})
        except Deviation:
            return False
        return True

    def rows(self, got: np.ndarray | None, inputs: Inputs) -> str:
        """Name what stands in the rows without keys: zeros, nan, uniform, unmasked, or other."""
        if got is None:
            return "raises"
        rows = inputs.fully_masked_rows
        axes = inputs.operator.outputs(inputs.case)["output"]
        chosen = np.broadcast_to(inputs.rows_along(rows, axes), got.shape)
        if np.isnan(got[chosen]).all():
            return "nan"
        for name in ("zeros", "uniform"):
            if self.matches(got, inputs, name, rows):
                return name
        seen = inputs.attends | ~inputs.attends.any(-1, keepdims=True)
        visible = inputs.replace(bias=None, mask=None, mask_array=seen, form="dense")
        if self.matches(got, visible, "zeros", rows):
            return "unmasked"
        return "other"

    def cotangent(self, inputs: Inputs) -> np.ndarray:
        """What the probe's output is differentiated with."""
        return draw_cotangent(inputs.case, name=f"{inputs.case.id}/election")

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
        """Gradients of query, key and value, or None where the framework raises."""
        self.require(inputs)
        backend = self.implementation.backend
        prepared = self.implementation.differentiable_fresh(inputs)
        names = names_of(prepared, inputs)
        wrt = [name for name in OPERANDS if name in names]
        values = np.ascontiguousarray(swap_heads_and_length(cotangent, prepared))
        native = backend.array(values, self.dtype)
        try:
            _, gradients = backend.vjp(prepared, wrt, native)
        except ForwardOnly as error:
            raise NotApplicable(f"forward only: {error}") from error
        except Exception as error:
            self._take_as_answer(error)
            return None
        if not gradients or any(gradient is None for gradient in gradients.values()):
            raise NotApplicable(
                "the answer has another dtype than the cotangent, or hangs not on it"
            )
        return {
            n: swap_heads_and_length(backend.to_numpy(g), prepared) for n, g in gradients.items()
        }

    def lse_gradients(self, inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
        """Gradients of the log-sum-exp by query and key, 0 where there are none; None where the framework
        raises, or has no gradient function."""
        self.require(inputs)
        try:
            prepared, gradients = vjp_of_lse(self.implementation, inputs, cotangent)
        except ForwardOnly as error:
            if error.declared:
                raise NotApplicable(f"forward only: {error}") from error
            return None
        except Exception as error:
            self._take_as_answer(error)
            return None
        backend, zeros = self.implementation.backend, np.zeros(1)
        return {
            n: zeros if g is None else swap_heads_and_length(backend.to_numpy(g), prepared)
            for n, g in gradients.items()
        }

    def matches_gradients(
        self,
        got: dict[str, np.ndarray],
        inputs: Inputs,
        cotangent: np.ndarray,
        mode: str,
        of: str = "output",
    ) -> bool:
        """Whether `got` are the gradients of `inputs` with rows without keys read as `mode`."""
        want = Oracle.vjp(inputs, cotangent, self.rounding, mode, of).expected
        return all(
            (ratios(values - want[name].value, want[name].error) <= 1).all()
            for name, values in got.items()
        )

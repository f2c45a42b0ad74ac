"""The probe: calls an implementation on designed inputs, and finds the reference that the answer
follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.protocol import (
    ForwardOnly,
    Implementation,
    NoKernel,
    PreparedCall,
)
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge import refusal
from attention_conformance.suite.judge.answer import (
    differentiable_arrays,
    outputs_by_name,
    swap_heads_and_length,
    vjp_of_lse,
)
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.tolerance import ratios
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.vocabulary import NUMERICS

HIDDEN_KEY = 3
"""The key that probes hide from every row; the last key if there are fewer."""

EMPTY_ROW = 2
"""The row that probes mask fully; the last row if there are fewer."""

ABSORBED = 1 / 16
"""The bound of an array's errors if scores absorbed a finite penalty, as a part of its largest element.

Some kernels hide keys by the addition of -1e4 (the BERT of google-research/bert) or of another finite
number. If every key of a row has the penalty, the row is unmasked, with scores that have lost their last
bits: in float32 with -1e6 the scores are exact to 1/32.
"""


def empty_row(inputs: Inputs) -> int:
    """Returns the index of the row that probes mask fully in these inputs."""
    return min(EMPTY_ROW, inputs.sizes.Lq - 1)


def hidden_key(inputs: Inputs) -> int:
    """Returns the index of the key that probes hide from every row in these inputs."""
    return min(HIDDEN_KEY, inputs.sizes.Lk - 1)


class Probe:
    """Calls one implementation in one dtype, and recognises its answers.

    A probe ignores roundings: answers are compared within the bounds of a wide numerics class, in float64
    those of a class that computes in float32. `any_error`: every error is an answer; otherwise only
    refusals are (`suite.judge.refusal`), for user functions only if `may_refuse`, that is, if "raises" is
    an option of the question.
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
        narrowest = "single" if dtype.name == "f64" else "stepwise"
        numerics = max(implementation.numerics_for(dtype), narrowest, key=NUMERICS.index)
        flushes = implementation.declared_answer("subnormal-output", dtype) == "flushed"
        if self.operator.is_layer:
            flushes = dtype.name != "f16"
        self.rounding = Rounding(numerics, flushes, implementation.declared.rounding)

    def inputs(self, mask: str = "none", **changes: Any) -> Inputs:
        """Returns the inputs of the operator's probe case with a mask, and with `changes` of fields."""
        return self.draw(self.operator.questions.probe, mask).replace(**changes)

    def draw(self, case_id: str, mask: str = "none") -> Inputs:
        """Returns the inputs of a case, in the nearest sizes that the implementation supports. `case_id`
        is a format string with the fields {mask} and {dt}."""
        case = Case.parse(case_id.format(mask=mask, dt=self.dtype.name))
        return draw(self.implementation.nearest_supported(case) or case)

    def cross_inputs(self, **changes: Any) -> Inputs:
        """Returns inputs with Lq != Lk, without a mask unless `changes` has one."""
        return self.gradient_inputs().replace(**{"mask": None, "form": "native", **changes})

    def gradient_inputs(self) -> Inputs:
        """Returns the inputs of the operator's probe case of gradients, with the mask of that case."""
        return self.draw(self.operator.questions.gradient_probe)

    def require(self, inputs: Inputs, may_lack: bool = False) -> None:
        """Raise NotApplicable if the implementation does not support the inputs. With `may_lack`, lacking
        features are allowed: the question is about them.
        """
        reason = self.implementation.refuses(inputs)
        if reason is None or (may_lack and reason == self.implementation.missing(inputs.needs)):
            return
        raise NotApplicable(reason)

    def arrays(
        self, inputs: Inputs, may_lack: bool = False, prepared: PreparedCall | None = None
    ) -> dict[str, np.ndarray] | None:
        """Calls the implementation. Returns the outputs by name in float64, or None if it raises an error
        that counts as an answer. Raises Refused if a user function refuses, and WrongAnswer "raised" and
        "shape".

        `may_lack` as in `require`. `prepared`: the call, by default that of the implementation.
        """
        self.require(inputs, may_lack)
        prepared = prepared or self.implementation.prepare(inputs)
        try:
            native = prepared()
        except Exception as error:
            self._require_answer(error)
            return None
        return self.read(native, inputs, prepared)

    def read(self, native: Any, inputs: Inputs, prepared: PreparedCall) -> dict[str, np.ndarray]:
        """Returns the outputs of a call by name, in float64, with all axes of the operator's outputs.
        Raises WrongAnswer "type" and "shape"."""
        backend = self.implementation.backend
        arrays = {
            name: swap_heads_and_length(backend.to_numpy(array), prepared)
            for name, array in outputs_by_name(native, prepared).items()
            if array is not None
        }
        want, got = inputs.output_shape("output"), arrays["output"].shape
        if got != want:
            raise WrongAnswer("shape", f"expected shape {want} of the output, got {got}")
        if inputs.squeezed:
            return {name: x.reshape(inputs.full_shape(name)) for name, x in arrays.items()}
        return arrays

    def _require_answer(self, error: Exception) -> None:
        """Return if this error counts as an answer to the question. Raises Refused if a user function
        refuses by it or a forced kernel does not exist, else WrongAnswer. What does not exist answers no
        question."""
        is_user_code = self.implementation.declared.is_user_code
        inside = self.implementation.backend.raised_inside(error)
        if isinstance(inside, NotImplementedError if is_user_code else NoKernel):
            raise refusal.outcome(self.implementation, error) from error
        if self.any_error:
            return
        refuses = refusal.refuses(self.implementation, error)
        if not refuses or (is_user_code and not self.may_refuse):
            raise refusal.outcome(self.implementation, error) from error

    def values(
        self, inputs: Inputs, may_lack: bool = False, prepared: PreparedCall | None = None
    ) -> np.ndarray | None:
        """Returns the array `output` in float64; None if an error is the answer. See `arrays`."""
        arrays = self.arrays(inputs, may_lack, prepared)
        return None if arrays is None else arrays["output"]

    def matches(
        self, got: np.ndarray, inputs: Inputs, rows: str = "zeros", where: np.ndarray | None = None
    ) -> bool:
        """True if `got` is the right output for `inputs`. `where` (B, H, Lq): only rows where it is True
        are compared. `rows`: the expected fully masked rows; see `Oracle`."""
        oracle = Oracle.forward(inputs, self.rounding, rows)
        output = got
        if where is not None:
            axes = inputs.operator.outputs(inputs.case)["output"]
            expected = oracle.expected["output"].value.astype(np.float64)
            output = np.where(inputs.rows_along(where, axes), got, expected)
        try:
            oracle.judge({"output": output})
        except WrongAnswer:
            return False
        return True

    def name_of_rows(self, got: np.ndarray | None, inputs: Inputs) -> str:
        """Returns the name of the values in fully masked rows: "nan", "zeros", "uniform" or "unmasked";
        "raises" if `got` is None. Raises WrongAnswer "election" for other values."""
        if got is None:
            return "raises"
        rows = inputs.fully_masked_rows
        axes = inputs.operator.outputs(inputs.case)["output"]
        in_rows = np.broadcast_to(inputs.rows_along(rows, axes), got.shape)
        if np.isnan(got[in_rows]).all():
            return "nan"
        for name in ("zeros", "uniform"):
            if self.matches(got, inputs, name, rows):
                return name
        want = Oracle.forward(with_all_keys(inputs), self.rounding).expected["output"]
        if is_near(got, want, in_rows):
            return "unmasked"
        raise WrongAnswer(
            "election",
            "fully masked rows are neither zeros, nor NaN, nor the mean of all values, nor as if "
            f"nothing were masked: {got[in_rows][:3]}",
        )

    def cotangent(self, inputs: Inputs) -> np.ndarray:
        """Returns a cotangent of the output for these inputs."""
        return draw_cotangent(inputs.case, name=f"{inputs.case.id}/election")

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
        """Returns the gradients of the operands by name, in float64, for a cotangent of the output; None
        if an error is the answer. Raises NotApplicable if the call has no gradients."""
        self.require(inputs)
        backend = self.implementation.backend
        prepared = self.implementation.differentiable(inputs)
        names = differentiable_arrays(prepared, inputs)
        wrt = [name for name in inputs.operands if name in names]
        values = np.ascontiguousarray(swap_heads_and_length(cotangent, prepared))
        native = backend.array(values, self.dtype)
        try:
            _, gradients = backend.vjp(prepared, wrt, native)
        except ForwardOnly as error:
            raise NotApplicable(f"forward only: {error}") from error
        except Exception as error:
            self._require_answer(error)
            return None
        if not gradients or any(gradient is None for gradient in gradients.values()):
            raise NotApplicable(
                "the answer has another dtype than the cotangent, or hangs not on it"
            )
        return {
            n: swap_heads_and_length(backend.to_numpy(g), prepared) for n, g in gradients.items()
        }

    def lse_gradients(self, inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray] | None:
        """Returns the gradients of the log-sum-exp with respect to query and key, by name; zeros (1,) for
        a missing one. None if the framework raises, or has no gradient function."""
        self.require(inputs)
        try:
            prepared, gradients = vjp_of_lse(self.implementation, inputs, cotangent)
        except ForwardOnly as error:
            if error.declared:
                raise NotApplicable(f"forward only: {error}") from error
            return None
        except Exception as error:
            self._require_answer(error)
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
        output: str = "output",
        may_absorb: bool = False,
    ) -> bool:
        """True if `got` are the right gradients of the output called `output` for `inputs`. `mode`: how
        the reference treats fully masked rows, a name of `references.outputs.EMPTY_ROW_GRADIENTS`.
        `may_absorb`: scores may have lost their last bits (see `ABSORBED`)."""
        want = Oracle.vjp(inputs, cotangent, self.rounding, mode, output).expected
        if may_absorb:
            return all(is_near(values, want[name]) for name, values in got.items())
        return all(
            (ratios(values - want[name].value, want[name].error) <= 1).all()
            for name, values in got.items()
        )


def with_all_keys(inputs: Inputs) -> Inputs:
    """Returns the inputs whose fully masked rows attend every key."""
    pairs = inputs.attends | inputs.fully_masked_rows[..., None]
    return inputs.replace(bias=None, mask=None, mask_array=pairs, form="dense")


def is_near(got: np.ndarray, want: Bounded, where: np.ndarray | bool = True) -> bool:
    """True if `got` equals `want` within `ABSORBED`. Only elements where `where` is True are compared."""
    value = want.value.astype(np.float64)
    bound = want.error + ABSORBED * np.abs(value[np.broadcast_to(where, value.shape)]).max()
    return bool((~np.asarray(where) | (np.abs(got - value) <= bound)).all())

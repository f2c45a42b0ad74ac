"""The cases that a level stores in vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_conformance.backends.masks import rank4
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.answer import differentiable_arrays
from attention_conformance.suite.judge.check import cases_at
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.vectors.files import SUFFIX, type_of, typed
from attention_conformance.suite.vectors.options import Selection


class Output(NamedTuple):
    """A tensor of an answer: a letter for each axis, its shape, and its narrowest safetensors type."""

    axes: str
    shape: tuple[int, ...]
    type: str


@dataclass(frozen=True)
class StoredCase:
    """A case stored in the vectors.

    - `checks`: names of the checks that judge its answer
    - `differentiated`: True if the answer has gradients
    - `seed`: the seed of the inputs
    """

    case: Case
    checks: tuple[str, ...]
    differentiated: bool
    seed: int

    @property
    def file(self) -> str:
        """The file name of the case, and of its answer."""
        return f"{self.case.id.replace('/', '__')}{SUFFIX}"

    def inputs(self) -> Inputs:
        """Returns the inputs of the case."""
        return draw(self.case, self.seed)

    def cotangent(self) -> np.ndarray | None:
        """Returns the cotangent of the output; None if the answer has no gradients."""
        return draw_cotangent(self.case, self.seed) if self.differentiated else None

    def answers(self) -> dict[str, Output]:
        """Returns the tensors of an answer by name: outputs, and gradients as `grad.query`."""
        inputs, arrays = self.inputs(), operands(self.inputs())
        answers = {
            name: Output(axes, inputs.full_shape(name), type_of(inputs.output_dtype(name)))
            for name, axes in inputs.operator.outputs(self.case).items()
        }
        call = PreparedCall(lambda: None, dict(inputs.arrays))
        for name in differentiable_arrays(call, inputs) if self.differentiated else ():
            shape, fmt = arrays[name].shape, type_of(inputs.dtype)
            answers[f"grad.{name}"] = Output(self.axes(name), shape, fmt)
        return answers

    def axes(self, name: str) -> str:
        """Returns a letter for each axis of the input tensor called `name`."""
        if name == "cotangent":
            return self.case.operator.outputs(self.case)["output"]
        inputs = self.inputs()
        letters = inputs.axes(name) if name in inputs.arrays else ""
        return "bhqk" if name in ("mask", "bias") else letters

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the input tensors of the case's file by name, in their stored types. The effective
        scale is included, even if it is the default."""
        inputs, cotangent = self.inputs(), self.cotangent()
        integers = inputs.operator.array_kinds.integers
        arrays = {
            name: typed(values, "I64" if name in integers else type_of(self.case.dtype_of(name)))
            for name, values in operands(inputs).items()
        }
        if inputs.dense_mask is not None:
            arrays["mask"] = typed(rank4(inputs.dense_mask), "BOOL")
        if cotangent is not None:
            arrays["cotangent"] = typed(cotangent, type_of(inputs.dtype))
        scale = inputs.effective_scale if inputs.operator.option("scale") is not None else None
        numbers = {"scale": scale} | {name: self.case.option(name) for name in FEATURES}
        floats = {name: value for name, value in numbers.items() if isinstance(value, float)}
        return arrays | {name: typed(np.array(value), "F64") for name, value in floats.items()}


def operands(inputs: Inputs) -> dict[str, np.ndarray]:
    """Returns the arrays of inputs by name; the bias is reshaped to rank 4."""
    return {n: rank4(a) if n == "bias" else a for n, a in inputs.arrays.items()}


def stored_cases(selection: Selection) -> list[StoredCase]:
    """Returns the stored cases of a selection, each once, in the order of the checks."""
    operators, dtypes = selection.operator or OPERATORS, selection.dtype or DTYPES
    checks: dict[Case, list[str]] = {}
    differentiated = set()
    for check in all_checks().values():
        if not check.single_answer:
            continue
        for case in cases_at(selection.level, check.cases, operators):
            if isinstance(case, Case) and case.dtype.name in dtypes:
                checks.setdefault(case, []).append(check.name)
                if "gradient" in (*check.needs, *case.needs):
                    differentiated.add(case)
    return [
        StoredCase(case, tuple(names), case in differentiated, selection.seed)
        for case, names in checks.items()
    ]

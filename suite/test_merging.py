"""Promise: partial outputs can be merged in any nesting."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_close
from attention_conformance.suite.spec.catalogue import cases_of
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs

FOUR = "merge/none/mha/{dt}/b2h3q5k4d8"
CASES = (FOUR, f"{FOUR}/empty", f"{FOUR}/apart")


class Part:
    """An output (B, H, Lq, Dv) and its log-sum-exp (B, H, Lq), each with an error bound."""

    def __init__(
        self, output: np.ndarray, lse: np.ndarray, output_error: np.ndarray, lse_error: np.ndarray
    ) -> None:
        self.output, self.lse = output, lse
        self.output_error, self.lse_error = output_error, lse_error


def parts_of(inputs: Inputs) -> list[Part]:
    """Returns the parts of a case. Their error bounds are 0, because they are inputs."""
    arrays = zip(inputs.arrays["partial_output"], inputs.arrays["partial_lse"], strict=True)
    return [Part(o, lse, np.zeros(o.shape), np.zeros(lse.shape)) for o, lse in arrays]


def merged(cell: Cell, parts: list[Part]) -> Part:
    """Returns the implementation's merge of parts, with bounds of its errors relative to a merge of exact
    parts.

    Each bound is that of the call plus the propagated errors of the parts (`references.merge`). Parts
    with errors are merged two at a time."""
    inputs = with_parts(cell.inputs, parts)
    answer = cell.run(inputs)
    bound = {name: cell.oracle(inputs).bound(name) for name in ("output", "lse")}
    output_error, lse_error = bound["output"], bound["lse"]
    if any(part.output_error.any() or part.lse_error.any() for part in parts):
        first, second = parts
        weight_error = np.tanh((first.lse_error + second.lse_error) / 4)
        # A part without weight contributes no error.
        weight_error = weight_error * ~(np.isneginf(first.lse) | np.isneginf(second.lse))
        difference = np.abs(first.output - second.output)
        output_error = output_error + weight_error[..., None] * difference
        output_error = output_error + first.output_error + second.output_error
        lse_error = lse_error + np.maximum(first.lse_error, second.lse_error)
    return Part(
        answer.arrays["output"].copy(), answer.arrays["lse"].copy(), output_error, lse_error
    )


def with_parts(inputs: Inputs, parts: list[Part]) -> Inputs:
    """Returns the case with other parts, rounded to its dtypes."""
    output = np.stack([round_to(part.output, inputs.dtype) for part in parts])
    lse = np.stack([round_to(part.lse, inputs.dtype.widened) for part in parts])
    return inputs.replace(partial_output=output, partial_lse=lse)


@check(cases_of(*CASES), needs=("several-parts",))
def test_nesting(cell: Cell) -> None:
    """Four parts give one result merged at once, one after the other, and two by two."""
    parts = parts_of(cell.inputs)
    at_once = merged(cell, parts)
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = merged(cell, [one_by_one, part])
    pairs = [merged(cell, parts[:2]), merged(cell, parts[2:])]
    for what, nested in (("one after the other", one_by_one), ("two and two", merged(cell, pairs))):
        for name in ("output", "lse"):
            got, want = getattr(nested, name), getattr(at_once, name)
            limit = getattr(nested, f"{name}_error") + getattr(at_once, f"{name}_error")
            same = np.isneginf(got) & np.isneginf(want)
            got, want = np.where(same, 0.0, got), np.where(same, 0.0, want)
            expect_close(got, want, limit, f"the {name} of parts merged {what}, and at once")

"""Promise: a malformed problem raises an exception."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.answer import outputs_by_name
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.verdict import (
    HarnessError,
    NotApplicable,
    WrongAnswer,
    first_line,
)
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed import MALFORMED_CASES, MalformedCase


@check(lambda level: MALFORMED_CASES, applies_to=lambda declared: declared.validates)
def test_bad_problem(cell: Cell) -> None:
    """An implementation may raise when a layer is built, when it is called, or when the output is read.

    A problem with a page that does not exist, or with a wrong length of a sample, may also have an answer
    without a trace of other samples' memory: rows of other samples keep their bits, and the sample's own
    rows do not depend on pages of other samples.

    A user function is tested only as a drop-in replacement for the framework's own attention, and only
    with problems that the latter refuses.
    """
    if not isinstance(cell.case, MalformedCase):
        raise HarnessError(f"expected a malformed problem, got {cell.case.id}")
    inputs = cell.case.inputs(cell.seed)
    answer = describe_answer(cell.implementation, inputs)
    if not answer:
        return
    native = cell.implementation.beside
    if native is not None and describe_answer(native, inputs):
        raise NotApplicable("the framework's own attention answers it, too")
    if cell.case.contained is None:
        raise WrongAnswer("no-raise", f"{cell.case.text}: answered with {answer}, must raise")
    got = cell.run(inputs).values.copy()
    for problem, judged in cell.case.contained(cell.case.well_formed(cell.seed), inputs):
        want = np.where(judged, cell.run(problem).values, 0.0)
        expect_bitwise(np.where(judged, got, 0.0), want, "no-raise", cell.case.text)


ARGUMENTS = (
    "sdpa/none/mha/f32/b2h3q17k23d8",
    "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
    "additive/causal/mha/f32/b2h1q7k7d12/e12.12.12.12/identity",
    "dot/causal+pad/mha/f32/b7h1q7k7d8/e8.8.8.8",
    "layer-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
    "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3",
)
"""Problems of other checks; the malformed part is an argument that only some frameworks have."""


@check(cases_of(Ask(*ARGUMENTS)), applies_to=lambda declared: not declared.is_user_code)
def test_bad_argument(cell: Cell) -> None:
    """An implementation raises for each argument that its adapter declares as malformed."""
    backend, calls = cell.implementation.backend, cell.implementation.refused(cell.inputs)
    if not calls:
        raise NotApplicable("the adapter declares no malformed arguments")
    answered_names = []
    for name, call in calls.items():
        try:
            answer = call()
            # Lazy frameworks may raise only when the answer is read.
            for array in answer if isinstance(answer, tuple) else (answer,):
                if backend.is_array(array):
                    backend.to_numpy(array)
        except Exception:
            continue
        answered_names.append(name)
    if answered_names:
        count = f"{len(answered_names)} of {len(calls)} bad arguments are answered, must raise"
        raise WrongAnswer("no-raise", f"{count}: {', '.join(answered_names)}")


def describe_answer(implementation: Implementation, inputs: Inputs) -> str:
    """Returns a description of the answer to a malformed problem; "" if the implementation raises.

    An error while a layer is built counts, too: that happens when the call is prepared. For other
    operators such an error comes from the adapter, which cannot pass the problem, and NotApplicable is
    raised."""
    backend = implementation.backend
    try:
        prepared = implementation.prepare(inputs)
    except Exception as error:
        if inputs.operator.is_layer:
            return ""
        reason = f"the adapter cannot pass the problem: {first_line(error)}"
        raise NotApplicable(reason) from error
    try:
        output = outputs_by_name(prepared(), prepared)["output"]
        if not backend.is_array(output):
            return "an object that is not an array"
        # Lazy frameworks may raise only when the answer is read.
        backend.to_numpy(output)
    except Exception:
        return ""
    return f"shape {tuple(output.shape)}"

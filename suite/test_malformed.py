"""Promise: a problem that has no meaning is refused with an exception, never answered."""

from __future__ import annotations

from backends.protocol import Implementation
from suite.judge.answer import parts
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, HarnessError, NotApplicable, first_line
from suite.spec.catalogue import Ask, asked
from suite.spec.inputs import Inputs
from suite.spec.malformed import MALFORMED_CASES, MalformedCase


@check(lambda level: MALFORMED_CASES, applies_to=lambda declared: declared.validates)
def test_bad_problem(cell: Cell) -> None:
    """An implementation may raise as a layer is built, as it is called, or as the answer is read.

    A person's function is asked where it stands in for the framework's own attention, and held to what
    that refuses.
    """
    if not isinstance(cell.case, MalformedCase):
        raise HarnessError(f"{cell.case.id} is not malformed")
    inputs = cell.case.inputs(cell.seed)
    answer = answer_to(cell.implementation, inputs)
    if not answer:
        return
    native = cell.implementation.beside
    if native is not None and answer_to(native, inputs):
        raise NotApplicable("the framework's own attention answers it, too")
    raise Deviation("no-raise", f"{cell.case.text}: answered with {answer}, must raise")


ARGUMENTS = (
    "sdpa/none/mha/f32/b2h3q17k23d8",
    "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
    "additive/causal/mha/f32/b2h1q7k7d12/e12.12.12.12/identity",
    "dot/causal+pad/mha/f32/b7h1q7k7d8/e8.8.8.8",
    "layer-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
)
"""Problems that other checks ask, too: what is wrong is an argument that only some frameworks have."""


@check(asked(Ask(*ARGUMENTS)), applies_to=lambda declared: not declared.is_user_code)
def test_bad_argument(cell: Cell) -> None:
    """An implementation raises for each of the arguments that its adapter says have no meaning."""
    backend, calls = cell.implementation.backend, cell.implementation.refused(cell.inputs)
    if not calls:
        raise NotApplicable("names no arguments that it refuses")
    answered = []
    for name, call in calls.items():
        try:
            answer = call()
            # Lazy frameworks may raise only when the answer is read.
            for array in answer if isinstance(answer, tuple) else (answer,):
                if backend.is_array(array):
                    backend.to_numpy(array)
        except Exception:
            continue
        answered.append(name)
    if answered:
        said = f"{len(answered)} of {len(calls)} bad arguments are answered, must raise"
        raise Deviation("no-raise", f"{said}: {', '.join(answered)}")


def answer_to(implementation: Implementation, inputs: Inputs) -> str:
    """What a malformed problem is answered with, in words; "" where the implementation raises.

    Raises NotApplicable where the adapter cannot even convert it: the framework was not asked. A layer is
    built by the framework as the call is prepared.
    """
    backend = implementation.backend
    try:
        prepared = implementation.prepare(inputs)
    except Exception as error:
        if inputs.operator.is_layer:
            return ""
        reason = f"the adapter cannot hand it over: {first_line(error)}"
        raise NotApplicable(reason) from error
    try:
        output = parts(prepared(), prepared)["output"]
        if not backend.is_array(output):
            return "something that is no array"
        # Lazy frameworks may raise only when the answer is read.
        backend.to_numpy(output)
    except Exception:
        return ""
    return f"shape {tuple(output.shape)}"

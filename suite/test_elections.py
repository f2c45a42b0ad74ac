"""Promise: implementation-defined behaviour (an election) is the one that the implementation declares."""

from __future__ import annotations

from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.verdict import HarnessError, WrongAnswer
from attention_conformance.suite.spec.elections import QUESTIONS, ElectionCase, of_questions
from attention_conformance.suite.spec.operator import MODES

COMPILED_QUESTIONS = (
    "fully-masked-row", "padded-sample", "minus-inf-row", "fully-masked-row-gradient",
    "padded-sample-gradient", "causal-with-mask", "causal-alignment",
)  # fmt: skip
"""Questions for compiled implementations: a compiler's rewriting may change their answers."""


def cases_of_frameworks(level: str) -> list[ElectionCase]:
    """Returns the election cases of a level for frameworks' own implementations."""
    ordinary = [name for name in QUESTIONS if name not in MODES]
    return of_questions(ordinary, "own")(level) + of_questions(MODES, "own, modes")(level)


@check(
    of_questions(),
    compiled=of_questions(COMPILED_QUESTIONS, "compiled"),
    builtin_cases=cases_of_frameworks,
    single_answer=True,
)
def test_election(cell: Cell) -> None:
    if not isinstance(cell.case, ElectionCase):
        raise HarnessError(f"expected an election case, got {cell.case.id}")
    question = cell.case.question
    observed = elections.observe(question.name, cell.implementation, cell.dtype)
    cell.measured.observed = observed
    declared = cell.implementation.declared_answer(question.name, cell.dtype)
    cell.measured.native = native = elections.native_answer(
        question.name, cell.implementation, cell.dtype
    )
    if declared is not None and declared != observed:
        raise WrongAnswer("election", f"{question.text}: declared {declared}, observed {observed}")
    must_agree = cell.implementation.declared.drop_in and not question.accidental
    if declared is None and must_agree and native not in ("", observed):
        raise WrongAnswer(
            "election",
            f"{question.text}: {observed}; the framework's own attention, for which it stands in: "
            f"{native}",
        )

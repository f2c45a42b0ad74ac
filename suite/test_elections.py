"""Promise: implementation-defined behaviour (an election) is the one that the implementation declares."""

from __future__ import annotations

from suite.judge import elections
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, HarnessError
from suite.spec.elections import ELECTION_CASES, ElectionCase, in_few_dtypes

ROWS = (
    "fully-masked-row", "padded-sample", "minus-inf-row", "fully-masked-row-gradient",
    "padded-sample-gradient", "causal-with-mask", "causal-alignment",
)  # fmt: skip
"""Questions for compiled implementations: answers that a compiler's rewriting may change."""


def of_compiled(level: str) -> list[ElectionCase]:
    names = ("f32",) if level == "smoke" else ("f32", "bf16")
    cases = (case for case in ELECTION_CASES if case.question.name in ROWS)
    return [case for case in cases if case.dtype.name in names]


@check(
    lambda level: ELECTION_CASES,
    compiled=of_compiled,
    builtin_cases=in_few_dtypes,
    single_answer=True,
)
def test_election(cell: Cell) -> None:
    if not isinstance(cell.case, ElectionCase):
        raise HarnessError(f"expected an election case, got {cell.case.id}")
    question = cell.case.question
    observed = elections.observe(question.name, cell.implementation, cell.dtype)
    cell.measured.observed = observed
    declared = cell.implementation.elected(question.name, cell.dtype)
    cell.measured.native = native = elections.of_native(
        question.name, cell.implementation, cell.dtype
    )
    if declared is not None and declared != observed:
        raise Deviation("election", f"{question.text}: declared {declared}, observed {observed}")
    holds = cell.implementation.declared.drop_in and not question.accidental
    if declared is None and holds and native not in ("", observed):
        raise Deviation(
            "election",
            f"{question.text}: {observed}; the framework's own attention, for which it stands in: "
            f"{native}",
        )

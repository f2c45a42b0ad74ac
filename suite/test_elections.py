"""Promise: where the field has no single right answer, an implementation gives the one it declares."""

from __future__ import annotations

from suite.judge.cell import Cell, check, observe
from suite.judge.verdict import Deviation
from suite.spec.elections import ELECTION_CASES, ElectionCase

ROWS = (
    "fully-masked-row", "fully-masked-row-gradient", "minus-inf-row", "causal-with-mask",
    "causal-alignment",
)  # fmt: skip
"""What a compiler's rewriting may change: the questions that compiled implementations are asked."""


def of_compiled(level: str) -> list[ElectionCase]:
    names = ("f32",) if level == "smoke" else ("f32", "bf16")
    asked = (c for c in ELECTION_CASES if c.operator == "sdpa" and c.question.name in ROWS)
    return [case for case in asked if case.dtype.name in names]


@check(lambda level: ELECTION_CASES, compiled=of_compiled)
def test_election(cell: Cell) -> None:
    question = cell.case.question  # type: ignore[union-attr]
    cell.measured.observed = observe(question.name, cell.implementation, cell.dtype)
    declared = cell.implementation.elected(question.name, cell.dtype)
    if declared is not None and declared != cell.measured.observed:
        raise Deviation(
            "election", f"{question.text}: declared {declared}, observed {cell.measured.observed}"
        )

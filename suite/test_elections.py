"""Promise: where the field has no single right answer, an implementation gives the one it declares."""

from __future__ import annotations

from suite.judge.cell import Cell, check, observe
from suite.judge.verdict import Deviation
from suite.spec.elections import ELECTION_CASES


@check(lambda level: ELECTION_CASES)
def test_election(cell: Cell) -> None:
    question = cell.case.question  # type: ignore[union-attr]
    cell.measured.observed = observe(question.name, cell.implementation, cell.dtype)
    declared = cell.implementation.elected(question.name, cell.dtype)
    if declared is not None and declared != cell.measured.observed:
        raise Deviation(
            "election", f"{question.text}: declared {declared}, observed {cell.measured.observed}"
        )

"""Promise: a problem that has no meaning is refused with an exception, never answered."""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.judge.verdict import Deviation
from suite.spec.badproblems import BAD_CASES


@check(lambda level: BAD_CASES)
def test_bad_problem(cell: Cell) -> None:
    prepared = cell.prepare(cell.case.inputs(cell.seed))  # type: ignore[union-attr]
    try:
        got = prepared()
        # Lazy frameworks may raise only when the answer is read.
        cell.implementation.backend.to_numpy(got)
    except Exception:
        return
    raise Deviation(
        "no-raise",
        f"{cell.case.text}: answered with shape {tuple(got.shape)}, must raise",  # type: ignore[union-attr]
    )

"""Promise: a problem that has no meaning is refused with an exception, never answered."""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.judge.verdict import Deviation
from suite.spec.badproblems import BAD_CASES, LAYER_BAD_CASES


@check(lambda level: BAD_CASES)
def test_bad_problem(cell: Cell) -> None:
    prepared = cell.prepare(cell.case.inputs(cell.seed))  # type: ignore[union-attr]
    backend = cell.implementation.backend
    answer = "something that is no array"
    try:
        got = prepared()
        if backend.is_array(got):
            answer = f"shape {tuple(got.shape)}"
            # Lazy frameworks may raise only when the answer is read.
            backend.to_numpy(got)
    except Exception:
        return
    raise Deviation("no-raise", f"{cell.case.text}: answered with {answer}, must raise")  # type: ignore[union-attr]


@check(lambda level: LAYER_BAD_CASES)
def test_layer_bad_problem(cell: Cell) -> None:
    """A layer may raise as it is built, or as it is called."""
    backend = cell.implementation.backend
    try:
        output, _ = cell.implementation.prepare(cell.case.inputs(cell.seed))()  # type: ignore[union-attr]
        answer = f"shape {tuple(output.shape)}"
        backend.to_numpy(output)
    except Exception:
        return
    raise Deviation("no-raise", f"{cell.case.text}: answered with {answer}, must raise")  # type: ignore[union-attr]

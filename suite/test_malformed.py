"""Promise: a problem that has no meaning is refused with an exception, never answered."""

from __future__ import annotations

from suite.judge.answer import parts
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, HarnessError
from suite.spec.malformed import MALFORMED_CASES, MalformedCase


@check(lambda level: MALFORMED_CASES)
def test_bad_problem(cell: Cell) -> None:
    """An implementation may raise as a layer is built, as it is called, or as the answer is read."""
    if not isinstance(cell.case, MalformedCase):
        raise HarnessError(f"{cell.case.id} is not malformed")
    backend = cell.implementation.backend
    answer = "something that is no array"
    inputs = cell.case.inputs(cell.seed)
    try:
        prepared = cell.implementation.prepare(inputs)
        output = parts(prepared(), prepared)["output"]
        if backend.is_array(output):
            answer = f"shape {tuple(output.shape)}"
            # Lazy frameworks may raise only when the answer is read.
            backend.to_numpy(output)
    except Exception:
        return
    raise Deviation("no-raise", f"{cell.case.text}: answered with {answer}, must raise")

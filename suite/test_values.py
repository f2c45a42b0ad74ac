"""Promise: every element of the answer lies within the derived bound of the float64 reference."""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.spec.catalogue import cases


@check(cases)
def test_values(cell: Cell) -> None:
    cell.judge(cell.run())

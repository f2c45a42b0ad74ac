"""Promise: every element of the answer lies within the derived bound of the float64 reference."""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.spec.catalogue import cases
from suite.spec.compiled_catalogue import compiled_cases


@check(cases, compiled=compiled_cases)
def test_values(cell: Cell) -> None:
    prepared = cell.prepare(cell.inputs)
    cell.judge(cell.read(cell.call(prepared), cell.inputs, prepared.layout))
    if cell.implementation.mode == "compiled":
        # Which kernel ran: a rewrite may change it from one release to the next.
        cell.measured.kernels = cell.implementation.backend.witness(prepared)

"""Promise: every element of the output and the weights is within the derived bound of the float64
reference. The call changes no argument."""

from __future__ import annotations

from attention_conformance.suite.judge.arguments import require_unchanged_arguments
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.spec.catalogue import cases, compiled_cases


@check(cases, compiled=compiled_cases, single_answer=True)
def test_values(cell: Cell) -> None:
    prepared = cell.prepare(cell.inputs)
    with require_unchanged_arguments(cell.implementation.backend, prepared, "the call"):
        native = cell.call(prepared)
    cell.judge(cell.read(native, cell.inputs, prepared))
    if cell.implementation.mode == "compiled":
        # Record the kernel that ran, because it may change between releases.
        cell.measured.kernels = cell.implementation.backend.kernels(prepared)

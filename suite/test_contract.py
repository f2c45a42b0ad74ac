"""Promise: the answer is the framework's own array of the right shape, dtype and device; inputs are
left untouched; a second call on them gives the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.judge.cell import Cell, check
from suite.judge.verdict import Deviation
from suite.spec.catalogue import cases


def every_fourth(level: str):  # type: ignore[no-untyped-def]
    """The smoke cases and every fourth of the others: what is promised here does not depend on values."""
    smoke, found = cases("smoke"), cases(level)
    return smoke + tuple(c for c in found[::4] if c not in smoke)


@check(every_fourth)
def test_contract(cell: Cell) -> None:
    backend = cell.implementation.backend
    prepared = cell.prepare(cell.inputs)
    arrays = {n: a for n, a in prepared.arguments.items() if backend.is_array(a)}
    before = {name: backend.to_numpy(a).copy() for name, a in arrays.items()}
    first = cell.read(cell.call(prepared), cell.inputs, prepared.layout)
    # A kernel may hand out one buffer again and again: what was read first must be kept apart.
    kept = first.values.copy()
    for name, array in arrays.items():
        after = backend.to_numpy(array)
        if after.shape != before[name].shape or not np.array_equal(
            after, before[name], equal_nan=after.dtype.kind == "f"
        ):
            raise Deviation("mutated-input", f"the call changed its argument {name}")
    second = cell.read(cell.call(prepared), cell.inputs, prepared.layout)
    other = replace(cell.inputs, value=-cell.inputs.value)
    cell.call(cell.prepare(other))
    again = cell.read(first.native, cell.inputs, prepared.layout)
    cell.expect_bitwise(again.values, kept, "overwritten", "an answer after a later call")
    if cell.implementation.deterministic:
        cell.expect_bitwise(second.values, kept, "not-deterministic", "a second call")

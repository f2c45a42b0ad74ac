"""Promise: no call computes with less precision inside than its dtype promises.

Answers are held to `eager`, the widest class in which only storing rounds to the case's dtype, whatever
class the implementation declares.
"""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.spec.dtypes import DTYPES
from suite.spec.problem import Case

# Long sums of unit normals: 65 keys of size 64, with and without an explicit scale.
CASES = [
    Case.parse(f"sdpa/none/mha/{dt}/b2h3q17k65d64{scale}")
    for dt in DTYPES
    for scale in ("", "/scale-0.2")
]


@check(lambda level: CASES)
def test_precision(cell: Cell) -> None:
    cell.judge(cell.run(), numerics="eager")

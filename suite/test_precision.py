"""Promise: no call computes with less precision inside than its dtype promises.

Answers are held to `stepwise`, the widest class in which storing alone rounds to the case's dtype,
whatever class the implementation declares.
"""

from __future__ import annotations

from suite.judge.cell import Cell, check
from suite.spec.dtypes import DTYPES
from suite.spec.problem import Case

# Long sums of unit normals read through one-hot values, weight by weight, under a scale that no binary
# format holds; in float64 also under the default scale, which is irrational here.
CASES = [
    Case.parse(f"sdpa/none/mha/{dt}/b1h2q33k33d600{scale}/onehot")
    for dt, scale in (*((dt, "/scale-0.2") for dt in DTYPES), ("f64", ""))
]


@check(lambda level: CASES)
def test_precision(cell: Cell) -> None:
    cell.judge(cell.run(), numerics="stepwise")

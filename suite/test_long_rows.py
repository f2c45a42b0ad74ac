"""Promise: a row of many keys attends all of them, each once, in its own place.

A sum of thousands of alike terms has a bound so wide that one term more or less lies within it: in
float32 an answer of 4,097 normal keys errs by some 1e-4 of its bound. So few keys at a time carry a row
here (the recipe `needle`), every key is carried by some row, and one at fault moves that row far beyond
its bound.
"""

from __future__ import annotations

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.spec.catalogue import Ask, asked

SMOKE = ("sdpa/none/mha/{dt}/b1h1q129k513d64v16/needle",)
STANDARD = (
    "sdpa/causal/mha/{dt}/b1h1q513k513d64v16/needle",
    "sdpa/bool.b11k/mqa/{dt}/b1h2q129k2049d64v16/needle/dense",
    "sdpa/none/mqa/{dt}/b1h2q129k4097d64v16/needle",
)
# Two minutes for its reference.
FULL = ("sdpa/causalbr/mqa/f32/b1h4q257k32769d64v16/needle",)


@check(
    asked(
        Ask(*SMOKE, dtypes="halves first"),
        Ask(*STANDARD, dtypes="half", since="standard"),
        Ask(*FULL, since="full"),
    ),
    single_answer=True,
)
def test_long_rows(cell: Cell) -> None:
    cell.judge(cell.run())

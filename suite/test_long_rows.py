"""Promise: a row of many keys attends every key once, in its own place.

A sum of thousands of similar terms has a bound wider than one term, so a missing key would pass. The
recipe `needle` gives nearly all weight of a row to a few keys, and every key to some row. Each key of a
row has a component of the output alone. So a wrong key moves a component beyond its bound in every dtype
and every numerics class.
"""

from __future__ import annotations

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.spec.catalogue import Ask, cases_of

SMOKE = ("sdpa/none/mha/{dt}/b1h1q129k513d64v16/needle",)
STANDARD = (
    "sdpa/causal/mha/{dt}/b1h1q513k513d64v16/needle",
    "sdpa/bool.b11k/mqa/{dt}/b1h2q129k2049d64v16/needle/dense",
    "sdpa/none/mqa/{dt}/b1h2q129k2049d64v16/needle",
    "sdpa/none/mqa/{dt}/b1h2q129k4097d64v16/needle",
)
# The reference takes two minutes.
FULL = ("sdpa/causalbr/mqa/f32/b1h4q257k32769d64v16/needle",)


@check(
    cases_of(
        Ask(*SMOKE, dtypes="halves first"),
        Ask(STANDARD[2].format(dt="bf16")),
        Ask(*STANDARD, dtypes="half", since="standard"),
        Ask(*FULL, since="full"),
    ),
    single_answer=True,
)
def test_long_rows(cell: Cell) -> None:
    cell.judge(cell.run())

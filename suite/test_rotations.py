"""Promise: a rotation keeps norms, and what two rotated tokens have in common hangs on how far they stand
apart, and on nothing else. No reference is needed for these.

Products of two answers may differ by what their bounds allow: |y| e' + e |y'| + e e', summed over the
components.
"""

from __future__ import annotations

import numpy as np

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.comparison import expect_close
from suite.spec.catalogue import asked
from suite.spec.inputs import Inputs

CASES = (
    "rotary/none/mha/{dt}/b2h3q17k1d16",
    "rotary/none/mha/{dt}/b2h3q17k1d16/interleaved/at4097",
)

SHIFT = 1000
"""By how many positions all tokens are moved."""


def products(cell: Cell, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """The products of every two rows of an answer, (B, H, Lq, Lq), and how far rounding may move them."""
    # Extended precision: bounds of float64 are near the roundoff of its sums.
    y, e = (x.astype(np.longdouble) for x in (cell.run(inputs).values, cell.bound(inputs)))
    size = np.abs(y)
    spread = size @ e.swapaxes(-1, -2)
    return y @ y.swapaxes(-1, -2), spread + spread.swapaxes(-1, -2) + e @ e.swapaxes(-1, -2)


@check(asked(*CASES))
def test_norm_kept(cell: Cell) -> None:
    """Every token has the norm that it had."""
    squares, limit = (np.diagonal(x, 0, -2, -1) for x in products(cell, cell.inputs))
    want = np.square(cell.inputs.query.astype(np.longdouble)).sum(-1)
    expect_close(squares, want, limit, "squares of norms before and after the rotation")


@check(asked(*CASES))
def test_relative_positions(cell: Cell) -> None:
    """As all tokens move by as many positions, the products of every two of them stay."""
    inputs = cell.inputs
    offset = inputs.case.option("offset") + SHIFT
    moved = inputs.replace(position=inputs.arrays["position"] + SHIFT, offset=offset)
    (one, first), (other, second) = products(cell, inputs), products(cell, moved)
    expect_close(other, one, first + second, f"products of tokens {SHIFT} positions further on")

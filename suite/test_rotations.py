"""Promise: a rotation keeps norms, and products of two rotated tokens depend only on their distance.

No reference is needed. Products may differ by what the bounds of both factors allow, |y| e' + e |y'| +
e e', summed over the components.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_close
from attention_conformance.suite.spec.catalogue import cases_of, plain_patterns
from attention_conformance.suite.spec.inputs import Inputs

CASES = (
    *plain_patterns("rotary"),
    "rotary/none/mha/{dt}/b2h3q17k1d16/interleaved/at4097",
)

SHIFT = 1000
"""Number of positions by which all tokens are shifted."""


def products(cell: Cell, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Returns the products of every two rows of the output, (B, H, Lq, Lq), and the bounds of their
    errors, in extended precision."""
    # Extended precision, because float64 bounds are near the roundoff of float64 sums.
    y, e = (x.astype(np.longdouble) for x in (cell.run(inputs).values, cell.bound(inputs)))
    y_transposed, e_transposed = y.swapaxes(-1, -2), e.swapaxes(-1, -2)
    limit = np.abs(y) @ e_transposed + e @ np.abs(y_transposed) + e @ e_transposed
    return y @ y_transposed, limit


@check(cases_of(*CASES))
def test_norm_kept(cell: Cell) -> None:
    """Every token keeps its norm."""
    squares, limit = (np.diagonal(x, 0, -2, -1) for x in products(cell, cell.inputs))
    want = np.square(cell.inputs.query.astype(np.longdouble)).sum(-1)
    expect_close(squares, want, limit, "squares of norms before and after the rotation")


@check(cases_of(*CASES))
def test_relative_positions(cell: Cell) -> None:
    """If all tokens are shifted by equally many positions, the products of every two tokens stay."""
    inputs = cell.inputs
    offset = inputs.case.option("offset") + SHIFT
    shifted = inputs.replace(position=inputs.arrays["position"] + SHIFT, offset=offset)
    (want, limit), (got, other_limit) = products(cell, inputs), products(cell, shifted)
    what = f"products of tokens shifted by {SHIFT} positions"
    expect_close(got, want, limit + other_limit, what)

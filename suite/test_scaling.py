"""Promise: unit-normal queries and keys of size d give scores of variance 1 where they are scaled, and of
variance d where they are not.

Values are unit vectors, so that the output is the weights, and the logarithm of weights the scores up
to a constant a row. Given its query q a row's scores are independent normals of variance
(scale |q|)^2, so that the sum of squared deviations over all rows, divided by these, follows the
chi-square distribution: the check fails a right implementation with probability `FALSE_ALARM`.
"""

from __future__ import annotations

import numpy as np

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import Ask, asked

FALSE_ALARM = 1e-9
NORMAL_QUANTILE = 6.109
"""Two-sided quantile of `FALSE_ALARM`; the chi-square is within 1e-3 of normal after the cube root
(Wilson, Hilferty, PNAS 17, 1931)."""

CASES = (
    "sdpa/none/mha/f32/b16h16q1k64d64/onehot",
    "sdpa/none/mha/f32/b16h16q1k16d16/scale1.0/onehot",
)


@check(asked(Ask(*CASES)), single_answer=True)
def test_score_variance(cell: Cell) -> None:
    inputs, s = cell.inputs, cell.inputs.sizes
    if s.Lk > s.Dv or cell.dtype.name in ("f16", "bf16"):
        raise NotApplicable("weights tell scores where values are unit vectors of 32 bits or more")
    weights = cell.run().values[:, :, 0, : s.Lk]  # value j is the unit vector j
    with np.errstate(divide="ignore"):
        scores = np.log(weights)
    deviations = np.square(scores - scores.mean(-1, keepdims=True)).sum(-1)
    size = inputs.effective_scale * np.linalg.norm(inputs.query[:, :, 0], axis=-1)
    freedom = (s.Lk - 1) * size.size
    ratio = float((deviations / np.square(size)).sum() / freedom)
    spread = 2.0 / (9.0 * freedom)
    distance = (np.cbrt(ratio) - (1.0 - spread)) / np.sqrt(spread)
    if not abs(distance) <= NORMAL_QUANTILE:
        d = s.D
        want = 1.0 if inputs.scale is None else d * inputs.scale**2
        raise Deviation(
            "value",
            f"scores of unit normals of size {d} have variance {ratio * want:.4g}, expected {want:.4g}",
        )

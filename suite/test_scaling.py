"""Promise: unit-normal queries and keys of size d give scaled scores of variance 1, and unscaled scores
of variance d.

Values are unit vectors, so the output shows the weights, and log weights are the scores up to a
constant per row. For a given query q, the scores of a row are independent normals of variance (scale
|q|)^2. So the sum of squared deviations over all rows, divided by these variances, has a chi-square
distribution. A right implementation fails with probability `FALSE_ALARM`.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases_of

FALSE_ALARM = 1e-9
NORMAL_QUANTILE = 6.109
"""Two-sided normal quantile of `FALSE_ALARM`. The cube root of a chi-square variable is normal within
1e-3 (Wilson, Hilferty, PNAS 17, 1931)."""

CASES = (
    "sdpa/none/mha/f32/b16h16q1k64d64/onehot",
    "sdpa/none/mha/f32/b16h16q1k16d16/scale1.0/onehot",
)


@check(cases_of(Ask(*CASES)), single_answer=True)
def test_score_variance(cell: Cell) -> None:
    inputs, s = cell.inputs, cell.inputs.sizes
    if s.Lk > s.Dv or cell.dtype.name in ("f16", "bf16"):
        raise NotApplicable(
            "scores need weights of at least 32 bits, shown by unit vectors as values"
        )
    weights = cell.run().values[:, :, 0, : s.Lk]  # value j is the unit vector j
    with np.errstate(divide="ignore"):
        scores = np.log(weights)
    deviations = np.square(scores - scores.mean(-1, keepdims=True)).sum(-1)
    std = inputs.effective_scale * np.linalg.norm(inputs.query[:, :, 0], axis=-1)
    degrees = (s.Lk - 1) * std.size
    ratio = float((deviations / np.square(std)).sum() / degrees)
    variance = 2.0 / (9.0 * degrees)
    distance = (np.cbrt(ratio) - (1.0 - variance)) / np.sqrt(variance)
    if not abs(distance) <= NORMAL_QUANTILE:
        d = s.D
        want = 1.0 if inputs.scale is None else d * inputs.scale**2
        raise WrongAnswer(
            "value",
            f"scores of unit normals of size {d} have variance {ratio * want:.4g}, expected {want:.4g}",
        )

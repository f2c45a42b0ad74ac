"""Promise: no call computes with less precision than its dtype promises.

Outputs are judged by `stepwise`, the widest class that rounds to the case's dtype only when storing,
whatever class is declared.
"""

from __future__ import annotations

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.dtypes import DTYPES

# Long sums of unit normals, one-hot values (the output shows the weights), and a scale that is inexact
# in binary. float64 also has the default scale, which is irrational here.
ATTENTION = tuple(
    f"sdpa/none/mha/{dt}/b1h2q33k33d600{scale}/onehot"
    for dt, scale in (*((dt, "/scale-0.2") for dt in DTYPES), ("f64", ""))
)

# float64 only: the sums in layers are too short to detect sums in 16 bits.
LAYERS = (
    "multi-head/none/mha/f64/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/none/mha/f64/b2h1q7k7d5v6/e12.12.12.6/self-attention/self/head",
    "additive/none/mha/f64/b2h1q5k9d16v14/e12.10.14.14",
    "additive/causal/mha/f64/b2h1q7k7d12/e12.12.12.12/identity",
    "dot/none/mha/f64/b2h1q5k9d8v6/e8.8.6.6",
    "concat/causal/mha/f64/b2h1q7k7d12/e12.12.12.12/unscaled",
    "layer-norm/none/mha/f64/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/f64/b32h1q3k3d64/e64.64.64.64/self/train",
)

# float64 only. At far positions the angles show their precision.
OTHERS = (
    "packed/none/mha/f64/b3h4q24k24d8/seg5.7.12",
    "paged/none/gqa2/f64/b3h4q9k24d8/seg1.3.5x7.12.5/causal",
    "rotary/none/mha/f64/b2h3q17k1d16/at4097",
    "rotary/none/mha/f64/b2h3q17k1d16/interleaved/at4097",
    "rotary/none/mha/f64/b2h3q17k1d16/rot8/at100003",
    "merge/none/mha/f64/b2h3q5k3d8",
)


@check(cases_of(Ask(*ATTENTION, *LAYERS, *OTHERS)), single_answer=True)
def test_precision(cell: Cell) -> None:
    cell.judge(cell.run(), numerics="stepwise")

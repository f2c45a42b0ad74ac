"""Attention over codes: plain attention (`references.sdpa`) over keys and values that are exact in the
reference, and rounded by an implementation.

A scale of 24 bits times a code of 8 is exact in float64 (53 and 8 bits in extended precision). An
implementation either multiplies codes by scales before the products, or folds scales into scores,
weights and outputs. Both round, and one bound serves both: an error of

    |dk_ji| <= (u_s + u_p) |k_ji|        |dv_jc| <= (u_s + u_p) |v_jc|

- Before the products: the scale may be stored like a score (u_s), and the product of scale and code is
  stored as an operand of a product, like weights (u_p).
- A scale of a head, of a token or of the tensor that is folded into scores multiplies a sum that has its
  own bound: the scale is stored, and the product with it (2 u_s |s_j|). With |s_j| <= |scale| sum_i |q_i
  k_ji| this is an error of 2 u_s |k_ji|, and u_s <= u_p in every class. A scale of channels that is
  folded into the query rounds every q_i, which is the same as rounding k_ji.
- Folded into weights, the product of weight and scale is stored again (u_s + u_p). Folded into the
  output, the output is stored twice more in `eager` (2 u_s |o| <= 2 u_s sum_j p_j |v_j|), and in other
  classes multiplied in the accumulator.

A zero point z that is folded in as well, as in q (c - z 1) = q c - z sum_i q_i, adds the roundings of
longer sums: |c| + |z| <= |c - z| + 2 |z| stands for |c - z|, in the accumulator. So n summands add
2 gamma_{n+2}(u_acc) |scale z|, with n = D for keys and n = Lk for values.

Codes, scales and zero points have no gradient.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1; Jacob et al.,
Quantization and Training of Neural Networks, CVPR 2018, section 2.3 (zero points). The bounds are
derived here.
"""

from __future__ import annotations

import numpy as np

from references.composition import Composition, Problem, Reference
from references.primitives.attend import Attend
from references.primitives.pairs import Pairs
from references.primitives.scores import Scores
from references.rounding import Bounded, gamma, magnitude
from references.tape import Leaf
from suite.spec.operators.quantized import allowed, broadcast, dequantized


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv)."""
    u, s = problem.u, problem.sizes
    pairs = Pairs((s.B, s.H, s.Lq, s.Lk), allowed(problem.inputs.case))
    key, value = operand(problem, "key", s.D), operand(problem, "value", s.Lk)
    scores = PlainScores(u, problem.leaf("query"), key, problem.scale, pairs)
    return Composition(Attend(u, scores, value, pairs), keys=np.ones((1, 1, s.Lq), int))


class PlainScores(Scores):
    """Scores of queries that are not scaled and stored before the product."""

    @property
    def output(self) -> Bounded:
        return self.recomputed


def operand(problem: Problem, name: str, summands: int) -> Leaf:
    """Keys or values (B, Hkv, Lk, .), with the errors of scales and codes that an implementation
    multiplies. A constant."""
    u, inputs = problem.u, problem.inputs
    value = dequantized(inputs, name)
    error = (u.score + u.weight) * magnitude(value) + u.weight_underflow
    if inputs.case.option("zero"):
        zero = broadcast(inputs, f"{name}_scale") * broadcast(inputs, f"{name}_zero")
        error = error + 2 * gamma(summands + 2, u.accumulate) * magnitude(zero)
    return Leaf(u, Bounded(value, error))


reference = Reference(compose)

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

A folded scale may underflow beside codes that are large: a product of scale and query, or of scale and
weight, loses up to w, the underflow of a stored weight. Codes |c| times that is an error of the score,
|scale| w sum_i |c_ji|, or of the output, w sum_j |c_jv|, whatever the weight of a key. It shows in
float16 alone. With a zero point |c| + |z| stands for |c|.

A zero point z that is folded in as well, as in q (c - z 1) = q c - z sum_i q_i, adds the roundings of
longer sums: |c| + |z| <= |c - z| + 2 |z| stands for |c - z|, in the accumulator. So n summands add
2 gamma_{n+2}(u_acc) |scale z|, with n = D for keys and n = Lk for values.

Codes, scales and zero points have no gradient.

New tokens. A call that writes tokens x as codes c and attends them makes two promises:

- Every code is within the bound of writing (`references.quantized_write`); older codes keep their bits.
- The output is that of attention over the codes that came back: the bound above, with these codes
  (`OverCodes.inputs_given`).

Without the codes only this is known: the key s (c - z) of a code within b of x / s + z lies within s b of
x. So the output alone is bounded as attention over keys and values x, which are off by

    |dk| <= s b + (u_s + u_p) (|x| + s b)

and values likewise: half a step of int8, 2^-4 |x| or 2^-10 s of e4m3. `references.primitives.softmax`
takes such errors into account to all orders.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.1; Jacob et al.,
Quantization and Training of Neural Networks, CVPR 2018, section 2.3 (zero points). The bounds are
derived here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from attention_conformance.references.composition import Composition, Problem
from attention_conformance.references.in_pages import InPages
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import (
    Scores,
    UnroundedScores,
    has_unrounded_scores,
)
from attention_conformance.references.quantized_write import coded
from attention_conformance.references.rounding import Bounded, Roundoffs, gamma, magnitude
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import (
    KINDS,
    allowed,
    broadcast,
    dequantized,
    newest,
)


class OverCodes(InPages):
    """Attention over codes; of a call that writes, over the codes that it wrote."""

    def inputs_given(self, inputs: Inputs, answer: Mapping[str, np.ndarray]) -> Inputs:
        """The problem of reading the codes of an answer; the inputs themselves, if nothing is written, or
        the answer has no codes."""
        if not inputs.case.option("writes") or "key_output" not in answer:
            return inputs
        codes = {f"{name}_codes": answer[f"{name}_output"] for name in KINDS}
        return inputs.replace(writes=False, **codes, **dict.fromkeys(KINDS))


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv), and all codes (B, Hkv, Lk, .) if some are written."""
    u, s = problem.u, problem.sizes
    pairs = Pairs((s.B, s.H, s.Lq, s.Lk), allowed(problem.inputs))
    key, value = operand(problem, "key", s.D), operand(problem, "value", s.Lk)
    folded = problem.inputs.case.option("scales")
    scores = FoldedScores(u, problem.leaf("query"), key, problem.scale, pairs)
    attended: Node = scores
    if has_unrounded_scores(problem.inputs):
        exact = dequantized(problem.inputs, "key")
        attended = UnroundedScores(scores, problem.arrays["query"], exact, float(problem.scale))
    output = OverTokens(u, attended, value, pairs)
    if folded == "pertoken":
        output.lost = by_row(pairs, u.weight_underflow * sizes(problem, value, "value"))
    elif folded != "pertile":
        lost = u.weight_underflow * sizes(problem, key, "key").sum(-1)
        scores.lost = scores.factor * np.repeat(lost, s.group, 1)[:, :, None]
    codes = {}
    if problem.inputs.case.option("writes"):
        codes = {f"{name}_output": Leaf(u, all_codes(problem, name)) for name in KINDS}
    keys = np.ones((1, 1, s.Lq), int)
    return Composition(output, codes, keys=keys)


class FoldedScores(Scores):
    """Scores, and the error `lost` of scores that folded scales add."""

    lost: np.ndarray | float = 0.0

    @cached_property
    def recomputed(self) -> Bounded:
        scores = super().recomputed
        return Bounded(scores.value, scores.error + self.lost)

    @property
    def output(self) -> Bounded:
        return self.recomputed


class OverTokens(Attend):
    """Attention, and the error `lost` of outputs that folded scales of tokens add."""

    lost: np.ndarray | float = 0.0

    @property
    def output(self) -> Bounded:
        output = super().output
        return Bounded(output.value, output.error + self.lost)


def sizes(problem: Problem, x: Leaf, name: str) -> np.ndarray:
    """The sizes |c| + |z| of the codes of keys or values (B, Hkv, Lk, .), at most."""
    scale = broadcast(problem.inputs, f"{name}_scale")
    codes = x.output.size / magnitude(scale)
    if not problem.inputs.case.option("zero"):
        return np.asarray(codes)
    return np.asarray(codes + 2 * magnitude(broadcast(problem.inputs, f"{name}_zero")))


def by_row(pairs: Pairs, x: np.ndarray) -> np.ndarray:
    """For each row (B, H, Lq, .) the sum of `x` (B, Hkv, Lk, .) over the keys that it attends."""
    output_mask = (
        np.ones(pairs.shape[2:])
        if pairs.output_mask is None
        else pairs.output_mask.astype(np.float64)
    )
    return np.repeat(output_mask @ x, pairs.shape[1] // x.shape[1], 1)


def operand(problem: Problem, name: str, summands: int) -> Leaf:
    """Keys or values (B, Hkv, Lk, .), with the errors of scales and codes that an implementation
    multiplies. A constant."""
    u, inputs = problem.u, problem.inputs
    read = Bounded.exact(dequantized(inputs, name))
    if inputs.case.option("writes"):
        scale = newest(broadcast(inputs, f"{name}_scale"), inputs.arrays[name].shape[2])
        stored = (coded(inputs, name, u).error * scale).astype(np.float64)
        read = latest(read, Bounded(problem.arrays[name], stored))
    read = scaled(read, u)
    if inputs.case.option("zero"):
        zero = broadcast(inputs, f"{name}_scale") * broadcast(inputs, f"{name}_zero")
        longer = 2 * gamma(summands + 2, u.accumulate) * magnitude(zero)
        read = Bounded(read.value, read.error + longer)
    return Leaf(u, read)


def scaled(x: Bounded, u: Roundoffs) -> Bounded:
    """Codes times scales as an implementation multiplies them, for their exact products `x`."""
    return Bounded(x.value, x.error + (u.score + u.weight) * x.size + u.weight_underflow)


def all_codes(problem: Problem, name: str) -> Bounded:
    """The codes (B, Hkv, Lk, .) after the write: older ones as they were."""
    old = Bounded.exact(problem.arrays[f"{name}_codes"])
    return latest(old, coded(problem.inputs, name, problem.u))


def latest(old: Bounded, new: Bounded) -> Bounded:
    """Arrays (B, Hkv, Lk, .) whose last tokens are new ones."""
    return old[:, :, : old.shape[2] - new.shape[2]].concatenated(new, 2)


reference = OverCodes(compose)

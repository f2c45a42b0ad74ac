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
  (`CodesReference.inputs_given`).

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
from attention_conformance.references.primitives.scores import ExactScores, Scores, has_exact_scores
from attention_conformance.references.quantized_write import unrounded_codes
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    gamma,
    magnitude,
    stored,
)
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import (
    KINDS,
    allowed,
    broadcast,
    dequantized,
    newest_scales,
)


class CodesReference(InPages):
    """Attention over codes. If the call writes codes, its output is judged by the codes that it wrote."""

    def inputs_given(self, inputs: Inputs, answer: Mapping[str, np.ndarray]) -> Inputs:
        """Returns the inputs of a call that only reads, with the codes in `answer`. Inputs of calls that
        write no codes, and of answers without codes, are returned unchanged."""
        if not inputs.case.option("writes") or "key_output" not in answer:
            return inputs
        codes = {f"{name}_codes": answer[f"{name}_output"] for name in KINDS}
        return inputs.replace(writes=False, **codes, **dict.fromkeys(KINDS))


def compose(problem: Problem) -> Composition:
    """Returns the output (B, H, Lq, Dv), and all codes (B, Hkv, Lk, .) if the call writes some."""
    u, s = problem.u, problem.sizes
    pairs = Pairs((s.B, s.H, s.Lq, s.Lk), allowed(problem.inputs))
    key, value = (
        token_leaf(problem, "key", s.D),
        token_leaf(problem, "value", s.Lk),
    )
    granule = problem.inputs.case.option("scales")
    scores = FoldedScores(u, problem.leaf("query"), key, problem.scale, pairs)
    scores_node: Node = scores
    if has_exact_scores(problem.inputs):
        exact_key = dequantized(problem.inputs, "key")
        scores_node = ExactScores(scores, problem.arrays["query"], exact_key, float(problem.scale))
    output = TokenScaleAttend(u, scores_node, value, pairs)
    if granule == "pertoken":
        token_underflow = u.weight_underflow * code_sizes(problem, value, "value")
        output.underflow = sum_over_attended(pairs, token_underflow)
    elif granule != "pertile":
        underflow = u.weight_underflow * code_sizes(problem, key, "key").sum(-1)
        scores.underflow = scores.factor * np.repeat(underflow, s.group, 1)[:, :, None]
    codes = {}
    if problem.inputs.case.option("writes"):
        codes = {f"{name}_output": Leaf(u, all_codes(problem, name)) for name in KINDS}
    keys = np.ones((1, 1, s.Lq), int)
    return Composition(output, codes, keys=keys)


class FoldedScores(Scores):
    """Scores whose scales may be folded into queries or scores, which adds the error `underflow`."""

    underflow: np.ndarray | float = 0.0

    @cached_property
    def recomputed(self) -> Bounded:
        scores = super().recomputed
        return Bounded(scores.value, scores.error + self.underflow)

    @property
    def output(self) -> Bounded:
        return self.recomputed


class TokenScaleAttend(Attend):
    """Attention whose scales may be folded into weights, which adds `underflow` to the output's error."""

    underflow: np.ndarray | float = 0.0

    @property
    def output(self) -> Bounded:
        output = super().output
        return Bounded(output.value, output.error + self.underflow)


def code_sizes(problem: Problem, x: Leaf, name: str) -> np.ndarray:
    """Returns an upper limit of |c| + |z| (B, Hkv, Lk, .), for codes c and zero points z of keys or
    values x (`name`)."""
    scale = broadcast(problem.inputs, f"{name}_scale")
    codes = x.output.magnitude / magnitude(scale)
    if not problem.inputs.case.option("zero"):
        return np.asarray(codes)
    return np.asarray(codes + 2 * magnitude(broadcast(problem.inputs, f"{name}_zero")))


def sum_over_attended(pairs: Pairs, x: np.ndarray) -> np.ndarray:
    """Returns, (B, H, Lq, .), the sum of x (B, Hkv, Lk, .) over the keys that each row attends."""
    output_mask = (
        np.ones(pairs.shape[2:])
        if pairs.output_mask is None
        else pairs.output_mask.astype(np.float64)
    )
    return np.repeat(output_mask @ x, pairs.shape[1] // x.shape[1], 1)


def token_leaf(problem: Problem, name: str, summands: int) -> Leaf:
    """Returns the constant leaf of keys or values (`name`, B, Hkv, Lk, .), with the errors of codes times
    scales, and of sums of `summands` zero points."""
    u, inputs = problem.u, problem.inputs
    tokens = Bounded.exact(dequantized(inputs, name))
    if inputs.case.option("writes"):
        scale = newest_scales(broadcast(inputs, f"{name}_scale"), inputs.arrays[name].shape[2])
        code_errors = (unrounded_codes(inputs, name, u).error * scale).astype(np.float64)
        tokens = with_new_tokens(tokens, Bounded(problem.arrays[name], code_errors))
    tokens = with_product_errors(tokens, u)
    if inputs.case.option("zero"):
        zero = broadcast(inputs, f"{name}_scale") * broadcast(inputs, f"{name}_zero")
        zero_point_error = 2 * gamma(summands + 2, u.accumulate) * magnitude(zero)
        tokens = Bounded(tokens.value, tokens.error + zero_point_error)
    return Leaf(u, tokens)


def with_product_errors(x: Bounded, u: Roundoffs) -> Bounded:
    """Returns exact products x of codes and scales with the errors of an implementation's products."""
    return stored(x, Store(u.score + u.weight, u.weight_underflow))


def all_codes(problem: Problem, name: str) -> Bounded:
    """Returns all codes (B, Hkv, Lk, .) after the write: old codes without error, new codes with their
    bound."""
    old = Bounded.exact(problem.arrays[f"{name}_codes"])
    return with_new_tokens(old, unrounded_codes(problem.inputs, name, problem.u))


def with_new_tokens(tokens: Bounded, new_tokens: Bounded) -> Bounded:
    """Returns `tokens` (B, Hkv, Lk, .) with `new_tokens` (B, Hkv, Lq, .) in place of the last Lq."""
    return tokens[:, :, : tokens.shape[2] - new_tokens.shape[2]].concatenated(new_tokens, 2)


reference = CodesReference(compose)

"""Scaled dot-product attention in float64, its derivatives and their rounding bounds.

    scores  s = scale q k^T, then the steps of the features (`references.steps`), then + bias, the mask
    weights p = softmax(s) over the keys
    output  o = p v

Bound of the output, elementwise: that of `references.primitives.softmax` with the score error

    |ds_j| <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)

for D + 2 roundings in the accumulator (products, sum, scaling) and three stores (product, scaled score,
score with bias), plus the store of the output, u_o |o| + e_o. Without a bias there are two stores: masks
that are added as numbers add 0, which rounds nothing. Features add the roundings of their steps.
Fully masked rows are exact.

One pass over blocks of rows gives the output and the bound terms of every class (`references.blocked`).
The composition gives derivatives and outputs with random rounding.

Sources: Vaswani et al. 2017, section 3.2.1; Higham, Accuracy and Stability of Numerical Algorithms
(2002), chapter 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from attention_conformance.references.blocked import attention, bounded
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.primitives.arranged import Reshaped
from attention_conformance.references.primitives.attend import Attend, LogSumExp
from attention_conformance.references.primitives.bias import Biased, Sink
from attention_conformance.references.primitives.cap import Cap
from attention_conformance.references.primitives.centred import Centred, CentredScores
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import ExactScores, Scores, has_exact_scores
from attention_conformance.references.primitives.times import Times
from attention_conformance.references.rounding import (
    Roundoffs,
    errors_are_random,
    precision_for,
    rounded_input,
)
from attention_conformance.references.steps import Step, split_steps
from attention_conformance.references.tape import Leaf, Node
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


def compose(problem: Problem) -> Composition:
    """Returns the output (B, H, Lq, Dv), and without a sink the log-sum-exp (B, H, Lq), which has no
    JVP."""
    inputs, s = problem.inputs, problem.sizes
    score_steps, sink = split_steps(inputs.features, s.Lq, s.Lk, precision_for(inputs.dtype))
    pairs = Pairs.of(problem, None if sink is None else sink.operand)
    query, key, value = (problem.leaf(name) for name in OPERANDS)
    bias = None if inputs.bias is None else problem.leaf("bias")
    attend = attended(problem, query, key, value, pairs, bias, score_steps, sink)
    if attend.column is None:
        return Composition(attend, {"lse": LogSumExp(attend)}, pairs.keys)
    return Composition(attend, keys=pairs.keys, has_sink=pairs.has_sink)


def attended(
    problem: Problem, query: Node, key: Node, value: Node, pairs: Pairs, bias: Node | None,
    score_steps: Sequence[Step], sink: Step | None,
) -> Attend:  # fmt: skip
    """Returns the attention of these nodes: `score_steps` on the scores, then the bias, and a `sink` as
    one more key of value 0 (`split_steps`). Keys are centred if `problem.u.centred_keys`."""
    u, scale = problem.u, problem.scale
    scores: Node = Scores(u, query, key, scale, pairs)
    q, k = query.output, key.output
    if has_exact_scores(problem.inputs) and not (q.error.any() or k.error.any()):
        scores = ExactScores(scores, q.value, k.value, float(scale))
    if u.centred_keys:
        scores = CentredScores(u, query, Centred(u, key, pairs), scale, pairs)
    for step in score_steps:
        scores = with_step(problem, step, scores)
    if bias is not None:
        scores = Biased(u, scores, bias)
    if sink is None:
        return Attend(u, scores, value, pairs)
    column = problem.exact_leaf(sink.name)
    assert column is not None
    return Attend(u, scores, value, pairs, Sink(u, column, scores, pairs, sink.unit(u)))


def with_step(problem: Problem, step: Step, scores: Node) -> Node:
    """Returns the scores after a step. The step's operand is a leaf if it has a gradient, else a
    constant."""
    u, unit = problem.u, step.unit(problem.u)
    if step.reduction.to == "cap":
        return Cap(u, scores, step.operand, unit)
    array: Node = Leaf(u, rounded_input(step.operand, u))
    leaf = None if FEATURES[step.name].constant else problem.exact_leaf(step.name)
    if leaf is not None:
        array = Reshaped(leaf, step.operand.shape)
    return (Times if step.reduction.to == "factor" else Biased)(u, scores, array, unit)


class _SdpaReference(Reference):
    """The reference of sdpa. Most outputs come from one pass over blocks of rows."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes, and if
        requested the log-sum-exp (B, H, Lq), -inf for rows without keys. See `Reference.forward`.

        There is no standard deviation for centred keys, and for scores that no store rounds.
        """
        if errors_are_random():
            return self.recomputed(inputs, rounding)
        if rounding.centred_keys or has_exact_scores(inputs):
            return super().forward(inputs, rounding, empty_rows)
        return bounded(
            inputs, rounding, inputs.query, inputs.key, inputs.value, empty_rows=empty_rows,
            lse="lse" in inputs.outputs, mask=inputs.allowed, bias=inputs.bias,
            features=inputs.features,
        )  # fmt: skip


reference = _SdpaReference(compose)


__all__ = ["attention", "compose", "reference"]

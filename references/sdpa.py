"""Scaled dot-product attention in float64, its derivatives and their rounding bounds.

    scores  s = scale q k^T, then the steps of the features (`references.steps`), then + bias, the mask
    weights p = softmax(s) over the keys
    output  o = p v

Bound of the output, elementwise: that of `references.primitives.softmax` with the score error

    |ds_j| <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)

for D + 2 roundings in the accumulator (products, sum, scaling) and three stores (product, scaled score,
score with bias), plus the store of the output, u_o |o| + e_o. Features add the roundings of their steps.
Fully masked rows are exact.

One pass over blocks of rows gives the output and the bound terms of every class (`references.blocked`).
The composition gives derivatives and outputs with random rounding.

Sources: Vaswani et al. 2017, section 3.2.1; Higham, Accuracy and Stability of Numerical Algorithms
(2002), chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from references.blocked import BlockedPass, attention
from references.composition import Composition, Problem, Reference
from references.outputs import Outputs
from references.primitives.arranged import Reshaped
from references.primitives.attend import Attend, LogSumExp
from references.primitives.bias import Biased, ZeroKey
from references.primitives.cap import Cap
from references.primitives.centred import Centred, CentredScores
from references.primitives.pairs import Pairs
from references.primitives.scores import Scores
from references.primitives.times import Times
from references.rounding import Bounded, Roundoffs, drawing, narrowed, precision_for
from references.steps import Step, steps
from references.tape import Leaf, Node
from suite.spec.cache import Cache
from suite.spec.features import FEATURES
from suite.spec.inputs import Inputs

_PASSES: Cache[BlockedPass] = Cache(64)


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv), and without a key of value 0 the log-sum-exp (B, H, Lq), without a
    JVP."""
    u, inputs, s = problem.u, problem.inputs, problem.sizes
    made = steps(inputs.features, s.Lq, s.Lk, precision_for(inputs.dtype))
    zero_key = next((step for step in made if step.to == "key"), None)
    pairs = Pairs.of(problem, None if zero_key is None else zero_key.operand)
    query, key, scale = problem.leaf("query"), problem.leaf("key"), problem.scale
    scores: Node = Scores(u, query, key, scale, pairs)
    if u.centred_keys:
        scores = CentredScores(u, query, Centred(u, key, pairs), scale, pairs)
    for step in made:
        if step is not zero_key:
            scores = _stepped(problem, step, scores)
    if inputs.bias is not None:
        scores = Biased(u, scores, problem.leaf("bias"))
    value = problem.leaf("value")
    if zero_key is None:
        attend = Attend(u, scores, value, pairs)
        return Composition(attend, {"lse": LogSumExp(attend)}, pairs.keys)
    column = problem.exact(zero_key.name)
    assert column is not None
    attend = Attend(u, scores, value, pairs, ZeroKey(u, column, scores, pairs, zero_key.unit(u)))
    return Composition(attend, keys=pairs.keys, has_zero_key=pairs.has_zero_key)


def _stepped(problem: Problem, step: Step, scores: Node) -> Node:
    """The scores after a step. An array with gradients is a leaf, others are constants."""
    u, unit = problem.u, step.unit(problem.u)
    if step.to == "cap":
        return Cap(u, scores, step.operand, unit)
    array: Node = Leaf(u, narrowed(step.operand, u))
    given = None if FEATURES[step.name].constant else problem.exact(step.name)
    if given is not None:
        array = Reshaped(given, step.operand.shape)
    return (Times if step.to == "factor" else Biased)(u, scores, array, unit)


class _Plain(Reference):
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes, and if requested the
        log-sum-exp (B, H, Lq), -inf for rows without keys. See `Reference.forward`.

        One pass serves every roundoff, so the last passes are cached. Only centred keys are composed, and
        have no standard deviation.
        """
        if drawing():
            return self.recomputed(inputs, rounding)
        if rounding.centred_keys:
            return super().forward(inputs, rounding, empty_rows)
        key, returned = (inputs.digest, empty_rows), inputs.operator.outputs(inputs.case)
        return bounded(key, lambda: _pass(inputs, empty_rows), inputs, rounding, "lse" in returned)


reference = _Plain(compose)


@np.errstate(all="ignore")
def bounded(
    key: Hashable, compute: Callable[[], BlockedPass], inputs: Inputs, u: Roundoffs, lse: bool
) -> Outputs:
    """Outputs and bounds of a blocked pass for these roundoffs; `key` caches the pass."""
    found = _PASSES.get(key, compute)
    terms, output = found.terms, found.output
    assert terms is not None
    deviation = terms.standard_deviation(output, u) if inputs.dtype.is_half else None
    arrays = {"output": Bounded(output, terms.bound(output, u))}
    if lse:
        arrays["lse"] = Bounded(found.lse, terms.lse_bound(found.lse, found.largest, u))
    return Outputs(arrays, terms.keys, deviation, terms.has_zero_key)


def _pass(inputs: Inputs, empty_rows: str) -> BlockedPass:
    return attention(
        inputs.query, inputs.key, inputs.value,
        mask=inputs.allowed, bias=inputs.bias, scale=inputs.scale, features=inputs.features,
        empty_rows=empty_rows, precision=precision_for(inputs.dtype), terms=True,
        variance=inputs.dtype.is_half,
    )  # fmt: skip


__all__ = ["BlockedPass", "attention", "bounded", "compose", "reference"]

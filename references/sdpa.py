"""Scaled dot-product attention in float64, its derivatives and their rounding bounds.

    scores  s = softcap(scale q k^T) + bias, then the mask
    weights p = softmax(s) over the keys and the sink, if there is one
    output  o = p v

Bound of the output, elementwise: that of `references.primitives.softmax` with the score error

    |ds_j| <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)

for D + 2 roundings in the accumulator (products, sum, scaling) and three stores (product, scaled score,
score with bias), plus the store of the output, u_o |o| + e_o. Cap, bias and sink add the bounds of
their primitives. Fully masked rows are exact.

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
from references.primitives.bias import Biased, Sink
from references.primitives.cap import Cap
from references.primitives.pairs import Pairs
from references.primitives.scores import Scores
from references.primitives.times import Times
from references.rounding import Bounded, Roundoffs, drawing, narrowed, precision_for
from references.tape import Leaf, Node
from suite.spec.cache import Cache
from suite.spec.inputs import Inputs
from suite.spec.operators.sdpa import asked_features
from suite.spec.recipes import alibi_bias

_PASSES: Cache[BlockedPass] = Cache(64)

IN_BLOCKS = {"softcap", "sinks", "lse", "alibi_slopes"}
"""Features of the blocked pass. With any other feature the composition gives the output, without a
standard deviation."""


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv), and without sinks the log-sum-exp (B, H, Lq), for VJPs only."""
    u, inputs, value = problem.u, problem.inputs, problem.leaf("value")
    pairs, made = Pairs.of(problem), inputs.feature("alibi_slopes") is not None
    scores: Node = Scores(u, problem.leaf("query"), problem.leaf("key"), problem.scale, pairs)
    factors = problem.exact("logit_scale")
    if factors is not None:
        scores = Times(u, scores, Reshaped(factors, (1, inputs.sizes.H, 1, 1)), scores=True)
    if inputs.feature("softcap") is not None:
        scores = Cap(u, scores, inputs.feature("softcap"))
    added = _bias(inputs)
    if added is not None:
        bias = Leaf(u, narrowed(added, u)) if made else problem.leaf("bias")
        scores = Biased(u, scores, bias, own=made)
    sinks = problem.exact("sinks")
    if sinks is None:
        attend = Attend(u, scores, value, pairs)
        return Composition(attend, {"lse": LogSumExp(attend)}, pairs.keys)
    attend = Attend(u, scores, value, pairs, Sink(u, sinks, scores, pairs))
    return Composition(attend, keys=pairs.keys, has_sink=pairs.has_sink)


class _Plain(Reference):
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes, and if requested the
        log-sum-exp (B, H, Lq), -inf for rows without keys. See `Reference.forward`.

        One pass serves every roundoff, so the last passes are cached.
        """
        if drawing():
            return self.recomputed(inputs, rounding)
        if {feature.name for feature in asked_features(inputs.case)} - IN_BLOCKS:
            return super().forward(inputs, rounding, empty_rows)
        key = (inputs.digest, empty_rows)
        return bounded(
            key, lambda: _pass(inputs, empty_rows), inputs, rounding, inputs.feature("lse")
        )


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
    return Outputs(arrays, terms.keys, deviation, terms.has_sink > 0)


def _pass(inputs: Inputs, empty_rows: str) -> BlockedPass:
    return attention(
        inputs.query, inputs.key, inputs.value,
        mask=inputs.allowed, bias=_bias(inputs), own_bias=inputs.feature("alibi_slopes") is not None,
        scale=inputs.scale, softcap=inputs.feature("softcap"),
        sinks=inputs.feature("sinks"), empty_rows=empty_rows, precision=precision_for(inputs.dtype),
        terms=True, variance=inputs.dtype.is_half,
    )  # fmt: skip


def _bias(inputs: Inputs) -> np.ndarray | None:
    """The bias added to the scores, in the reference's precision: the given bias, or ALiBi made from
    slopes."""
    precision, slopes = precision_for(inputs.dtype), inputs.feature("alibi_slopes")
    if slopes is not None:
        return alibi_bias(slopes.astype(precision), inputs.sizes.Lq, inputs.sizes.Lk)
    return None if inputs.bias is None else inputs.bias.astype(precision, copy=False)


__all__ = ["BlockedPass", "attention", "bounded", "compose", "reference"]

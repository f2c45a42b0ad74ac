"""Scaled dot-product attention: the definition in float64, its derivatives, and how far rounding may move
them.

scores s = softcap(scale q k^T) + bias, then the mask; weights p = softmax(s) over the keys and the sink,
where there is one; output o = p v (Vaswani et al. 2017, section 3.2.1).

Bound of the output, element by element: that of `references.primitives.softmax`, with the error of a
score of D + 2 roundings (products, sum, scaling) in the accumulator, and stored three times, as product,
scaled, and with its bias:

    |ds_j| <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)

and with its own store, u_o |o| + e_o. What a cap, a bias and a sink add stands with these primitives.
Where a row has no key the answer is exact.

One pass over blocks of rows gives the answer, and the terms of its bound in every class
(`references.blocked`). Derivatives, and answers whose roundings are drawn, are those of the composition.

Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 3.
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
"""The features that the blocked pass knows. With another one the composition gives the answer, without a
standard deviation."""


def compose(problem: Problem) -> Composition:
    """The output (B, H, Lq, Dv); and without sinks the log-sum-exp (B, H, Lq), backward alone."""
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
    return Composition(attend, keys=pairs.keys, sunk=pairs.sunk)


class _Plain(Reference):
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes; and where it is asked
        for the log-sum-exp (B, H, Lq), -inf where a row has no key. See `Reference.forward`.

        One pass over the rows serves every rounding; the last passes are cached, since every
        implementation asks for the same.
        """
        if drawing():
            return self.again(inputs, rounding)
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
    """What a blocked pass gives for these roundoffs; passes are cached by `key`."""
    found = _PASSES.get(key, compute)
    terms, output = found.terms, found.output
    assert terms is not None
    deviation = terms.standard_deviation(output, u) if inputs.dtype.is_half else None
    arrays = {"output": Bounded(output, terms.bound(output, u))}
    if lse:
        arrays["lse"] = Bounded(found.lse, terms.lse_bound(found.lse, found.largest, u))
    return Outputs(arrays, terms.keys, deviation, terms.sunk > 0)


def _pass(inputs: Inputs, empty_rows: str) -> BlockedPass:
    return attention(
        inputs.query, inputs.key, inputs.value,
        mask=inputs.allowed, bias=_bias(inputs), own_bias=inputs.feature("alibi_slopes") is not None,
        scale=inputs.scale, softcap=inputs.feature("softcap"),
        sinks=inputs.feature("sinks"), empty_rows=empty_rows, precision=precision_for(inputs.dtype),
        terms=True, variance=inputs.dtype.is_half,
    )  # fmt: skip


def _bias(inputs: Inputs) -> np.ndarray | None:
    """What is added to the scores, in their precision: the bias that is given, or ALiBi of slopes, which
    the call makes."""
    precision, slopes = precision_for(inputs.dtype), inputs.feature("alibi_slopes")
    if slopes is not None:
        return alibi_bias(slopes.astype(precision), inputs.sizes.Lq, inputs.sizes.Lk)
    return None if inputs.bias is None else inputs.bias.astype(precision, copy=False)


__all__ = ["BlockedPass", "attention", "bounded", "compose", "reference"]

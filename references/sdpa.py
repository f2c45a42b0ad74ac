"""Scaled dot-product attention: the definition in float64, its derivatives, and how far rounding may move
them.

scores s = softcap(scale q k^T) + bias, then the mask; weights p = softmax(s) over the keys and the sink,
where there is one; output o = p v (Vaswani et al. 2017, section 3.2.1).

Bound of the output, element by element: that of `references.softmax`, with the error of a score of D + 2
roundings (products, sum, scaling) in the accumulator, and stored three times, as product, scaled, and
with its bias:

    |ds_j| <= gamma_{D+2}(u_acc) |scale| sum_i |q_i k_ji| + u_s (2 |s_j| + |bias_j + s_j|)

and with its own store, u_o |o| + e_o. A bias that the call makes itself (ALiBi of slopes) adds
(4 u_acc + u_s) |bias_j| to |ds_j|: a slope is multiplied by its distance, and the bias may be stored like
a score; kernels divide the slope by the scale, or multiply it by log2 e, and scale the sum with the
scores: a rounding each of the constant, of the slope with it, of the product and of its scaling.
softcap multiplies |ds| by its derivative, and adds the error of tanh, 4 u_acc and u_s times the cap's
value. Where a row has no key the answer is exact.

Derivatives: the chain of `references.derivatives` behind the scores, that of `references.scores` before.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), chapter 3; Dao et al., NeurIPS
2022 (the backward pass); Press, Smith, Lewis, ICLR 2022 (ALiBi).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references.blocked import BlockedPass, attention
from references.derivatives import Attention, Pairs
from references.outputs import Outputs, moving, wide
from references.rounding import (
    Bounded,
    Roundoffs,
    drawing,
    narrowed,
    precision_for,
    stored,
    together,
)
from references.scores import ScaledScores
from suite.spec.cache import Cache
from suite.spec.inputs import Inputs
from suite.spec.recipes import alibi_bias
from suite.spec.vocabulary import OPERANDS

_PASSES: Cache[BlockedPass] = Cache(64)


@np.errstate(all="ignore")
def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes; and where it is asked for
    the log-sum-exp (B, H, Lq), -inf where a row has no key.

    One pass over the rows serves every rounding; the last passes are cached, since every implementation
    asks for the same. A row without keys is what `empty_rows` says, "zeros", "nan" or "uniform". Raises
    ValueError for another one, and NoExtendedPrecision.
    """
    if drawing():
        return _step_by_step(inputs, rounding)
    reference = _PASSES.get((inputs.digest, empty_rows), lambda: _pass(inputs, empty_rows))
    terms, output = reference.terms, reference.output
    assert terms is not None
    error = terms.bound(output, rounding)
    half = inputs.dtype.is_half
    deviation = terms.standard_deviation(output, rounding) if half else None
    arrays = {"output": Bounded(output, error)}
    if inputs.lse:
        bound = terms.lse_bound(reference.lse, reference.largest, rounding)
        arrays["lse"] = Bounded(reference.lse, bound)
    return Outputs(arrays, terms.keys, deviation, terms.sunk > 0)


def _step_by_step(inputs: Inputs, u: Roundoffs) -> Outputs:
    """The output alone, as the chain of the derivatives has it."""
    chain = _Chain(inputs, u, "zeros")
    average = chain.attention.average(chain.by_head(narrowed(chain.arrays["value"], u)))
    return chain.outputs({"output": stored(average, u.output, u.floor)})


def _pass(inputs: Inputs, empty_rows: str) -> BlockedPass:
    return attention(
        inputs.query, inputs.key, inputs.value,
        mask=inputs.allowed, bias=_bias(inputs), own_bias=inputs.alibi_slopes is not None,
        scale=inputs.scale, softcap=inputs.softcap,
        sinks=inputs.sinks, empty_rows=empty_rows, precision=precision_for(inputs.dtype),
        terms=True, variance=inputs.dtype.is_half,
    )  # fmt: skip


def _bias(inputs: Inputs) -> np.ndarray | None:
    """What is added to the scores, in their precision: the bias that is given, or ALiBi of slopes, which
    the call makes."""
    precision, slopes = precision_for(inputs.dtype), inputs.alibi_slopes
    if slopes is not None:
        return alibi_bias(slopes.astype(precision), inputs.sizes.Lq, inputs.sizes.Lk)
    return None if inputs.bias is None else inputs.bias.astype(precision, copy=False)


class _Chain:
    """The scores and the attention behind them, as derivatives have them."""

    def __init__(self, inputs: Inputs, u: Roundoffs, empty_rows: str) -> None:
        self.arrays, s = wide(inputs), inputs.sizes
        self.u, self.group, self.inputs = u, s.group, inputs
        query, key, value = (narrowed(self.arrays[n], u) for n in OPERANDS)
        sinks = self.arrays.get("sinks")
        self.pairs = Pairs(
            (s.B, s.H, s.Lq, s.Lk), inputs.dense_mask, _bias(inputs), empty_rows, sinks,
            own_bias=inputs.alibi_slopes is not None,
        )  # fmt: skip
        precision = query.value.dtype.type
        scale = (
            1 / np.sqrt(precision(s.D or 1)) if inputs.scale is None else precision(inputs.scale)
        )
        self.scores = ScaledScores(
            query, self.by_head(key), scale, self.pairs, u, softcap=inputs.softcap, group=self.group
        )
        self.attention = Attention(
            self.scores.scores, self.by_head(value), self.pairs, u, sinks, self.group
        )

    def by_head(self, x: Bounded) -> Bounded:
        """Keys or values (B, Hkv, Lk, .) repeated for the query heads of a group."""
        return x.repeated(self.group, 1)

    def outputs(self, arrays: dict[str, Bounded]) -> Outputs:
        sinks = self.arrays.get("sinks")
        if sinks is None:
            return Outputs(arrays, self.pairs.keys)
        return Outputs(arrays, self.pairs.keys, None, np.isfinite(sinks)[:, None])


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs,
    cotangent: np.ndarray,
    rounding: Roundoffs,
    empty_rows: str = "zeros",
    of: str = "output",
) -> Outputs:
    """The gradients of query, key, value, and of bias and sinks where there are any, in their own shapes.

    cotangent (B, H, Lq, Dv), that of the output; or (B, H, Lq), `of` the "lse", which hangs on no value:
    without sinks. `empty_rows` says what a row without keys is: see
    `references.derivatives.EMPTY_ROW_GRADIENTS`. NaN in slots that no row attends is of no influence.
    Raises ValueError for another `empty_rows`, and NoExtendedPrecision.
    """
    chain = _Chain(inputs, rounding, empty_rows)
    attention = chain.attention
    received = wide(inputs, {"cotangent": cotangent})["cotangent"]
    of_values = {}
    if of == "lse":
        assert inputs.sinks is None, "interfaces differ in whether it counts the sink"
        dS = attention.lse_score_gradient(Bounded.exact(received[..., None]))
    else:
        dO = narrowed(received, rounding)
        dS = attention.score_gradient(dO)
        of_values = {"value": attention.value_gradient(dO)}
    query, key = chain.scores.gradients(attention.real(dS))
    arrays = {"query": query, "key": key, **of_values}
    if inputs.bias is not None:
        arrays["bias"] = attention.bias_gradient(dS, inputs.bias.shape)
    if inputs.sinks is not None:
        arrays["sinks"] = attention.sink_gradient(dS)
    return chain.outputs(arrays)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, H, Lq, Dv), as arrays move along `tangents`, which have their shapes: any
    of query, key, value, bias and sinks.

    `empty_rows` is that of `vjp`. Raises ValueError likewise, and for the tangent of an unknown array.
    """
    u = rounding
    chain = _Chain(inputs, u, empty_rows)
    moved = {name: narrowed(x, u) for name, x in moving(inputs, tangents).items()}
    key, value = (chain.by_head(moved[n]) if n in moved else None for n in ("key", "value"))
    scores = chain.scores.tangent(moved.get("query"), key)
    scores = together([scores, chain.pairs.moving_bias(moved.get("bias"))], u.score, u.score_floor)
    output = chain.attention.tangent(scores, value, moved.get("sinks"))
    return chain.outputs({"output": output})


__all__ = ["BlockedPass", "attention", "forward", "jvp", "vjp"]

"""Faults of the formulas of the backward pass."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, rank4
from attention_conformance.suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableLowest,
    DifferentiableRecomputed,
)

FAMILY = "gradient"


def group_tiled_backward(right: Differentiable, x: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    return x.reshape(s.B, s.group, s.Hkv, *x.shape[2:]).swapaxes(1, 2)


def bias_gradient_below_the_diagonal(
    right: Differentiable, ds: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    gradient = right.bias_gradient(ds, shape)
    square = 16 < ds.shape[-2] == ds.shape[-1] and shape[-2:] == ds.shape[-2:]
    return np.tril(gradient) if square else gradient


def bias_gradient_of_first_sample(
    right: Differentiable, ds: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    return right.bias_gradient(ds[:1], shape) if len(shape) < 4 or shape[0] == 1 else ds


def bias_gradient_averaged(
    right: Differentiable, ds: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    return right.bias_gradient(ds, shape) * (np.prod(shape) / ds.size)


def bias_gradient_averaged_over_queries(
    right: Differentiable, ds: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    gradient = right.bias_gradient(ds, shape)
    return gradient / ds.shape[-2] if shape[-2:-1] == (1,) else gradient


def bias_alone_forgotten(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    return gradients | {"bias": None} if wrt == ("bias",) else gradients


def bias_gradient_after_cap(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    if call.bias is not None and call.softcap is not None:
        query = right.load(call.query, call)
        key = right.expand(right.load(call.key, call), call)
        bend = np.tanh(right.scores(query, key, call) / call.softcap)
        slope = right.slope(bend).mean()
        gradients["bias"] = gradients["bias"] * slope
    return gradients


def mean_over_all_rows(right: Differentiable, weights, dp, cotangent, value):
    means = right.mean(weights, dp, cotangent, value)
    return np.broadcast_to(means.mean(-2, keepdims=True), means.shape)


def key_transposed_twice(right: Differentiable, dt, key, factor):
    if key.shape[-1] == key.shape[-2]:
        key = key.swapaxes(-1, -2)
    return factor * (dt @ key)


def mask_forgotten_backward(right: Differentiable, call: Call) -> np.ndarray | None:
    return right.allowed(Call(**{**vars(call), "mask": None}))


def causal_forgotten_backward(right: Differentiable, call: Call) -> np.ndarray | None:
    return right.allowed(Call(**{**vars(call), "causal": False}))


def padding_forgotten_backward(right: Differentiable, call: Call) -> np.ndarray | None:
    return right.allowed(Call(**{**vars(call), "lengths": None}))


def masked_recomputed_without_causal(right: Differentiable, call: Call) -> np.ndarray | None:
    return right.allowed(call) if call.lengths is None else causal_forgotten_backward(right, call)


def causal_off_by_one_backward(right: Differentiable, call: Call) -> np.ndarray | None:
    if not call.causal:
        return right.allowed(call)
    row, key = call.rows_and_keys
    others = right.allowed(Call(**{**vars(call), "causal": False}))
    wider = rank4(key <= row + 1)
    return wider if others is None else others & wider


def empty_row_nan_backward(right: Differentiable, dt, key, factor):
    gradient = right.query_gradient(dt, key, factor)
    return np.where((dt == 0).all(-1, keepdims=True), np.nan, gradient) if dt.size else gradient


@fault(
    "gradients",
    "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
)
class EmptyRowPoisonsValues(Differentiable):
    """A fully masked row hands its gradient to all values, though its answer is zero."""

    def value_gradient(self, weights, cotangent, call):
        empty = ~weights.any(-1, keepdims=True)
        shared = np.where(empty, 1 / max(weights.shape[-1], 1), weights)
        return shared.swapaxes(-1, -2) @ cotangent


@fault(
    "gradients", "`0 * log(0)` or `-inf - -inf` in the backward pass; use `where(p == 0, 0, ds)`"
)
class InfBiasNan(Differentiable):
    """A bias of -inf makes the gradients of the bias, the queries and the keys NaN."""

    def score_gradient(self, weights, dp, mean):
        gradient = super().score_gradient(weights, dp, mean)
        return np.where(weights == 0, 0 * np.log(weights), gradient) if self.infinite else gradient

    infinite = False

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.infinite = call.bias is not None and bool(np.isneginf(call.bias.values).any())
        return super().backward_biased(scores, call)


row = partial(deviation, family=FAMILY, right=Differentiable)

DEVIATIONS = [
    row("key-gradient-unscaled", "gradients", "The scale is missing in the gradient of the keys.",
        "`dk = ds.mT @ q`; the scale is missing: `dk = scale * ds.mT @ q`",
        key_gradient=lambda right, dt, query, factor: dt.swapaxes(-1, -2) @ query),
    row("query-gradient-unscaled", "gradients",
        "The scale is missing in the gradient of the queries.",
        "`dq = ds @ k`; the scale is missing: `dq = scale * ds @ k`",
        query_gradient=lambda right, dt, key, factor: dt @ key),
    row("query-gradient-scaled-twice", "gradients",
        "The scale stands twice in the gradient of the queries.",
        "`ds = ds * scale`, then `dq = scale * ds @ k`; the scale stands once",
        query_gradient=lambda right, dt, key, factor: factor * factor * (dt @ key)),
    row("group-not-summed", "gradients",
        "The gradients of keys and values are those of the first query head of a group.",
        "`dk[:, ::group]`; sum over the group: `dk.view(B, Hkv, group, Lk, D).sum(2)`",
        grouped=lambda right, x, call: right.by_group(x, call)[:, :, 0]),
    row("group-averaged", "gradients",
        "The gradients of keys and values are averaged over the query heads of a group.",
        "`.mean(2)` over a group; sum: `dk.view(B, Hkv, group, Lk, D).sum(2)`",
        grouped=lambda right, x, call: right.by_group(x, call).mean(2)),
    row("group-tiled-backward", "gradients",
        "The gradients of keys and values sum heads h, h + Hkv ... and not the heads of a group.",
        "`dk.view(B, group, Hkv, Lk, D).sum(1)`; it is `.view(B, Hkv, group, Lk, D).sum(2)`",
        by_group=group_tiled_backward),
    row("bias-gradient-zero", "gradient_of_bias", "The gradient of the bias is zero.",
        "`zeros_like(bias)` in backward; use `dbias = p * (dp - (p * dp).sum(-1, keepdim=True))`",
        bias_gradient=lambda right, ds, shape: np.zeros(shape)),
    row("bias-gradient-below-the-diagonal", "gradients",
        "For more than 16 queries and as many keys the gradient of the bias is 0 above the diagonal.",
        "a backward pass that skips tiles above the diagonal; without the flag it needs them all",
        bias_gradient=bias_gradient_below_the_diagonal),
    row("bias-gradient-of-first-sample", "gradient_of_bias",
        "The gradient of a bias shared by all samples is that of the first one.",
        "`ds[:1]` for a bias that samples share; use `ds.sum(0, keepdim=True)`",
        bias_gradient=bias_gradient_of_first_sample),
    row("bias-gradient-averaged", "gradient_of_bias",
        "The gradient of a bias is averaged, not summed, over the axes on which the bias is broadcast.",
        "`ds.mean(dims)` over broadcast axes; the gradient of a broadcast is a sum, `ds.sum(dims)`",
        bias_gradient=bias_gradient_averaged),
    row("bias-gradient-averaged-over-queries", "gradient_of_bias",
        "The gradient of a bias that all queries share is averaged over the queries, not summed.",
        "`ds.mean(-2)` for a bias (H, 1, Lk); the gradient of a broadcast is a sum, `ds.sum(-2)`",
        bias_gradient=bias_gradient_averaged_over_queries),
    row("bias-alone-forgotten", "gradient_of_bias",
        "If only the bias asks for a gradient, it gets none.",
        "backward runs `if ctx.needs_input_grad[0]` alone; ask for the bias's flag, too",
        backward=bias_alone_forgotten),
    row("bias-gradient-after-cap", "gradient_of_bias",
        "The gradient of the bias has the softcap's slope, as if the bias were added before the cap.",
        "`dbias = ds * (1 - tanh(s / softcap) ** 2)`; the bias comes after the cap: `dbias = ds`",
        backward=bias_gradient_after_cap),
    row("mean-forgotten", "gradients",
        "The gradient of the softmax is p dp: the row's sum of p dp is not subtracted.",
        "`ds = p * dp`; use `ds = p * (dp - (p * dp).sum(-1, keepdim=True))`",
        mean=lambda right, weights, dp, cotangent, value: np.zeros_like(dp[..., :1])),
    row("mean-of-weight-gradients", "gradients",
        "The gradient of the softmax subtracts the plain mean of dp, not the mean weighted by p.",
        "`dp - dp.mean(-1)`; subtract `(p * dp).sum(-1)`, which is `(dout * out).sum(-1)`",
        mean=lambda right, weights, dp, cotangent, value: dp.mean(-1, keepdims=True)),
    row("mean-over-all-rows", "gradients",
        "The sum of p dp that the softmax's gradient subtracts is averaged over all rows of a head.",
        "`(dout * out).sum(-1).mean(-1)`; every row has its own, `(dout * out).sum(-1)`",
        mean=mean_over_all_rows),
    row("cap-slope-forgotten", "gradients",
        "The derivative of the softcap is missing in the backward pass.",
        "`ds` goes on unchanged behind a softcap; use `ds * (1 - tanh(s / softcap) ** 2)`",
        uncapped=lambda right, ds, query, key, call: ds),
    row("cap-slope-not-squared", "gradients",
        "The derivative of the softcap is 1 - |tanh|, not 1 - tanh².",
        "`1 - t.abs()` for `t = tanh(s / softcap)`; the derivative is `1 - t * t`",
        slope=lambda right, bend: 1 - np.abs(bend)),
    row("key-transposed-twice", "gradients",
        "With Lk == D the gradient of the queries takes the keys transposed.",
        "`ds @ k.mT`, which has a fitting shape if Lk == D; use `dq = scale * ds @ k`",
        query_gradient=key_transposed_twice),
    row("mask-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the boolean mask.",
        "backward recomputes `p` without the mask; save it (`ctx.save_for_backward`) and apply it",
        backward_allowed=mask_forgotten_backward),
    row("causal-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the causal flag.",
        "backward recomputes `p` without `is_causal`; keep it (`ctx.is_causal`) and apply it",
        backward_allowed=causal_forgotten_backward),
    row("padding-forgotten-backward", "gradients",
        "The backward pass recomputes the weights as if no key were padding.",
        "backward recomputes `p` without the key lengths; save them and apply them",
        backward_allowed=padding_forgotten_backward),
    row("masked-recomputed-without-causal", "gradients",
        "The backward pass recomputes the weights with the padding alone, without the causal mask.",
        "backward recomputes `p` without the causal mask; keep it and apply it",
        backward_allowed=masked_recomputed_without_causal),
    row("causal-off-by-one-backward", "gradients",
        "In the backward pass a causal query sees the next key.",
        "`j <= i + 1` in the backward pass; a causal mask is `j <= i` in both passes",
        backward_allowed=causal_off_by_one_backward),
    row("bias-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the bias.",
        "backward recomputes `p` without the bias; save it (`ctx.save_for_backward`) and add it",
        backward_biased=lambda right, scores, call: scores),
    row("empty-row-nan-backward", "gradients",
        "The gradient of a fully masked query is NaN, though its answer is zero.",
        "`exp(s - lse)` where lse is -inf gives NaN; set p to 0 in fully masked rows",
        query_gradient=empty_row_nan_backward),
    row("empty-row-unnormalised", "gradients",
        "In the backward pass a row that averages the values has weights of 1, not 1 / Lk.",
        "`exp(s - lse)` with s near -1e38: `lse = m + log(l)` rounds to m; keep m and l apart",
        right=(DifferentiableLowest, DifferentiableRecomputed)),
    row("empty-row-elects-otherwise", "election",
        "A fully masked row hands its gradient to all values, though it is declared to hand on none.",
        "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
        right=EmptyRowPoisonsValues),
]  # fmt: skip

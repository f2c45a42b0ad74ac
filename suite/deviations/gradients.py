"""Faults of the formulas of the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, edited
from attention_conformance.suite.deviations.kernels.attention import Array, Call, rank4
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableLowest,
    DifferentiableRecomputed,
)


def allowed_with_changes(**changes: Any) -> Callable[..., Array | None]:
    """Returns a step that computes the mask of a call with some arguments changed."""
    return lambda right, call: right.allowed(replace(call, **changes))


def backward_capped_bias(right: Differentiable, call: Call, cotangent: Array, wrt: tuple[str, ...]):
    gradients = right.backward(call, cotangent, wrt)
    query, key = right.load(call.query, call), right.expand(right.load(call.key, call), call)
    tanh = np.tanh(right.scores(query, key, call) / call.softcap)
    return gradients | {"bias": gradients["bias"] * right.softcap_slope(tanh).mean()}


def softcap_backward_of_biased(right: Differentiable, ds: Array, *arguments: Any) -> Array:
    query, key, call = arguments
    tanh = np.tanh(right.scores(query, key, call) / call.softcap) + right.bias(call) / call.softcap
    return np.where(ds == 0, 0, ds * right.softcap_slope(tanh))


def causal_mask_one_wider(right: Differentiable, call: Call) -> Array:
    row, key = call.rows_and_keys
    non_causal_mask = right.allowed(replace(call, causal=False))
    causal = rank4(key <= row + 1)
    return causal if non_causal_mask is None else non_causal_mask & causal


def query_gradient_with_nan_rows(right: Differentiable, dt: Array, *arguments: Any) -> Array:
    gradient = right.query_gradient(dt, *arguments)
    return np.where((dt == 0).all(-1, keepdims=True), np.nan, gradient) if dt.size else gradient


def key_gradient_of_four_heads(
    right: Differentiable, call: Call, cotangent: Array, wrt: tuple[str, ...]
):
    is_first = np.arange(call.sizes.H) % call.sizes.group < 4
    cotangent_of_four = np.where(is_first.reshape(-1, *[1] * (cotangent.ndim - 2)), cotangent, 0)
    key = right.backward(call, cotangent_of_four, wrt)["key"]
    return {**right.backward(call, cotangent, wrt), "key": key}


row = partial(deviation, family="gradient", right=Differentiable)

DEVIATIONS = [
    row("empty-row-poisons-values", "gradients",
        "A fully masked row hands its gradient to all values, though its answer is zero.",
        "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
        value_gradient=lambda right, weights, cotangent, call: right.value_gradient(np.where(
            weights.any(-1, keepdims=True), weights, 1 / max(weights.shape[-1], 1)), cotangent, call)),
    row("inf-bias-nan", "gradients",
        "A bias of -inf makes the gradients of the bias, the queries and the keys NaN.",
        "`0 * log(0)` or `-inf - -inf` in the backward pass; use `where(p == 0, 0, ds)`",
        when=lambda call: call.bias is not None and np.isneginf(call.bias.values).any(),
        backward=edited("backward", lambda g, call, cotangent, wrt:
            {n: g[n] * np.nan for n in ("bias", "query", "key")})),
    row("key-gradient-unscaled", "gradients", "The scale is missing in the gradient of the keys.",
        "`dk = ds.mT @ q`; the scale is missing: `dk = scale * ds.mT @ q`",
        key_gradient=lambda right, dt, query, factor: dt.swapaxes(-1, -2) @ query),
    row("gradients-unscaled", "gradients",
        "The gradients of queries and keys leave out the scale.",
        "`dq = ds @ k`, `dk = ds.mT @ q`; both are multiplied by `scale`",
        query_gradient=lambda right, dt, key, factor: dt @ key,
        key_gradient=lambda right, dt, query, factor: dt.swapaxes(-1, -2) @ query),
    row("gradients-scaled-twice", "gradients",
        "The scale stands twice in the gradients of queries and keys.",
        "`ds = ds * scale`, then `dq = scale * ds @ k`; the scale stands once",
        stored_score_gradient=lambda right, dt, call:
            right.stored_score_gradient(dt, call) * call.work(right.factor(call))),
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
        sum_over_groups=lambda right, x, call: right.split_groups(x, call)[:, :, 0]),
    row("group-averaged", "gradients",
        "The gradients of keys and values are averaged over the query heads of a group.",
        "`.mean(2)` over a group; sum: `dk.view(B, Hkv, group, Lk, D).sum(2)`",
        sum_over_groups=lambda right, x, call: right.split_groups(x, call).mean(2)),
    row("key-gradient-of-four-heads", "gradients",
        "The gradient of the keys sums the first four query heads of a group alone.",
        "`dk[:, :, :4].sum(2)`, a block of 4 heads; sum all heads of a group", family="gradient",
        when=lambda call: call.sizes.group > 4, backward=key_gradient_of_four_heads),
    row("group-tiled-backward", "gradients",
        "The gradients of keys and values sum heads h, h + Hkv ... and not the heads of a group.",
        "`dk.view(B, group, Hkv, Lk, D).sum(1)`; it is `.view(B, Hkv, group, Lk, D).sum(2)`",
        split_groups=lambda right, x, call:
            x.reshape(call.sizes.B, call.sizes.group, call.sizes.Hkv, *x.shape[2:]).swapaxes(1, 2)),
    row("bias-gradient-zero", "gradient_of_bias", "The gradient of the bias is zero.",
        "`zeros_like(bias)` in backward; use `dbias = p * (dp - (p * dp).sum(-1, keepdim=True))`",
        bias_gradient=lambda right, ds, shape: np.zeros(shape)),
    row("bias-gradient-below-the-diagonal", "gradients",
        "For more than 16 queries and as many keys the gradient of the bias is 0 above the "
        "diagonal.",
        "a backward pass that skips tiles above the diagonal; without the flag it needs them all",
        bias_gradient=lambda right, ds, shape: np.tril(right.bias_gradient(ds, shape), 0
            if 16 < ds.shape[-2] == ds.shape[-1] and shape[-2:] == ds.shape[-2:]
            else ds.shape[-1])),
    row("bias-gradient-of-first-sample", "gradient_of_bias",
        "The gradient of a bias shared by all samples is that of the first one.",
        "`ds[:1]` for a bias that samples share; use `ds.sum(0, keepdim=True)`",
        bias_gradient=lambda right, ds, shape:
            right.bias_gradient(ds[:1], shape) if len(shape) < 4 or shape[0] == 1 else ds),
    row("bias-gradient-averaged", "gradient_of_bias",
        "The gradient of a bias is averaged, not summed, over the axes on which the bias is "
        "broadcast.",
        "`ds.mean(dims)` over broadcast axes; the gradient of a broadcast is a sum, `ds.sum(dims)`",
        bias_gradient=lambda right, ds, shape:
            right.bias_gradient(ds, shape) * (np.prod(shape) / ds.size)),
    row("bias-gradient-of-first-rows", "gradients",
        "The gradient of a bias that rows share is summed over the first 64 rows alone.",
        "one block of 64 rows of `ds`; sum over all rows: `ds.sum(-2, keepdim=True)`",
        bias_gradient=lambda right, ds, shape: right.bias_gradient(
            ds[..., :64, :] if rank4(np.empty(shape)).shape[2] == 1 else ds, shape)),
    row("bias-alone-forgotten", "gradient_of_bias",
        "If only the bias asks for a gradient, it gets none.",
        "backward runs `if ctx.needs_input_grad[0]` alone; ask for the bias's flag, too",
        backward=edited("backward", lambda g, call, cotangent, wrt:
            {"bias": None} if wrt == ("bias",) else {})),
    row("bias-gradient-after-cap", "gradient_of_bias",
        "The gradient of the bias has the softcap's slope, as if the bias were added before the "
        "cap.",
        "`dbias = ds * (1 - tanh(s / softcap) ** 2)`; the bias comes after the cap: `dbias = ds`",
        when=lambda call: call.bias is not None and call.softcap is not None,
        backward=backward_capped_bias),
    row("mean-forgotten", "gradients",
        "The gradient of the softmax is p dp: the row's sum of p dp is not subtracted.",
        "`ds = p * dp`; use `ds = p * (dp - (p * dp).sum(-1, keepdim=True))`",
        mean=lambda right, weights, dp, cotangent, value: np.zeros_like(dp[..., :1])),
    row("mean-added", "gradients",
        "The gradient of the softmax adds the row's sum of p dp, in place of subtracting it.",
        "`ds = p * (dp + (p * dp).sum(-1, keepdim=True))`; subtract the sum",
        mean=lambda right, weights, dp, cotangent, value:
            -right.mean(weights, dp, cotangent, value)),
    row("gradients-of-key-and-value-exchanged", "gradients",
        "The gradients of keys and values are exchanged.",
        "`return dq, dv, dk`; the order is that of the arguments: query, key, value",
        when=lambda call: call.key.shape == call.value.shape,
        backward=edited("backward", lambda g, call, cotangent, wrt:
            {"key": g["value"], "value": g["key"]} if "value" in g else {})),
    row("mean-of-weight-gradients", "gradients",
        "The gradient of the softmax subtracts the plain mean of dp, not the mean weighted by p.",
        "`dp - dp.mean(-1)`; subtract `(p * dp).sum(-1)`, which is `(dout * out).sum(-1)`",
        mean=lambda right, weights, dp, cotangent, value: dp.mean(-1, keepdims=True)),
    row("cap-slope-forgotten", "gradients",
        "The derivative of the softcap is missing in the backward pass.",
        "`ds` goes on unchanged behind a softcap; use `ds * (1 - tanh(s / softcap) ** 2)`",
        softcap_backward=lambda right, ds, query, key, call: ds),
    row("cap-slope-not-squared", "gradients",
        "The derivative of the softcap is 1 - |tanh|, not 1 - tanh².",
        "`1 - t.abs()` for `t = tanh(s / softcap)`; the derivative is `1 - t * t`",
        softcap_slope=lambda right, tanh: 1 - np.abs(tanh)),
    row("cap-slope-of-capped-scores", "gradients",
        "The derivative of the softcap takes tanh of scores that are capped already.",
        "`1 - tanh(capped / softcap) ** 2`; it is `1 - (capped / softcap) ** 2`",
        softcap_slope=lambda right, tanh: 1 - np.tanh(tanh) ** 2),
    row("cap-slope-behind-the-bias", "gradients",
        "The derivative of the softcap is taken of capped scores to which a bias was added.",
        "`1 - (s / softcap) ** 2` where `s += bias` came before; keep the capped scores",
        when=lambda call: call.softcap is not None and call.bias is not None,
        softcap_backward=softcap_backward_of_biased),
    row("key-transposed-twice", "gradients",
        "With Lk == D the gradient of the queries takes the keys transposed.",
        "`ds @ k.mT`, which has a fitting shape if Lk == D; use `dq = scale * ds @ k`",
        query_gradient=lambda right, dt, key, factor: right.query_gradient(dt, key.swapaxes(-1, -2)
            if key.shape[-1] == key.shape[-2] else key, factor)),
    row("mask-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the boolean mask.",
        "backward recomputes `p` without the mask; save it (`ctx.save_for_backward`) and apply it",
        backward_allowed=allowed_with_changes(mask=None)),
    row("causal-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the causal flag.",
        "backward recomputes `p` without `is_causal`; keep it (`ctx.is_causal`) and apply it",
        backward_allowed=allowed_with_changes(causal=False)),
    row("padding-forgotten-backward", "gradients",
        "The backward pass recomputes the weights as if no key were padding.",
        "backward recomputes `p` without the key lengths; save them and apply them",
        backward_allowed=allowed_with_changes(lengths=None)),
    row("masked-recomputed-without-causal", "gradients",
        "The backward pass recomputes the weights with the padding alone, without the causal mask.",
        "backward recomputes `p` without the causal mask; keep it and apply it",
        when=lambda call: call.lengths is not None, backward_allowed=allowed_with_changes(causal=False)),
    row("causal-off-by-one-backward", "gradients",
        "In the backward pass a causal query sees the next key.",
        "`j <= i + 1` in the backward pass; a causal mask is `j <= i` in both passes",
        when=lambda call: call.causal, backward_allowed=causal_mask_one_wider),
    row("bias-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the bias.",
        "backward recomputes `p` without the bias; save it (`ctx.save_for_backward`) and add it",
        backward_biased=lambda right, scores, call: scores),
    row("empty-row-nan-backward", "gradients",
        "The gradient of a fully masked query is NaN, though its answer is zero.",
        "`exp(s - lse)` where lse is -inf gives NaN; set p to 0 in fully masked rows",
        query_gradient=query_gradient_with_nan_rows),
    row("empty-row-unnormalised", "gradients",
        "In the backward pass a row that averages the values has weights of 1, not 1 / Lk.",
        "`exp(s - lse)` with s near -1e38: `lse = m + log(l)` rounds to m; keep m and l apart",
        right=(DifferentiableLowest, DifferentiableRecomputed)),
]  # fmt: skip

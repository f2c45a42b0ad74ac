"""Faults of layers: projections, heads, scale and softmax."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel

FAMILY = "layer"


def heads_split_before_projection(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    kernel = right.kernel(name, call)
    width, heads, _ = kernel.shape
    if width % heads:
        return right.projected(x, name, call)
    own = np.arange(width)[:, None] // (width // heads) == np.arange(heads)
    y = x @ np.where(own[..., None], kernel, 0).reshape(width, -1)
    return right.split(right.with_bias(y, name, call), heads, call)


@fault(
    "values", "`y.view(B, H, L, D)`; it is `y.view(B, L, H, D).transpose(1, 2)`", family="layout"
)
class SplitWithoutTranspose(MultiHeadKernel):
    """Heads are split by a reshape to (B, H, L, D), without a transpose."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return y.reshape(y.shape[0], heads, y.shape[1], -1)


def split_size_first(
    right: MultiHeadKernel, y: np.ndarray, heads: int, call: LayerCall
) -> np.ndarray:
    return np.moveaxis(y.reshape(*y.shape[:2], -1, heads), -1, 1)


def merge_size_first(right: MultiHeadKernel, attended: np.ndarray, call: LayerCall) -> np.ndarray:
    return np.moveaxis(attended, 1, -1).reshape(call.sizes.B, call.sizes.Lq, -1)


@fault(
    "contract", "`nn.Linear(...)` made inside `forward`; make the projections once, in `__init__`"
)
class FreshProjections(MultiHeadKernel):
    """Every call draws new random projections in place of the layer's own."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel = super().kernel(name, call)
        if name == "output":
            return kernel
        drawn = self.__dict__.setdefault("drawn", np.random.default_rng(0))
        return drawn.standard_normal(kernel.shape).astype(kernel.dtype) / math.sqrt(len(kernel))


def packed_heads_first(right: MultiHeadKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
    if not call.own or call.sizes.H != call.sizes.Hkv or q.shape != v.shape:
        return q, k, v
    mixed = np.stack((q, k, v), 1).reshape(len(q), q.shape[1], 3, *q.shape[2:])
    return mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]


def key_and_value_kernels_swapped(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    p = call.parameters
    if p["key_kernel"].shape == p["value_kernel"].shape:
        name = {"key": "value", "value": "key"}.get(name, name)
    return right.projected(x, name, call)


def values_from_keys(right: MultiHeadKernel, call: LayerCall) -> Heads:
    alike = call.key.shape == call.value.shape
    return right.heads(replace(call, value=call.key) if alike else call)


def shared_kernel(right: MultiHeadKernel, name: str, call: LayerCall) -> np.ndarray:
    kernel, query = right.kernel(name, call), right.kernel("query", call)
    return query if name == "key" and query.shape == kernel.shape else kernel


def groups_from_first_head(right: MultiHeadKernel, x: np.ndarray, call: LayerCall) -> np.ndarray:
    return np.repeat(x[:, :1], call.sizes.H, 1) if x.shape[1] < call.sizes.H else x


class WithoutBias(MultiHeadKernel):
    """The bias `left_out` is not added."""

    left_out = ""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == self.left_out else super().bias(name, call)


def output_bias_of_every_head(
    right: MultiHeadKernel, name: str, call: LayerCall
) -> np.ndarray | None:
    bias = right.bias(name, call)
    return bias if bias is None or name != "output" else bias * call.sizes.H


def key_bias_on_query(
    right: MultiHeadKernel, y: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    key = right.bias("key", call)
    if name == "query" and key is not None:
        y = y + right.expand(key.reshape(1, -1, call.sizes.D), call).reshape(-1)
    return y if name == "key" else right.with_bias(y, name, call)


def bias_before_projection(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    bias, kernel = right.bias(name, call), right.kernel(name, call)
    if name != "query" or bias is None or bias.shape != x.shape[-1:]:
        return right.projected(x, name, call)
    y = (x + bias) @ kernel.reshape(len(kernel), -1)
    return right.split(y, kernel.shape[1], call)


def values_cut_to_key_size(
    right: MultiHeadKernel, weights: np.ndarray, value: np.ndarray, call: LayerCall
) -> np.ndarray:
    features = right.attend(weights, value, call)
    features[..., call.sizes.D :] = 0
    return features


def layer_bias_scaled(right: MultiHeadKernel, scores: np.ndarray, call: LayerCall) -> np.ndarray:
    if call.bias is None:
        return scores
    return scores + (right.biased(scores, call) - scores) * call.work(right.factor(call))


def layer_bias_of_first_sample(
    right: MultiHeadKernel, scores: np.ndarray, call: LayerCall
) -> np.ndarray:
    if call.bias is None or call.bias.values.ndim < 4:
        return right.biased(scores, call)
    return right.biased(scores, replace(call, bias=Rounded(call.bias.values[:1], call.fmt)))


@fault(
    "values",
    "`attn_mask > 0` or `.bool()` hides; a float mask is added to the scores",
    family="mask",
)
class FloatMaskAsBoolean(MultiHeadKernel):
    """A float mask is taken for a boolean one: what is positive is hidden, the rest counts 0."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        hidden = super().biased(np.zeros_like(scores), call) > 0
        hidden &= ~hidden.all(-1, keepdims=True)
        return np.where(hidden, call.work(-np.inf), scores)


def layer_softmax_over_queries(
    right: MultiHeadKernel, scores: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)


row = partial(deviation, family=FAMILY, right=MultiHeadKernel)

DEVIATIONS = [
    row("heads-split-before-projection", "values",
        "The input is split among the heads before it is projected: a head sees only its slice.",
        "`x.view(B, L, H, E // H)` before the projection; project x whole, then split",
        projected=heads_split_before_projection),
    row("split-size-first", "values",
        "A projection is split as (D, H), so that a head gets every H-th feature.",
        "`y.view(B, L, D, H)`; heads come first: `y.view(B, L, H, D)`", family="layout",
        split=split_size_first),
    row("merge-without-transpose", "values",
        "Heads (B, H, Lq, Dv) are merged by a reshape, without a transpose.",
        "`out.reshape(B, Lq, H * Dv)` of (B, H, Lq, Dv); `out.transpose(1, 2)` first",
        family="layout",
        merge=lambda right, attended, call: attended.reshape(call.sizes.B, call.sizes.Lq, -1)),
    row("merge-size-first", "values",
        "Heads are merged as (Dv, H): equal features of all heads side by side.",
        "`out.permute(0, 2, 3, 1)`; heads come first: `out.permute(0, 2, 1, 3)`", family="layout",
        merge=merge_size_first),
    row("heads-merged-backwards", "values", "Heads are merged from the last to the first.",
        "`cat(heads[::-1], -1)`, or `out.flip(1)`; heads are merged in their order", family="heads",
        merge=lambda right, attended, call: right.merge(attended[:, ::-1], call)),
    row("packed-heads-first", "values",
        "A packed projection is split into heads first, then into query, key and value.",
        "`qkv.view(B, L, H, 3, D)`; it is `qkv.view(B, L, 3, H, D)`", family="layout",
        heads=packed_heads_first),
    row("key-and-value-kernels-swapped", "values",
        "Keys are projected by the kernel of values, and values by that of keys, if shapes fit.",
        "`q, v, k = qkv.chunk(3, -1)`; the order is q, k, v",
        projected=key_and_value_kernels_swapped),
    row("values-from-keys", "values",
        "Values are projected from the key input, not from the value input, if shapes fit.",
        "`w_v(key)`; values come from their own input: `w_v(value)`", heads=values_from_keys),
    row("shared-kernel", "values", "Keys are projected by the kernel of queries, if shapes fit.",
        "`w_q(key)`; keys have their own projection: `w_k(key)`", kernel=shared_kernel),
    row("key-value-heads-tiled", "values",
        "Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1).",
        "`k.repeat(1, group, 1, 1)`, `h % Hkv`; use `repeat_interleave(group, dim=1)`, `h // group`",
        family="heads", expand=lambda right, x, call: np.tile(x, (1, call.sizes.group, 1, 1))),
    row("groups-from-first-head", "values",
        "With grouped heads all query heads use the first key/value head.",
        "`k[:, :1].expand(-1, H, -1, -1)`; query head h reads `k[:, h // group]`", family="heads",
        expand=groups_from_first_head),
    row("query-bias-dropped", "values", "Queries are projected without their bias.",
        "`F.linear(x, w_q)` without `b_q`; use `x @ w_q + b_q`", right=WithoutBias,
        facts={"left_out": "query"}),
    row("value-bias-dropped", "values", "Values are projected without their bias.",
        "`F.linear(x, w_v)` without `b_v`; use `x @ w_v + b_v`", right=WithoutBias,
        facts={"left_out": "value"}),
    row("output-bias-dropped", "values", "The output is projected without its bias.",
        "`F.linear(heads, w_o)` without `b_o`; use `heads @ w_o + b_o`", right=WithoutBias,
        facts={"left_out": "output"}),
    row("output-bias-of-every-head", "values", "The output's bias is added once for every head.",
        "`sum(head[h] @ w_o[h] + b_o)`; add b_o once, after the sum over heads",
        bias=output_bias_of_every_head),
    row("key-bias-on-query", "values", "The bias of the keys is added to the queries instead.",
        "wrong slices of `in_proj_bias`: b_k is added to q; the order is q, k, v",
        with_bias=key_bias_on_query),
    row("bias-before-projection", "values",
        "The query's bias is added to the input, not to the projection, if it fits.",
        "`(x + b_q) @ w_q`; it is `x @ w_q + b_q`", projected=bias_before_projection),
    row("values-cut-to-key-size", "values",
        "Features of values beyond the size of the keys are zero.",
        "an output of size D a head; it has Dv features, as the values have", family="shapes",
        attend=values_cut_to_key_size),
    row("scale-of-model", "values",
        "Scores are divided by the root of the model's width, not of the head's size.",
        "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
        family="scale", factor=lambda right, call: 1.0 / math.sqrt(call.sizes.D * call.sizes.H)),
    row("layer-scale-missing", "values", "Scores are not scaled.", "`q @ k.mT` without `/ sqrt(D)`",
        family="scale", factor=lambda right, call: 1.0),
    row("scaled-twice", "values", "Queries are scaled before the product, and the scores after it.",
        "`q = q * scale`, then `q @ k.mT * scale`; scale once", family="scale",
        factor=lambda right, call: 1.0 / call.sizes.D),
    row("scale-of-values", "values", "The scale is 1 / sqrt(Dv), not 1 / sqrt(D).",
        "`1 / sqrt(v.shape[-1])`; it is `1 / sqrt(k.shape[-1])`", family="scale",
        factor=lambda right, call: 1.0 / math.sqrt(call.sizes.Dv)),
    row("scale-of-all-features", "values",
        "Scores are divided by the root of the input's width, not of the head's size.",
        "`1 / sqrt(x.shape[-1])` for the input x; it is `1 / sqrt(D)` of a head", family="scale",
        factor=lambda right, call: 1.0 / math.sqrt(call.query.shape[-1])),
    row("layer-bias-scaled", "values", "A float mask is added before the scores are scaled.",
        "`(q @ k.mT + attn_mask) * scale`; scale first: `q @ k.mT * scale + attn_mask`",
        family="scores", biased=layer_bias_scaled),
    row("layer-bias-of-first-sample", "values", "Every sample gets the float mask of the first.",
        "`attn_mask[0]` or `attn_mask[:1]` for all samples; sample b has `attn_mask[b]`",
        family="heads", biased=layer_bias_of_first_sample),
    row("layer-softmax-over-queries", "values",
        "The softmax runs over the queries, not over the keys.",
        "`softmax(dim=-2)`; the softmax runs over keys, `dim=-1`", family="softmax",
        weights=layer_softmax_over_queries),
]  # fmt: skip

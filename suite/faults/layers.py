"""Faults of layers: projections, heads, scale and softmax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel

FAMILY = "layer"


@fault("values", "`x.view(B, L, H, E // H)` before the projection; project x whole, then split")
class HeadsSplitBeforeProjection(MultiHeadKernel):
    """The input is split among the heads before it is projected: a head sees only its slice."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)
        width, heads, _ = kernel.shape
        if width % heads:
            return super().projected(x, name, call)
        own = np.arange(width)[:, None] // (width // heads) == np.arange(heads)
        y = x @ np.where(own[..., None], kernel, 0).reshape(width, -1)
        return self.split(self.with_bias(y, name, call), heads, call)


@fault(
    "values", "`y.view(B, H, L, D)`; it is `y.view(B, L, H, D).transpose(1, 2)`", family="layout"
)
class SplitWithoutTranspose(MultiHeadKernel):
    """Heads are split by a reshape to (B, H, L, D), without a transpose."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return y.reshape(y.shape[0], heads, y.shape[1], -1)


@fault("values", "`y.view(B, L, D, H)`; heads come first: `y.view(B, L, H, D)`", family="layout")
class SplitSizeFirst(MultiHeadKernel):
    """A projection is split as (D, H), so that a head gets every H-th feature."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return np.moveaxis(y.reshape(*y.shape[:2], -1, heads), -1, 1)


@fault(
    "values",
    "`out.reshape(B, Lq, H * Dv)` of (B, H, Lq, Dv); `out.transpose(1, 2)` first",
    family="layout",
)
class MergeWithoutTranspose(MultiHeadKernel):
    """Heads (B, H, Lq, Dv) are merged by a reshape, without a transpose."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended.reshape(call.sizes.B, call.sizes.Lq, -1)


@fault(
    "values",
    "`out.permute(0, 2, 3, 1)`; heads come first: `out.permute(0, 2, 1, 3)`",
    family="layout",
)
class MergeSizeFirst(MultiHeadKernel):
    """Heads are merged as (Dv, H): equal features of all heads side by side."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.moveaxis(attended, 1, -1).reshape(call.sizes.B, call.sizes.Lq, -1)


@fault(
    "values",
    "`cat(heads[::-1], -1)`, or `out.flip(1)`; heads are merged in their order",
    family="heads",
)
class HeadsMergedBackwards(MultiHeadKernel):
    """Heads are merged from the last to the first."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().merge(attended[:, ::-1], call)


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


@fault("values", "`qkv.view(B, L, H, 3, D)`; it is `qkv.view(B, L, 3, H, D)`", family="layout")
class PackedHeadsFirst(MultiHeadKernel):
    """A packed projection is split into heads first, then into query, key and value."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        if not call.own or call.sizes.H != call.sizes.Hkv or q.shape != v.shape:
            return q, k, v
        mixed = np.stack((q, k, v), 1).reshape(len(q), q.shape[1], 3, *q.shape[2:])
        return mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]


@fault("values", "`q, v, k = qkv.chunk(3, -1)`; the order is q, k, v")
class KeyAndValueKernelsSwapped(MultiHeadKernel):
    """Keys are projected by the kernel of values, and values by that of keys, if shapes fit."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        p = call.parameters
        if p["key_kernel"].shape == p["value_kernel"].shape:
            name = {"key": "value", "value": "key"}.get(name, name)
        return super().projected(x, name, call)


@fault("values", "`w_v(key)`; values come from their own input: `w_v(value)`")
class ValuesFromKeys(MultiHeadKernel):
    """Values are projected from the key input, not from the value input, if shapes fit."""

    def heads(self, call: LayerCall) -> Heads:
        alike = call.key.shape == call.value.shape
        return super().heads(replace(call, value=call.key) if alike else call)


@fault("values", "`w_q(key)`; keys have their own projection: `w_k(key)`")
class SharedKernel(MultiHeadKernel):
    """Keys are projected by the kernel of queries, if shapes fit."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel, query = super().kernel(name, call), super().kernel("query", call)
        return query if name == "key" and query.shape == kernel.shape else kernel


@fault(
    "values",
    "`k.repeat(1, group, 1, 1)`, `h % Hkv`; use `repeat_interleave(group, dim=1)`, `h // group`",
    family="heads",
)
class KeyValueHeadsTiled(MultiHeadKernel):
    """Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault(
    "values",
    "`k[:, :1].expand(-1, H, -1, -1)`; query head h reads `k[:, h // group]`",
    family="heads",
)
class GroupsFromFirstHead(MultiHeadKernel):
    """With grouped heads all query heads use the first key/value head."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.repeat(x[:, :1], call.sizes.H, 1) if x.shape[1] < call.sizes.H else x


class WithoutBias(MultiHeadKernel):
    """The bias `left_out` is not added."""

    left_out = ""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == self.left_out else super().bias(name, call)


@fault("values", "`F.linear(x, w_q)` without `b_q`; use `x @ w_q + b_q`")
class QueryBiasDropped(WithoutBias):
    """Queries are projected without their bias."""

    left_out = "query"


@fault("values", "`F.linear(x, w_v)` without `b_v`; use `x @ w_v + b_v`")
class ValueBiasDropped(WithoutBias):
    """Values are projected without their bias."""

    left_out = "value"


@fault("values", "`F.linear(heads, w_o)` without `b_o`; use `heads @ w_o + b_o`")
class OutputBiasDropped(WithoutBias):
    """The output is projected without its bias."""

    left_out = "output"


@fault("values", "`sum(head[h] @ w_o[h] + b_o)`; add b_o once, after the sum over heads")
class OutputBiasOfEveryHead(MultiHeadKernel):
    """The output's bias is added once for every head."""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        bias = super().bias(name, call)
        return bias if bias is None or name != "output" else bias * call.sizes.H


@fault("values", "wrong slices of `in_proj_bias`: b_k is added to q; the order is q, k, v")
class KeyBiasOnQuery(MultiHeadKernel):
    """The bias of the keys is added to the queries instead."""

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        key = self.bias("key", call)
        if name == "query" and key is not None:
            y = y + self.expand(key.reshape(1, -1, call.sizes.D), call).reshape(-1)
        return y if name == "key" else super().with_bias(y, name, call)


@fault("values", "`(x + b_q) @ w_q`; it is `x @ w_q + b_q`")
class BiasBeforeProjection(MultiHeadKernel):
    """The query's bias is added to the input, not to the projection, if it fits."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias, kernel = self.bias(name, call), self.kernel(name, call)
        if name != "query" or bias is None or bias.shape != x.shape[-1:]:
            return super().projected(x, name, call)
        y = (x + bias) @ kernel.reshape(len(kernel), -1)
        return self.split(y, kernel.shape[1], call)


@fault(
    "values", "an output of size D a head; it has Dv features, as the values have", family="shapes"
)
class ValuesCutToKeySize(MultiHeadKernel):
    """Features of values beyond the size of the keys are zero."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        features = super().attend(weights, value, call)
        features[..., call.sizes.D :] = 0
        return features


@fault(
    "values",
    "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
    family="scale",
)
class ScaleOfModel(MultiHeadKernel):
    """Scores are divided by the root of the model's width, not of the head's size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.D * call.sizes.H)


@fault("values", "`q @ k.mT` without `/ sqrt(D)`", family="scale")
class LayerScaleMissing(MultiHeadKernel):
    """Scores are not scaled."""

    def factor(self, call: LayerCall) -> float:
        return 1.0


@fault("values", "`q = q * scale`, then `q @ k.mT * scale`; scale once", family="scale")
class ScaledTwice(MultiHeadKernel):
    """Queries are scaled before the product, and the scores after it."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / call.sizes.D


@fault("values", "`1 / sqrt(v.shape[-1])`; it is `1 / sqrt(k.shape[-1])`", family="scale")
class ScaleOfValues(MultiHeadKernel):
    """The scale is 1 / sqrt(Dv), not 1 / sqrt(D)."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.Dv)


@fault(
    "values",
    "`1 / sqrt(x.shape[-1])` for the input x; it is `1 / sqrt(D)` of a head",
    family="scale",
)
class ScaleOfAllFeatures(MultiHeadKernel):
    """Scores are divided by the root of the input's width, not of the head's size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.query.shape[-1])


@fault(
    "values",
    "`(q @ k.mT + attn_mask) * scale`; scale first: `q @ k.mT * scale + attn_mask`",
    family="scores",
)
class LayerBiasScaled(MultiHeadKernel):
    """A float mask is added before the scores are scaled."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        return scores + (super().biased(scores, call) - scores) * call.work(self.factor(call))


@fault(
    "values",
    "`attn_mask[0]` or `attn_mask[:1]` for all samples; sample b has `attn_mask[b]`",
    family="heads",
)
class LayerBiasOfFirstSample(MultiHeadKernel):
    """Every sample gets the float mask of the first."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None or call.bias.values.ndim < 4:
            return super().biased(scores, call)
        return super().biased(scores, replace(call, bias=Rounded(call.bias.values[:1], call.fmt)))


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


@fault("values", "`softmax(dim=-2)`; the softmax runs over keys, `dim=-1`", family="softmax")
class LayerSoftmaxOverQueries(MultiHeadKernel):
    """The softmax runs over the queries, not over the keys."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)

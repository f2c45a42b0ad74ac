"""Faults of layers: projections, heads, scale and softmax."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel, SelfAttentionKernel


@fault("values")
class HeadsSplitBeforeProjection(MultiHeadKernel):
    """The input is split among the heads before it is projected: a head sees its own slice alone."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)
        width, heads, _ = kernel.shape
        if width % heads:
            return super().projected(x, name, call)
        own = np.arange(width)[:, None] // (width // heads) == np.arange(heads)
        y = x @ np.where(own[..., None], kernel, 0).reshape(width, -1)
        return self.split(self.with_bias(y, name, call), heads, call)


@fault("values")
class SplitWithoutTranspose(MultiHeadKernel):
    """Heads are split off by a reshape to (B, H, L, D) alone."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return y.reshape(y.shape[0], heads, y.shape[1], -1)


@fault("values")
class SplitSizeFirst(MultiHeadKernel):
    """A projection is split as (D, H): a head gets every H-th feature."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return np.moveaxis(y.reshape(*y.shape[:2], -1, heads), -1, 1)


@fault("values", like="E17")
class MergeWithoutTranspose(MultiHeadKernel):
    """Heads are merged by a reshape to (B, Lq, H Dv) alone."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended.reshape(call.sizes.B, call.sizes.Lq, -1)


@fault("values")
class MergeSizeFirst(MultiHeadKernel):
    """Heads are merged as (Dv, H), features of all heads side by side."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.moveaxis(attended, 1, -1).reshape(call.sizes.B, call.sizes.Lq, -1)


@fault("values")
class HeadsMergedBackwards(MultiHeadKernel):
    """Heads are merged from the last to the first."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().merge(attended[:, ::-1], call)


@fault("contract")
class FreshProjections(MultiHeadKernel):
    """Heads are projected with the layer's kernels, then with new random ones, which are used."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel = super().kernel(name, call)
        if name == "output":
            return kernel
        drawn = self.__dict__.setdefault("drawn", np.random.default_rng(0))
        return drawn.standard_normal(kernel.shape).astype(kernel.dtype) / math.sqrt(len(kernel))


@fault("values")
class PackedHeadsFirst(MultiHeadKernel):
    """The packed projection of one tensor is split into heads first, then into q, k and v."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        if not call.own or call.sizes.H != call.sizes.Hkv or q.shape != v.shape:
            return q, k, v
        mixed = np.stack((q, k, v), 1).reshape(len(q), q.shape[1], 3, *q.shape[2:])
        return mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]


@fault("values")
class KeyAndValueKernelsSwapped(MultiHeadKernel):
    """Where their kernels fit, keys are projected as values and values as keys."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        p = call.parameters
        if p["key_kernel"].shape == p["value_kernel"].shape:
            name = {"key": "value", "value": "key"}.get(name, name)
        return super().projected(x, name, call)


@fault("values")
class ValuesFromKeys(MultiHeadKernel):
    """Where their widths fit, values are projected from the key, not from the value."""

    def heads(self, call: LayerCall) -> Heads:
        alike = call.key.shape == call.value.shape
        return super().heads(replace(call, value=call.key) if alike else call)


@fault("values")
class SharedKernel(MultiHeadKernel):
    """Where it fits, the query's kernel projects the keys, too."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel, query = super().kernel(name, call), super().kernel("query", call)
        return query if name == "key" and query.shape == kernel.shape else kernel


@fault("values", like="E1")
class KeyValueHeadsTiled(MultiHeadKernel):
    """Key/value heads are tiled, 0 1 0 1, not repeated, 0 0 1 1."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault("values")
class GroupsFromFirstHead(MultiHeadKernel):
    """With grouped heads all query heads use the first key/value head."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.repeat(x[:, :1], call.sizes.H, 1) if x.shape[1] < call.sizes.H else x


class WithoutBias(MultiHeadKernel):
    """The bias `left_out` is not added."""

    left_out = ""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == self.left_out else super().bias(name, call)


@fault("values")
class QueryBiasDropped(WithoutBias):
    """Queries are projected without their bias."""

    left_out = "query"


@fault("values")
class ValueBiasDropped(WithoutBias):
    """Values are projected without their bias."""

    left_out = "value"


@fault("values")
class OutputBiasDropped(WithoutBias):
    """The output is projected without its bias."""

    left_out = "output"


@fault("values")
class OutputBiasOfEveryHead(MultiHeadKernel):
    """The output's bias is added once for every head."""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        bias = super().bias(name, call)
        return bias if bias is None or name != "output" else bias * call.sizes.H


@fault("values")
class KeyBiasOnQuery(MultiHeadKernel):
    """The bias of the keys is added to the queries instead."""

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        key = self.bias("key", call)
        if name == "query" and key is not None:
            y = y + self.expand(key.reshape(1, -1, call.sizes.D), call).reshape(-1)
        return y if name == "key" else super().with_bias(y, name, call)


@fault("values")
class BiasBeforeProjection(MultiHeadKernel):
    """Where it fits, the query's bias is added to the input, not to the projection."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias, kernel = self.bias(name, call), self.kernel(name, call)
        if name != "query" or bias is None or bias.shape != x.shape[-1:]:
            return super().projected(x, name, call)
        y = (x + bias) @ kernel.reshape(len(kernel), -1)
        return self.split(y, kernel.shape[1], call)


@fault("values", like="E10")
class ValuesCutToKeySize(SelfAttentionKernel):
    """Features of values beyond the keys' size are zero."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        features = super().attend(weights, value, call)
        features[..., call.sizes.D :] = 0
        return features


@fault("values", like="D5")
class ScaleOfModel(MultiHeadKernel):
    """Scores are divided by the root of the model's width, not of the head's size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.D * call.sizes.H)


@fault("values")
class LayerScaleMissing(MultiHeadKernel):
    """Scores are not scaled."""

    def factor(self, call: LayerCall) -> float:
        return 1.0


@fault("values")
class ScaledTwice(MultiHeadKernel):
    """Queries are scaled before the product, and the scores after it."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / call.sizes.D


@fault("values")
class ScaleOfValues(MultiHeadKernel):
    """The scale is that of the values' size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.Dv)


@fault("values")
class ScaleOfAllFeatures(SelfAttentionKernel):
    """Scores are divided by the root of the input's width."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.query.shape[-1])


@fault("values")
class LayerBiasScaled(MultiHeadKernel):
    """The float bias is added before the scores are scaled."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        return scores + (super().biased(scores, call) - scores) * call.work(self.factor(call))


@fault("values", like="C16")
class LayerBiasOfFirstSample(MultiHeadKernel):
    """Every sample gets the float bias of the first."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None or call.bias.values.ndim < 4:
            return super().biased(scores, call)
        return super().biased(scores, replace(call, bias=Rounded(call.bias.values[:1], call.fmt)))


@fault("values", like="C2")
class FloatMaskAsBoolean(MultiHeadKernel):
    """A float mask is taken for a boolean one: whatever is positive is hidden, the rest counts 0."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        hidden = super().biased(np.zeros_like(scores), call) > 0
        hidden &= ~hidden.all(-1, keepdims=True)
        return np.where(hidden, call.work(-np.inf), scores)


@fault("values")
class LayerSoftmaxOverQueries(MultiHeadKernel):
    """Weights of a key sum to 1 over the queries."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)

"""Faults of layers that break where options meet: dropout with masks, widths, groups, single inputs."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
)

FAMILY = "layer"


@fault("dropout", "`dropout(weights @ v)`; it is `dropout(weights) @ v`", family="dropout")
class DropoutOnOutput(MultiHeadKernel):
    """Dropout drops features of the heads' output, not weights."""

    def dropped(self, weights, call):
        return weights

    def attend(self, weights, value, call):
        return super().dropped(super().attend(weights, value, call), call)


@fault("values", "`w_k(query) + w_q(key)`; it is `w_q(query) + w_k(key)`")
class AdditiveKernelsSwapped(AdditiveKernel):
    """The kernels of query and key are exchanged, if shapes fit."""

    def projected(self, x, name, call):
        p = call.parameters
        if "query_kernel" in p and p["query_kernel"].shape == p["key_kernel"].shape:
            name = {"query": "key", "key": "query"}[name]
        return super().projected(x, name, call)


@fault(
    "values", "an output of size D a head; it has Dv features, as the values have", family="shapes"
)
class WideValuesCut(MultiHeadKernel):
    """Features of values beyond the size of the keys are zero."""

    def attend(self, weights, value, call):
        features = super().attend(weights, value, call)
        features[..., call.sizes.D :] = 0
        return features


@fault("values", "`weights.mean(1)` without `squeeze(0)` for inputs (L, E)", family="shapes")
class SingleAverageKeepsBatch(MultiHeadKernel):
    """Average weights of an input without a batch axis come back with one."""

    def attention(self, query, key, value, **rest):
        out, w = super().attention(query, key, value, **rest)
        if w is not None and query.values.ndim == 2 and rest["returned"] == "average":
            w = Rounded(w.values[None], w.fmt)
        return out, w


@fault(
    "dropout_off", "a path for layers with dropout that leaves out the causal mask", family="mask"
)
class CausalLostWithARate(MultiHeadKernel):
    """In a layer with dropout the causal flag has no effect, not in evaluation either."""

    def causal(self, call):
        return super().causal(call) | (call.rate > 0)


@fault("dropout", "a path for training with dropout that leaves out the causal mask", family="mask")
class CausalLostWithDropout(MultiHeadKernel):
    """The causal flag has no effect while weights are dropped."""

    def causal(self, call):
        return super().causal(call) | (self.rate(call) > 0)


@fault("dropout", "a path for training with dropout that leaves out the padding", family="mask")
class PaddingLostWithDropout(MultiHeadKernel):
    """Padding has no effect while weights are dropped."""

    def padded(self, valid, call):
        return super().padded(valid | (self.rate(call) > 0), call)


@fault("values", "padding is used `if query is key` alone; it belongs to the keys", family="mask")
class PaddingLostAcross(MultiHeadKernel):
    """In cross-attention padding has no effect."""

    def padded(self, valid, call):
        return super().padded(valid | (not call.own), call)


@fault("values", "a path for inputs (L, E) that leaves out the padding", family="mask")
class PaddingLostWithoutBatch(MultiHeadKernel):
    """Without a batch axis padding has no effect."""

    def padded(self, valid, call):
        return super().padded(valid | call.single, call)


@fault(
    "values", "a path for returned average weights that leaves out the causal mask", family="mask"
)
class CausalLostWithAverageWeights(MultiHeadKernel):
    """The causal flag has no effect if average weights are returned."""

    def causal(self, call):
        return super().causal(call) | (call.returned == "average")


@fault(
    "future", '`use_causal_mask` is accepted and not used with `score_mode="concat"`', family="mask"
)
class ConcatCausalIgnored(ConcatKernel):
    """In concat attention the causal flag has no effect."""

    def causal(self, call):
        return np.ones_like(super().causal(call))


@fault("values", "a default of 0.5 for the scale; without `use_scale` it is 1", family="scale")
class ConcatDefaultScale(ConcatKernel):
    """Concat attention without a learned scale multiplies by 1/2."""

    def number(self, name, call):
        n = super().number(name, call)
        return n / 2 if name == "scale" and "scale" not in call.parameters else n


@fault("values", "a path for projected queries that leaves out the causal mask", family="mask")
class AdditiveCausalLostWithProjection(AdditiveKernel):
    """In additive attention with projected queries the causal flag has no effect."""

    def causal(self, call):
        return super().causal(call) | ("query_kernel" in call.parameters)


@fault("values", "`self.b_q.reshape(-1)` where `b_q` is None; ask `if b_q is not None`")
class LayerNeedsBiases(MultiHeadKernel):
    """Without biases the call fails."""

    def bias(self, name, call):
        return self.load(call.parameters[f"{name}_bias"], call).reshape(-1)


@fault(
    "values",
    "`D = width // Hkv` for the width of all query heads; it is `D = width // H`",
    family="scale",
)
class ScaleOfGroups(MultiHeadKernel):
    """With grouped heads the scale is smaller by the root of Hkv / H."""

    def factor(self, call):
        return super().factor(call) * (call.sizes.Hkv / call.sizes.H) ** 0.5


@fault(
    "values", "`valid if valid is not None else mask`; both apply: `mask & valid`", family="mask"
)
class MaskLostWithPadding(MultiHeadKernel):
    """Beside padding a boolean mask has no effect."""

    def masked(self, mask, call):
        return mask | (call.valid is not None)


@fault(
    "values",
    "a float mask replaces the boolean one; both apply: `where(mask, scores + bias, -inf)`",
    family="mask",
)
class MaskLostWithBias(MultiHeadKernel):
    """Beside a float mask a boolean mask has no effect."""

    def masked(self, mask, call):
        return mask | (call.bias is not None)


@fault("values", "`rsqrt(running_var)`; it is `rsqrt(running_var + eps)`")
class BatchNormEpsilonInEvaluation(BatchNormKernel):
    """Batch norm leaves out epsilon in evaluation."""

    def reciprocal(self, variance, call):
        return super().reciprocal(variance - (not call.training) * call.work(call.epsilon), call)


@fault(
    "precision", "`softmax(scores.float())`; float64 layers need it in float64", family="numerics"
)
class SoftmaxInSingle(MultiHeadKernel):
    """The softmax of a float64 layer runs in float32, as the layer declares."""

    numerics = {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}

    def weights(self, scores, call):
        return super().weights(scores.astype(np.float32), call).astype(call.work)

"""Faults of layers that break where options meet: dropout with masks, widths, groups, single inputs."""

from __future__ import annotations

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.layer import MultiHeadKernel, SelfAttentionKernel
from suite.faults.kernels.single import AdditiveKernel, BatchNormKernel, ConcatKernel


@fault("dropout")
class DropoutOnOutput(MultiHeadKernel):
    """Features of the heads' output are dropped, not weights."""

    def dropped(self, weights, call):
        return weights

    def attend(self, weights, value, call):
        return super().dropped(super().attend(weights, value, call), call)


@fault("values")
class AdditiveKernelsSwapped(AdditiveKernel):
    """Where they fit, the kernels of query and key are exchanged."""

    def projected(self, x, name, call):
        p = call.parameters
        if "query_kernel" in p and p["query_kernel"].shape == p["key_kernel"].shape:
            name = {"query": "key", "key": "query"}[name]
        return super().projected(x, name, call)


@fault("values")
class WideValuesCut(MultiHeadKernel):
    """Features of values beyond the keys' size are zero."""

    def attend(self, weights, value, call):
        features = super().attend(weights, value, call)
        features[..., call.sizes.D :] = 0
        return features


@fault("values")
class SingleAverageKeepsBatch(MultiHeadKernel):
    """Average weights of an input without a batch axis have one."""

    def attention(self, query, key, value, **rest):
        out, w = super().attention(query, key, value, **rest)
        if w is not None and query.values.ndim == 2 and rest["returned"] == "average":
            w = Rounded(w.values[None], w.fmt)
        return out, w


@fault("dropout_off", like="B13")
class CausalLostWithARate(MultiHeadKernel):
    """The causal flag is lost in a layer that has dropout, in evaluation, too."""

    def causal(self, call):
        return super().causal(call) | (call.rate > 0)


@fault("dropout", like="B13")
class CausalLostWithDropout(MultiHeadKernel):
    """The causal flag is lost while weights are dropped."""

    def causal(self, call):
        return super().causal(call) | (self.rate(call) > 0)


@fault("dropout")
class PaddingLostWithDropout(MultiHeadKernel):
    """Padding is lost while weights are dropped."""

    def padded(self, valid, call):
        return super().padded(valid | (self.rate(call) > 0), call)


@fault("values")
class PaddingLostAcross(MultiHeadKernel):
    """Padding is lost where the keys are another tensor."""

    def padded(self, valid, call):
        return super().padded(valid | (not call.own), call)


@fault("values")
class PaddingLostWithoutBatch(MultiHeadKernel):
    """Padding is lost without a batch axis."""

    def padded(self, valid, call):
        return super().padded(valid | call.single, call)


@fault("values")
class CausalLostWithAverageWeights(MultiHeadKernel):
    """The causal flag is lost for average weights."""

    def causal(self, call):
        return super().causal(call) | (call.returned == "average")


@fault("future")
class ConcatCausalIgnored(ConcatKernel):
    """The causal flag has no effect."""

    def causal(self, call):
        return np.ones_like(super().causal(call))


@fault("values")
class ConcatDefaultScale(ConcatKernel):
    """Without a learned scale it is a half."""

    def number(self, name, call):
        n = super().number(name, call)
        return n / 2 if name == "scale" and "scale" not in call.parameters else n


@fault("values")
class AdditiveCausalLostWithProjection(AdditiveKernel):
    """The causal flag is lost where queries are projected."""

    def causal(self, call):
        return super().causal(call) | ("query_kernel" in call.parameters)


@fault("values")
class SelfAttentionPaddingOverQueries(SelfAttentionKernel):
    """Padding hides queries."""

    def padded(self, valid, call):
        return super().padded(valid, call).swapaxes(-1, -2)


@fault("values", like="E22")
class SelfAttentionNeedsBiases(SelfAttentionKernel):
    """Without biases the call fails."""

    def bias(self, name, call):
        return self.load(call.parameters[f"{name}_bias"], call).reshape(-1)


@fault("values")
class ScaleOfGroups(MultiHeadKernel):
    """With grouped heads the scale is that of the key/value heads' width."""

    def factor(self, call):
        return super().factor(call) * (call.sizes.Hkv / call.sizes.H) ** 0.5


@fault("values")
class AverageOfGroups(MultiHeadKernel):
    """With grouped heads weights are averaged over the first head of each group."""

    def shown(self, weights, call):
        return weights[:, :: call.sizes.group].mean(1) if call.returned == "average" else weights


@fault("values")
class MaskPlusPaddingLost(MultiHeadKernel):
    """Padding is lost where a boolean mask is given."""

    def padded(self, valid, call):
        return super().padded(valid | (call.mask is not None), call)


@fault("values")
class MaskLostWithPadding(MultiHeadKernel):
    """A boolean mask is lost where keys are padded."""

    def masked(self, mask, call):
        return mask | (call.valid is not None)


@fault("values")
class MaskLostWithBias(MultiHeadKernel):
    """A boolean mask is lost where there is a float bias."""

    def masked(self, mask, call):
        return mask | (call.bias is not None)


@fault("values")
class BatchNormEpsilonInEvaluation(BatchNormKernel):
    """In evaluation epsilon is left out."""

    def reciprocal(self, variance, call):
        return super().reciprocal(variance - (not call.training) * call.work(call.epsilon), call)


@fault("values")
class BatchNormUnbiased(BatchNormKernel):
    """The variance of the batch is divided by one less than the number of tokens."""

    def moments(self, x, call):
        mean, variance = super().moments(x, call)
        n = x.shape[0] * x.shape[1]
        return mean, variance * call.work(n / (n - 1)) if call.training else variance


@fault("precision")
class SoftmaxInSingle(MultiHeadKernel):
    """The softmax of a float64 layer runs in float32, and it says so."""

    numerics = {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}

    def weights(self, scores, call):
        return super().weights(scores.astype(np.float32), call).astype(call.work)

"""Faults of the scores of layers of one head, and in norms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import LayerCall
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
)

FAMILY = "layer"


@fault("values", "`((q + k) * w).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`")
class TanhOmitted(AdditiveKernel):
    """Additive scores have no tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@fault("values", "`tanh(q) + tanh(k)`; additive scores take `tanh(q + k)`")
class TanhOfEach(AdditiveKernel):
    """Additive scores take the tanh of query and key each, not of their sum."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(np.tanh(query), np.tanh(key), call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@fault("values", "`tanh(q + k).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`")
class ScoreVectorIgnored(AdditiveKernel):
    """Additive scores do not weight the units with the score vector."""

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@fault("values", "`tanh(w * (q + k)).sum(-1)`; additive scores are `(w * tanh(q + k)).sum(-1)`")
class ScoreVectorInside(AdditiveKernel):
    """Additive scores multiply by the score vector before the tanh, not after it."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        vector = super().vector(call)
        return np.tanh(pairs if vector is None else pairs * vector)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@fault("values", "`/ sqrt(units)` behind the sum; additive scores are not scaled", family="scale")
class AdditiveScoresScaled(AdditiveKernel):
    """Additive scores are divided by the root of the number of units."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))


@fault("values", "`tanh(w_k(key))`; additive scores take `tanh(w_q(query) + w_k(key))`")
class QueryProjectionOmitted(AdditiveKernel):
    """Additive scores leave out the queries, if these are projected."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(query * ("query_kernel" not in call.parameters), key, call)


@fault("values", "`tanh(k - q)`; additive scores take `tanh(q + k)`")
class KeyMinusQuery(AdditiveKernel):
    """Additive scores subtract the queries from the keys."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(-query, key, call)


@fault("values", "`q @ k.mT` without `* self.scale` (`use_scale=True` of Keras)", family="scale")
class LearnedScaleIgnored(DotKernel):
    """Scores are not multiplied by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return np.ones((), call.work)


@fault("values", "`q @ k.mT / self.scale`; multiply: `q @ k.mT * self.scale`", family="scale")
class LearnedScaleDivides(DotKernel):
    """Scores are divided by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return 1 / super().scale(call)


@fault(
    "values",
    "`q @ k.mT / sqrt(D)`; without `use_scale` dot attention does not scale",
    family="scale",
)
class DotScoresScaled(DotKernel):
    """Without a learned scale the scores of dot attention are divided by the root of D."""

    def scale(self, call: LayerCall) -> np.ndarray:
        root = call.work(math.sqrt(call.query.shape[-1]))
        return super().scale(call) if "scale" in call.parameters else 1 / root


@fault("values", "`scale * tanh(q + k)`; it is `tanh(scale * (q + k))`")
class ConcatScaleOutside(ConcatKernel):
    """The learned scale of concat attention multiplies the tanh, not what is inside it."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super(ConcatKernel, self).pairs(query, key, call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().active(pairs, call) * self.number("scale", call)


@fault("values", "`tanh(scale * (q + k)).sum(-1)` without `* concat_score_weight`")
class ConcatWeightIgnored(ConcatKernel):
    """The scores of concat attention are not multiplied by the learned weight."""

    def number(self, name: str, call: LayerCall) -> np.ndarray:
        return super().number("scale" if name == "scale" else "", call)


@fault("values", "`(x - mean) / (sqrt(var) + eps)`; it is `(x - mean) / sqrt(var + eps)`")
class EpsilonOutsideRoot(LayerNormKernel):
    """A norm adds epsilon to the root of the variance, not to the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(2.0**-10))


@fault("values", "`x.var(-1)`, which torch divides by n - 1; use `x.var(-1, unbiased=False)`")
class VarianceUnbiased(LayerNormKernel):
    """Layer norm divides the variance by one less than the number of features."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1)


@fault("values", "`x.mean(1)`; mean and variance are over the features, `dim=-1`")
class LayerNormOverPositions(LayerNormKernel):
    """Layer norm takes mean and variance over the positions."""

    axes = (1,)


@fault("values", "`F.layer_norm(x, x.shape[1:])`; normalise each token: `(x.shape[-1],)`")
class LayerNormOverSample(LayerNormKernel):
    """Layer norm takes mean and variance over all tokens and features of a sample."""

    axes = (1, 2)


@fault("values", "`x * rsqrt(var + eps)`; it is `(x - mean) * rsqrt(var + eps)`")
class LayerNormNotCentred(LayerNormKernel):
    """Layer norm does not subtract the mean."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        return mean * 0, variance


@fault("values", "`y * (1 + gain)`, for a gain that starts at 0; it is `y * gain`")
class GainIsOnePlus(LayerNormKernel):
    """Layer norm multiplies by 1 + gain, not by the gain."""

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().mapped(y, call) + (y if "gain" in call.parameters else 0)


@fault("values", "`x.mean(0)`; mean and variance are over samples and positions: `x.mean((0, 1))`")
class BatchNormPerPosition(BatchNormKernel):
    """Batch norm takes mean and variance of every position by itself."""

    axes = (0,)


@fault("values", "`x.mean(1)`; mean and variance are over samples and positions: `x.mean((0, 1))`")
class BatchNormPerSample(BatchNormKernel):
    """Batch norm takes mean and variance of every sample by itself."""

    axes = (1,)


@fault("values", "`x.var((0, 1))`, which torch divides by n - 1; use `unbiased=False`")
class BatchVarianceUnbiased(BatchNormKernel):
    """Batch norm divides the variance of the batch by one less than the number of tokens."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        tokens = x.shape[0] * x.shape[1]
        return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


@fault("values", "`running_mean` and `running_var` in training; there those of the batch are used")
class LearnedMomentsInTraining(BatchNormKernel):
    """Batch norm uses the running mean and variance in training, too."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=False))


@fault(
    "values", "`F.batch_norm(..., training=True)` in evaluation; use `running_mean`, `running_var`"
)
class BatchMomentsInEvaluation(BatchNormKernel):
    """Batch norm uses mean and variance of the batch in evaluation, too."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=True))

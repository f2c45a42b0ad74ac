"""Faults of the scores of layers of one head, and in norms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.layer import LayerCall
from suite.faults.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
)


@fault("values")
class TanhOmitted(AdditiveKernel):
    """The units have no tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@fault("values")
class TanhOfEach(AdditiveKernel):
    """tanh of query and key each, then their sum."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(np.tanh(query), np.tanh(key), call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@fault("values")
class ScoreVectorIgnored(AdditiveKernel):
    """Units are summed, not weighted with the score vector."""

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@fault("values")
class ScoreVectorInside(AdditiveKernel):
    """The score vector is multiplied onto the units before the tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        vector = super().vector(call)
        return np.tanh(pairs if vector is None else pairs * vector)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@fault("values")
class AdditiveScoresScaled(AdditiveKernel):
    """Additive scores are divided by the root of the number of units."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))


@fault("values")
class QueryProjectionOmitted(AdditiveKernel):
    """Queries are left out of the sum where they are projected."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(query * ("query_kernel" not in call.parameters), key, call)


@fault("values")
class KeyMinusQuery(AdditiveKernel):
    """Queries are subtracted from keys, not added to them."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(-query, key, call)


@fault("values")
class LearnedScaleIgnored(DotKernel):
    """Scores are not multiplied by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return np.ones((), call.work)


@fault("values")
class LearnedScaleDivides(DotKernel):
    """Scores are divided by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return 1 / super().scale(call)


@fault("values")
class DotScoresScaled(DotKernel):
    """Without a learned scale scores are divided by the root of the size."""

    def scale(self, call: LayerCall) -> np.ndarray:
        root = call.work(math.sqrt(call.query.shape[-1]))
        return super().scale(call) if "scale" in call.parameters else 1 / root


@fault("values")
class ConcatScaleOutside(ConcatKernel):
    """The scale is multiplied onto the tanh, not inside it."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super(ConcatKernel, self).pairs(query, key, call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().active(pairs, call) * self.number("scale", call)


@fault("values")
class ConcatWeightIgnored(ConcatKernel):
    """Scores are not multiplied by the learned weight."""

    def number(self, name: str, call: LayerCall) -> np.ndarray:
        return super().number("scale" if name == "scale" else "", call)


@fault("values")
class EpsilonOutsideRoot(LayerNormKernel):
    """Epsilon is added to the root of the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(2.0**-10))


@fault("values")
class VarianceUnbiased(LayerNormKernel):
    """The variance is divided by one less than the number of features."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1)


@fault("values")
class LayerNormOverPositions(LayerNormKernel):
    """Layer norm takes mean and variance over the positions."""

    axes = (1,)


@fault("values")
class LayerNormOverSample(LayerNormKernel):
    """Layer norm takes mean and variance over all features of a sample."""

    axes = (1, 2)


@fault("values")
class LayerNormNotCentred(LayerNormKernel):
    """The mean is not subtracted."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        return mean * 0, variance


@fault("values")
class GainIsOnePlus(LayerNormKernel):
    """The gain is 1 more than the parameter."""

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().mapped(y, call) + (y if "gain" in call.parameters else 0)


@fault("values")
class BatchNormPerPosition(BatchNormKernel):
    """Batch norm takes mean and variance of every position apart."""

    axes = (0,)


@fault("values")
class BatchNormPerSample(BatchNormKernel):
    """Batch norm takes mean and variance of every sample apart."""

    axes = (1,)


@fault("values")
class BatchVarianceUnbiased(BatchNormKernel):
    """The variance of a batch is divided by one less than the number of its tokens."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        tokens = x.shape[0] * x.shape[1]
        return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


@fault("values")
class LearnedMomentsInTraining(BatchNormKernel):
    """In training, too, what was learned is used."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=False))


@fault("values")
class BatchMomentsInEvaluation(BatchNormKernel):
    """In evaluation, too, mean and variance are those of the batch."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=True))

"""Mutants at fault in the scores of layers of one head, and in norms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tests.mutants.layer_kernel import LayerCall
from tests.mutants.registry import mutant
from tests.mutants.single_kernel import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
)


@mutant("values")
class TanhOmitted(AdditiveKernel):
    """The units have no tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@mutant("values")
class TanhOfEach(AdditiveKernel):
    """tanh of query and key each, then their sum."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(np.tanh(query), np.tanh(key), call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@mutant("values")
class ScoreVectorIgnored(AdditiveKernel):
    """Units are summed, not weighted with the score vector."""

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@mutant("values")
class ScoreVectorInside(AdditiveKernel):
    """The score vector is multiplied onto the units before the tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        vector = super().vector(call)
        return np.tanh(pairs if vector is None else pairs * vector)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@mutant("values")
class AdditiveScoresScaled(AdditiveKernel):
    """Additive scores are divided by the root of the number of units."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))


@mutant("values")
class QueryProjectionOmitted(AdditiveKernel):
    """Queries are left out of the sum where they are projected."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(query * ("query_kernel" not in call.parameters), key, call)


@mutant("values")
class KeyMinusQuery(AdditiveKernel):
    """Queries are subtracted from keys, not added to them."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(-query, key, call)


@mutant("values")
class LearnedScaleIgnored(DotKernel):
    """Scores are not multiplied by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return np.ones((), call.work)


@mutant("values")
class LearnedScaleDivides(DotKernel):
    """Scores are divided by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return 1 / super().scale(call)


@mutant("values")
class DotScoresScaled(DotKernel):
    """Without a learned scale scores are divided by the root of the size."""

    def scale(self, call: LayerCall) -> np.ndarray:
        root = call.work(math.sqrt(call.query.shape[-1]))
        return super().scale(call) if "scale" in call.parameters else 1 / root


@mutant("values")
class ConcatScaleOutside(ConcatKernel):
    """The scale is multiplied onto the tanh, not inside it."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super(ConcatKernel, self).pairs(query, key, call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().active(pairs, call) * self.number("scale", call)


@mutant("values")
class ConcatWeightIgnored(ConcatKernel):
    """Scores are not multiplied by the learned weight."""

    def number(self, name: str, call: LayerCall) -> np.ndarray:
        return super().number("scale" if name == "scale" else "", call)


@mutant("values")
class EpsilonOutsideRoot(LayerNormKernel):
    """Epsilon is added to the root of the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(2.0**-10))


@mutant("values")
class VarianceUnbiased(LayerNormKernel):
    """The variance is divided by one less than the number of features."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1)


@mutant("values")
class LayerNormOverPositions(LayerNormKernel):
    """Layer norm takes mean and variance over the positions."""

    axes = (1,)


@mutant("values")
class LayerNormOverSample(LayerNormKernel):
    """Layer norm takes mean and variance over all features of a sample."""

    axes = (1, 2)


@mutant("values")
class LayerNormNotCentred(LayerNormKernel):
    """The mean is not subtracted."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        return mean * 0, variance


@mutant("values")
class GainIsOnePlus(LayerNormKernel):
    """The gain is 1 more than the parameter."""

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().mapped(y, call) + (y if "gain" in call.parameters else 0)


@mutant("values")
class BatchNormPerPosition(BatchNormKernel):
    """Batch norm takes mean and variance of every position apart."""

    axes = (0,)


@mutant("values")
class BatchNormPerSample(BatchNormKernel):
    """Batch norm takes mean and variance of every sample apart."""

    axes = (1,)


@mutant("values")
class BatchVarianceUnbiased(BatchNormKernel):
    """The variance of a batch is divided by one less than the number of its tokens."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        tokens = x.shape[0] * x.shape[1]
        return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


@mutant("values")
class LearnedMomentsInTraining(BatchNormKernel):
    """In training, too, what was learned is used."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=False))


@mutant("values")
class BatchMomentsInEvaluation(BatchNormKernel):
    """In evaluation, too, mean and variance are those of the batch."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=True))

"""Faults of dropout of the weights of plain attention, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call
from suite.faults.kernels.dropout import Dropping
from suite.faults.kernels.dropping import (
    SharedByHeads,
    SharedByQueries,
    SharedBySamples,
    Unscaled,
    Unseeded,
)
from suite.spec.inputs import Inputs


@fault("dropout")
class RateIgnored(Dropping):
    """A rate is taken and nothing is dropped."""

    def asked_rate(self, inputs: Inputs) -> float:
        return 0.0


@fault("dropout_off")
class AlwaysDrops(Dropping):
    """Weights are dropped in evaluation, too."""

    def asked_rate(self, inputs: Inputs) -> float:
        return inputs.rate


@fault("dropout")
class KeptAsTheyAre(Unscaled, Dropping):
    """Weights that are kept are not divided by 1 - rate."""


@fault("dropout")
class DroppedBeforeNormalisation(Dropping):
    """Scores are dropped, and the softmax makes the weights that are kept sum to 1."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        hidden = np.where(self.factor_of(scores.shape, call) == 0, call.work(-np.inf), scores)
        return self.weights(hidden, call) @ self.visible(value, scores)


@fault("dropout")
class OutputDropped(Dropping):
    """Elements of the output are dropped instead of weights."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        output = self.weights(scores, call) @ self.visible(value, scores)
        return output * self.factor_of(output.shape, call)


@fault("dropout", like="F8")
class PatternOfFirstHead(SharedByHeads, Dropping):
    """One pattern for all heads, though one for every element is declared."""


@fault("dropout", like="F8")
class PatternOfFirstSample(SharedBySamples, Dropping):
    """One pattern for all samples, though one for every element is declared."""


@fault("dropout")
class WholeKeysDropped(SharedByQueries, Dropping):
    """A key is dropped for all queries at once."""


@fault("dropout")
class SeedIgnored(Unseeded, Dropping):
    """The pattern does not depend on the seed."""


@fault("dropout_mean")
class LargeWeightsSpared(Dropping):
    """Weights of a half and more are never dropped, and scaled nevertheless."""

    def dropped(self, weights: np.ndarray, call: Call) -> np.ndarray:
        if not call.rate:
            return weights
        spared = weights * call.work(self.rescale(call.rate))
        return np.where(weights >= 0.5, spared, super().dropped(weights, call))


@fault("dropout_gradients")
class BackwardOfNextSeed(Dropping):
    """The backward pass draws a pattern of its own."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return self.factor_of(shape, replace(call, seed=call.seed + 1))


@fault("dropout_gradients")
class BackwardDropsNothing(Dropping):
    """The backward pass is that of a call without dropout."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return np.ones(shape, call.work)


@fault("dropout_gradients")
class BackwardUnscaled(Dropping):
    """The backward pass has the pattern, without the division by 1 - rate."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return (super().backward_factor(shape, call) != 0).astype(call.work)


@fault("dropout_gradients")
class MeanOfAllWeights(Dropping):
    """What the softmax takes off the gradients of weights is the mean of those before dropout."""

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return super().mean(weights, cotangent @ value.swapaxes(-1, -2), cotangent, value)


@fault("bad_problem")
class AnyRate(Dropping):
    """A rate beyond 1, or below 0, is taken."""

    def validate(self, call: Call) -> None:
        super().validate(replace(call, rate=0.0))

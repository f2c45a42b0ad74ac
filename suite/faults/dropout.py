"""Faults of dropout of the weights of plain attention, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.dropout import Dropping
from attention_conformance.suite.faults.kernels.dropping import (
    SharedByHeads,
    SharedByQueries,
    SharedBySamples,
    Unscaled,
    Unseeded,
)
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "dropout"


@fault("dropout", "`dropout_p` is accepted and not used; `F.dropout(p, dropout_p)` is missing")
class RateIgnored(Dropping):
    """A dropout rate has no effect."""

    def asked_rate(self, inputs: Inputs) -> float:
        return 0.0


@fault("dropout_off", "`F.dropout(p, rate)` without `training=self.training`")
class AlwaysDrops(Dropping):
    """Weights are dropped in evaluation, too."""

    def asked_rate(self, inputs: Inputs) -> float:
        return inputs.rate


@fault("dropout", "`p * keep`; it is `p * keep / (1 - rate)`")
class KeptAsTheyAre(Unscaled, Dropping):
    """Weights that are kept are not divided by 1 - rate."""


@fault("dropout", "`softmax(scores.masked_fill(dropped, -inf))`; drop after the softmax")
class DroppedBeforeNormalisation(Dropping):
    """Dropout drops scores, so that the weights that are kept sum to 1 again."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        hidden = np.where(self.factor_of(scores.shape, call) == 0, call.work(-np.inf), scores)
        return self.weights(hidden, call) @ self.visible(value, scores)


@fault("dropout", "`F.dropout(p @ v, rate)`; it is `F.dropout(p, rate) @ v`")
class OutputDropped(Dropping):
    """Dropout drops elements of the output, not weights."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        output = self.weights(scores, call) @ self.visible(value, scores)
        return output * self.factor_of(output.shape, call)


@fault("dropout", "a pattern (B, 1, Lq, Lk); every weight has its own: (B, H, Lq, Lk)")
class PatternOfFirstHead(SharedByHeads, Dropping):
    """All heads share one dropout pattern, though one for every element is declared."""


@fault("dropout", "a pattern (1, H, Lq, Lk); every weight has its own: (B, H, Lq, Lk)")
class PatternOfFirstSample(SharedBySamples, Dropping):
    """All samples share one dropout pattern, though one for every element is declared."""


@fault("dropout", "a pattern (B, H, 1, Lk); every weight has its own: (B, H, Lq, Lk)")
class WholeKeysDropped(SharedByQueries, Dropping):
    """Dropout drops a key for all queries at once."""


@fault("dropout", "`manual_seed(0)` at every call; use the seed of the call")
class SeedIgnored(Unseeded, Dropping):
    """Dropout patterns do not depend on the seed."""


@fault("dropout_mean", "`keep | (p >= 0.5)`; every weight is dropped with the same probability")
class LargeWeightsSpared(Dropping):
    """Dropout never drops weights of a half and more, but scales them up."""

    def dropped(self, weights: np.ndarray, call: Call) -> np.ndarray:
        if not call.rate:
            return weights
        spared = weights * call.work(self.rescale(call.rate))
        return np.where(weights >= 0.5, spared, super().dropped(weights, call))


@fault(
    "dropout_gradients",
    "a new pattern drawn in backward; save the seed or the pattern of the forward pass",
)
class BackwardOfNextSeed(Dropping):
    """The backward pass draws another dropout pattern than the forward pass."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return self.factor_of(shape, replace(call, seed=call.seed + 1))


@fault(
    "dropout_gradients",
    "backward without the pattern; use `dp = keep / (1 - rate) * (dout @ v.mT)`",
)
class BackwardDropsNothing(Dropping):
    """The backward pass drops nothing, though the forward pass does."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return np.ones(shape, call.work)


@fault("dropout_gradients", "`dp = keep * (dout @ v.mT)`; divide by `1 - rate`, too")
class BackwardUnscaled(Dropping):
    """The backward pass has the dropout pattern, but does not divide by 1 - rate."""

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return (super().backward_factor(shape, call) != 0).astype(call.work)


@fault(
    "dropout_gradients",
    "`(p * (dout @ v.mT)).sum(-1)`; dropped weights do not count: `(dout * out).sum(-1)`",
)
class MeanOfAllWeights(Dropping):
    """The sum that the softmax's gradient subtracts counts dropped weights, too."""

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return super().mean(weights, cotangent @ value.swapaxes(-1, -2), cotangent, value)


@fault(
    "bad_problem",
    "no check of the rate; raise ValueError unless `0 <= rate <= 1`",
    family="contract",
)
class AnyRate(Dropping):
    """A dropout rate above 1, or below 0, is accepted."""

    def validate(self, call: Call) -> None:
        super().validate(replace(call, rate=0.0))


class Counting(Dropping):
    """Patterns are drawn from the number of forward passes."""

    passes = 0

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        self.passes += bool(call.rate)
        return super().attend(scores, value, call)

    def random(self, call: Call) -> np.random.Generator:
        return np.random.default_rng(self.passes)


@fault(
    "dropout_recomputed",
    "the backward pass draws with the latest seed; save the seed of each forward pass",
)
class PatternOfTheLatestPass(Counting):
    """The backward pass drops by the pattern of the latest forward pass, which may be another one."""


@fault("dropout_recomputed", "the state of the generator is not restored before a recomputation")
class PatternMovesOnWhenRecomputed(Dropping):
    """A second forward pass over the same query draws the next pattern."""

    drawn: tuple[int, int] = (0, 0)

    def random(self, call: Call) -> np.random.Generator:
        return np.random.default_rng(self.drawn[1])

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        if call.rate:
            last, count = self.drawn
            self.drawn = id(call.query), count + 1 if last == id(call.query) else 0
        return super().attend(scores, value, call)


@fault("dropout_recomputed", "a recomputation runs without dropout, as in `eval()`; keep the rate")
class RecomputedWithoutDropout(Dropping):
    """After a second forward pass over the same query the backward pass drops nothing."""

    passes = 0

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        self.passes = self.passes + 1 if getattr(self, "last", None) is call.query else 1
        self.last = call.query
        return super().attend(scores, value, call)

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        factor = super().backward_factor(shape, call)
        return np.ones_like(factor) if self.passes > 1 else factor

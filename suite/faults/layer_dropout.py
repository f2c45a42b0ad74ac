"""Faults of dropout in layers."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.dropping import (
    SharedByHeads,
    SharedByQueries,
    SharedBySamples,
    Unscaled,
    Unseeded,
)
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import AdditiveKernel, DotKernel

FAMILY = "dropout"


@fault("dropout_off", "`F.dropout(w, p)` without `training=self.training`")
class DropoutInEvaluation(MultiHeadKernel):
    """Weights are dropped in evaluation, too."""

    def rate(self, call: LayerCall) -> float:
        return call.rate


@fault("dropout", "`self.dropout` is made and never called")
class DropoutNeverApplied(MultiHeadKernel):
    """Weights are dropped neither in training nor in evaluation."""

    def rate(self, call: LayerCall) -> float:
        return 0.0


@fault("dropout", "`w * keep`; it is `w * keep / (1 - rate)`")
class DropoutNotRescaled(Unscaled, MultiHeadKernel):
    """Weights that are kept are not divided by 1 - rate."""


@fault("dropout", "`w * keep / rate`; it is `w * keep / (1 - rate)`")
class DropoutRescaledByRate(DotKernel):
    """Weights that are kept are divided by the rate."""

    def rescale(self, rate: float) -> float:
        return 1.0 / rate


@fault("dropout", "`keep = rand < rate`; it is `keep = rand >= rate`")
class DropoutKeepsRate(DotKernel):
    """The rate is taken for the probability to keep a weight, not to drop it."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return ~super().pattern(shape, rate, call)


@fault(
    "dropout",
    "a pattern of one rate, divided by 1 minus another; both have the same rate",
)
class DropoutOfAnotherRate(AdditiveKernel):
    """Weights are dropped at two thirds of the rate, and scaled for the whole of it."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern(shape, rate * 2 / 3, call)


@fault("dropout", "a pattern (B, 1, Lq, Lk); every weight has its own: (B, H, Lq, Lk)")
class DropoutSharedByHeads(SharedByHeads, MultiHeadKernel):
    """All heads share one dropout pattern, though one for every element is declared."""


@fault("dropout", "a pattern (1, H, Lq, Lk); every weight has its own: (B, H, Lq, Lk)")
class DropoutSharedBySamples(SharedBySamples, DotKernel):
    """All samples share one dropout pattern, though one for every element is declared."""


@fault("dropout", "a pattern (B, H, 1, Lk); every weight has its own: (B, H, Lq, Lk)")
class DropoutOfWholeKeys(SharedByQueries, MultiHeadKernel):
    """Dropout drops a key for all queries at once."""


@fault("dropout", "a pattern (B, H, Lq, 1); every weight has its own: (B, H, Lq, Lk)")
class DropoutOfWholeQueries(AdditiveKernel):
    """Dropout drops all keys of a query at once."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((*shape[:3], 1), rate, call)


@fault(
    "dropout",
    "`softmax(scores.masked_fill(dropped, -inf))`; drop after the softmax",
)
class DropoutBeforeSoftmax(MultiHeadKernel):
    """Dropout drops scores, so that the weights that are kept sum to 1 again."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        rate = self.rate(call)
        if rate == 0:
            return super().weights(scores, call)
        kept = self.pattern(scores.shape, rate, call)
        return super().weights(np.where(kept, scores, call.work(-np.inf)), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights


@fault(
    "dropout",
    "a generator that goes on from call to call; make it anew from the seed",
)
class DropoutUnseeded(MultiHeadKernel):
    """Dropout patterns depend on the calls before, not on the seed alone."""

    drawn = 0

    def random(self, call: LayerCall) -> np.random.Generator:
        self.drawn += 1
        return np.random.default_rng((call.seed, self.drawn))


@fault("dropout", "`manual_seed(0)` at every call; use the seed of the call")
class DropoutSeedIgnored(Unseeded, MultiHeadKernel):
    """Dropout patterns do not depend on the seed."""


@fault("dropout_off", "`rate or 0.1`; 0 is false in Python, so ask `rate is None`")
class DropoutByDefault(MultiHeadKernel):
    """In training a dropout rate of 0 is taken for the default of 0.1."""

    def rate(self, call: LayerCall) -> float:
        return super().rate(call) or 0.1 * call.training


@fault("dropout_off", "`w * keep / (1 - rate)` is 0 / 0 at rate 1; return zeros")
class WholeDropoutNan(MultiHeadKernel):
    """At a dropout rate of 1 weights are NaN."""

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        dropped_weights = super().dropped(weights, call)
        return dropped_weights / call.work(0) if self.rate(call) == 1 else dropped_weights


@fault(
    "dropout_off",
    "`* (1 - rate)` in evaluation besides `/ (1 - rate)` in training; one of them is enough",
)
class DropoutRescaledInEvaluation(MultiHeadKernel):
    """In evaluation the heads are multiplied by 1 - rate, though training divides by it already."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        features = super().attend(weights, value, call)
        return features if call.training else features * call.work(1 - call.rate)

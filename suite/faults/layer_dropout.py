"""Faults of dropout in layers."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
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


def dropout_before_softmax_weights(
    right: MultiHeadKernel, scores: np.ndarray, call: LayerCall
) -> np.ndarray:
    rate = right.rate(call)
    if rate == 0:
        return right.weights(scores, call)
    kept = right.pattern(scores.shape, rate, call)
    return right.weights(np.where(kept, scores, call.work(-np.inf)), call)


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


def whole_dropout_nan(right: MultiHeadKernel, weights: np.ndarray, call: LayerCall) -> np.ndarray:
    dropped_weights = right.dropped(weights, call)
    return dropped_weights / call.work(0) if right.rate(call) == 1 else dropped_weights


def dropout_rescaled_in_evaluation(
    right: MultiHeadKernel, weights: np.ndarray, value: np.ndarray, call: LayerCall
) -> np.ndarray:
    features = right.attend(weights, value, call)
    return features if call.training else features * call.work(1 - call.rate)


row = partial(deviation, family=FAMILY, right=MultiHeadKernel)

DEVIATIONS = [
    row("dropout-in-evaluation", "dropout_off", "Weights are dropped in evaluation, too.",
        "`F.dropout(w, p)` without `training=self.training`", rate=lambda right, call: call.rate),
    row("dropout-never-applied", "dropout",
        "Weights are dropped neither in training nor in evaluation.",
        "`self.dropout` is made and never called", rate=lambda right, call: 0.0),
    row("dropout-not-rescaled", "dropout", "Weights that are kept are not divided by 1 - rate.",
        "`w * keep`; it is `w * keep / (1 - rate)`", right=(Unscaled, MultiHeadKernel)),
    row("dropout-rescaled-by-rate", "dropout", "Weights that are kept are divided by the rate.",
        "`w * keep / rate`; it is `w * keep / (1 - rate)`", right=DotKernel,
        rescale=lambda right, rate: 1.0 / rate),
    row("dropout-keeps-rate", "dropout",
        "The rate is taken for the probability to keep a weight, not to drop it.",
        "`keep = rand < rate`; it is `keep = rand >= rate`", right=DotKernel,
        pattern=lambda right, shape, rate, call: ~right.pattern(shape, rate, call)),
    row("dropout-of-another-rate", "dropout",
        "Weights are dropped at two thirds of the rate, and scaled for the whole of it.",
        "a pattern of one rate, divided by 1 minus another; both have the same rate",
        right=AdditiveKernel,
        pattern=lambda right, shape, rate, call: right.pattern(shape, rate * 2 / 3, call)),
    row("dropout-shared-by-heads", "dropout",
        "All heads share one dropout pattern, though one for every element is declared.",
        "a pattern (B, 1, Lq, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedByHeads, MultiHeadKernel)),
    row("dropout-shared-by-samples", "dropout",
        "All samples share one dropout pattern, though one for every element is declared.",
        "a pattern (1, H, Lq, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedBySamples, DotKernel)),
    row("dropout-of-whole-keys", "dropout", "Dropout drops a key for all queries at once.",
        "a pattern (B, H, 1, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedByQueries, MultiHeadKernel)),
    row("dropout-of-whole-queries", "dropout", "Dropout drops all keys of a query at once.",
        "a pattern (B, H, Lq, 1); every weight has its own: (B, H, Lq, Lk)", right=AdditiveKernel,
        pattern=lambda right, shape, rate, call: right.pattern((*shape[:3], 1), rate, call)),
    row("dropout-before-softmax", "dropout",
        "Dropout drops scores, so that the weights that are kept sum to 1 again.",
        "`softmax(scores.masked_fill(dropped, -inf))`; drop after the softmax",
        weights=dropout_before_softmax_weights, dropped=lambda right, weights, call: weights),
    row("dropout-seed-ignored", "dropout", "Dropout patterns do not depend on the seed.",
        "`manual_seed(0)` at every call; use the seed of the call",
        right=(Unseeded, MultiHeadKernel)),
    row("dropout-by-default", "dropout_off",
        "In training a dropout rate of 0 is taken for the default of 0.1.",
        "`rate or 0.1`; 0 is false in Python, so ask `rate is None`",
        rate=lambda right, call: right.rate(call) or 0.1 * call.training),
    row("whole-dropout-nan", "dropout_off", "At a dropout rate of 1 weights are NaN.",
        "`w * keep / (1 - rate)` is 0 / 0 at rate 1; return zeros", dropped=whole_dropout_nan),
    row("dropout-rescaled-in-evaluation", "dropout_off",
        "In evaluation the heads are multiplied by 1 - rate, though training divides by it already.",
        "`* (1 - rate)` in evaluation besides `/ (1 - rate)` in training; one of them is enough",
        attend=dropout_rescaled_in_evaluation),
]  # fmt: skip

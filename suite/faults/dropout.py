"""Faults of dropout of the weights of plain attention, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.dropout import Dropping
from attention_conformance.suite.faults.kernels.dropping import (
    SharedByHeads,
    SharedByQueries,
    SharedBySamples,
    Unscaled,
    Unseeded,
)

FAMILY = "dropout"


def dropped_before_normalisation(
    right: Dropping, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    hidden = np.where(right.factor_of(scores.shape, call) == 0, call.work(-np.inf), scores)
    return right.weights(hidden, call) @ right.visible(value, scores)


def output_dropped(
    right: Dropping, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    output = right.weights(scores, call) @ right.visible(value, scores)
    return output * right.factor_of(output.shape, call)


def large_weights_spared(right: Dropping, weights: np.ndarray, call: Call) -> np.ndarray:
    if not call.rate:
        return weights
    spared = weights * call.work(right.rescale(call.rate))
    return np.where(weights >= 0.5, spared, right.dropped(weights, call))


def backward_of_next_seed(right: Dropping, shape: tuple[int, ...], call: Call) -> np.ndarray:
    return right.factor_of(shape, replace(call, seed=call.seed + 1))


def backward_unscaled(right: Dropping, shape: tuple[int, ...], call: Call) -> np.ndarray:
    return (right.backward_factor(shape, call) != 0).astype(call.work)


def mean_of_all_weights(
    right: Dropping, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
) -> np.ndarray:
    return right.mean(weights, cotangent @ value.swapaxes(-1, -2), cotangent, value)


def any_rate(right: Dropping, call: Call) -> None:
    right.validate(replace(call, rate=0.0))


class Counting(Dropping):
    """Patterns are drawn from the number of forward passes."""

    passes = 0

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        self.passes += bool(call.rate)
        return super().attend(scores, value, call)

    def random(self, call: Call) -> np.random.Generator:
        return np.random.default_rng(self.passes)


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


row = partial(deviation, family=FAMILY, right=Dropping)

DEVIATIONS = [
    row("rate-ignored", "dropout", "A dropout rate has no effect.",
        "`dropout_p` is accepted and not used; `F.dropout(p, dropout_p)` is missing",
        asked_rate=lambda right, inputs: 0.0),
    row("always-drops", "dropout_off", "Weights are dropped in evaluation, too.",
        "`F.dropout(p, rate)` without `training=self.training`",
        asked_rate=lambda right, inputs: inputs.rate),
    row("kept-as-they-are", "dropout", "Weights that are kept are not divided by 1 - rate.",
        "`p * keep`; it is `p * keep / (1 - rate)`", right=(Unscaled, Dropping)),
    row("dropped-before-normalisation", "dropout",
        "Dropout drops scores, so that the weights that are kept sum to 1 again.",
        "`softmax(scores.masked_fill(dropped, -inf))`; drop after the softmax",
        attend=dropped_before_normalisation),
    row("output-dropped", "dropout", "Dropout drops elements of the output, not weights.",
        "`F.dropout(p @ v, rate)`; it is `F.dropout(p, rate) @ v`", attend=output_dropped),
    row("pattern-of-first-head", "dropout",
        "All heads share one dropout pattern, though one for every element is declared.",
        "a pattern (B, 1, Lq, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedByHeads, Dropping)),
    row("pattern-of-first-sample", "dropout",
        "All samples share one dropout pattern, though one for every element is declared.",
        "a pattern (1, H, Lq, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedBySamples, Dropping)),
    row("whole-keys-dropped", "dropout", "Dropout drops a key for all queries at once.",
        "a pattern (B, H, 1, Lk); every weight has its own: (B, H, Lq, Lk)",
        right=(SharedByQueries, Dropping)),
    row("seed-ignored", "dropout", "Dropout patterns do not depend on the seed.",
        "`manual_seed(0)` at every call; use the seed of the call", right=(Unseeded, Dropping)),
    row("large-weights-spared", "dropout_mean",
        "Dropout never drops weights of a half and more, but scales them up.",
        "`keep | (p >= 0.5)`; every weight is dropped with the same probability",
        dropped=large_weights_spared),
    row("backward-of-next-seed", "dropout_gradients",
        "The backward pass draws another dropout pattern than the forward pass.",
        "a new pattern drawn in backward; save the seed or the pattern of the forward pass",
        backward_factor=backward_of_next_seed),
    row("backward-drops-nothing", "dropout_gradients",
        "The backward pass drops nothing, though the forward pass does.",
        "backward without the pattern; use `dp = keep / (1 - rate) * (dout @ v.mT)`",
        backward_factor=lambda right, shape, call: np.ones(shape, call.work)),
    row("backward-unscaled", "dropout_gradients",
        "The backward pass has the dropout pattern, but does not divide by 1 - rate.",
        "`dp = keep * (dout @ v.mT)`; divide by `1 - rate`, too",
        backward_factor=backward_unscaled),
    row("mean-of-all-weights", "dropout_gradients",
        "The sum that the softmax's gradient subtracts counts dropped weights, too.",
        "`(p * (dout @ v.mT)).sum(-1)`; dropped weights do not count: `(dout * out).sum(-1)`",
        mean=mean_of_all_weights),
    row("any-rate", "bad_problem", "A dropout rate above 1, or below 0, is accepted.",
        "no check of the rate; raise ValueError unless `0 <= rate <= 1`", family="contract",
        validate=any_rate),
    row("pattern-of-the-latest-pass", "dropout_recomputed",
        "The backward pass drops by the pattern of the latest forward pass, which may be another one.",
        "the backward pass draws with the latest seed; save the seed of each forward pass",
        right=Counting),
]  # fmt: skip

"""Faults of dropout of weights, of plain attention and of layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    call_count,
    deviation,
    memory,
    twins,
)
from attention_conformance.suite.deviations.kernels.attention import Array, Call
from attention_conformance.suite.deviations.kernels.dropout import Dropping
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.single import AdditiveKernel, DotKernel


def attend_dropping_scores(right: Dropping, scores: Array, value: Array, call: Call) -> Array:
    hidden = np.where(right.dropout_factors(scores.shape, call) == 0, call.work(-np.inf), scores)
    return right.weights(hidden, call) @ right.visible(value, scores)


def attend_counting_repeats(right: Dropping, scores: Array, value: Array, call: Call) -> Array:
    is_repeat = memory(right).get("query") is call.query
    memory(right).update(query=call.query, repeats=repeats(right) + 1 if is_repeat else 0)
    return right.attend(scores, value, call)


def repeats(right: Dropping) -> int:
    """Returns how often the last forward passes repeated the query of the pass before, in a row."""
    return int(memory(right).get("repeats", 0))


row = partial(deviation, family="dropout", right=Dropping)
layer = partial(deviation, family="dropout", right=MultiHeadKernel)

DEVIATIONS = [
    row("pattern-moves-on-when-recomputed", "dropout_recomputed",
        "A second forward pass over the same query draws the next pattern.",
        "the state of the generator is not restored before a recomputation",
        attend=attend_counting_repeats,
        random=lambda right, call: np.random.default_rng(repeats(right))),
    row("recomputed-without-dropout", "dropout_recomputed",
        "After a second forward pass over the same query the backward pass drops nothing.",
        "a recomputation runs without dropout, as in `eval()`; keep the rate",
        attend=attend_counting_repeats,
        backward_dropout_factors=lambda right, shape, call:
            np.ones(shape, call.work) if repeats(right) else right.backward_dropout_factors(shape, call)),
    layer("dropout-unseeded", "dropout",
        "Dropout patterns depend on the calls before, not on the seed alone.",
        "a generator that goes on from call to call; make it anew from the seed",
        random=lambda right, call: np.random.default_rng((call.seed, call_count(right)))),
    row("rate-ignored", "dropout", "A dropout rate has no effect.",
        "`dropout_p` is accepted and not used; `F.dropout(p, dropout_p)` is missing",
        applied_rate=lambda right, inputs: 0.0),
    row("always-drops", "dropout_off", "Weights are dropped in evaluation, too.",
        "`F.dropout(p, rate)` without `training=self.training`",
        applied_rate=lambda right, inputs: inputs.rate),
    *twins({"kept-as-they-are": Dropping, "dropout-not-rescaled": MultiHeadKernel}, "dropout",
        "Weights that are kept are not divided by 1 - rate.",
        "`w * keep`; it is `w * keep / (1 - rate)`", family="dropout",
        rescale=lambda right, rate: 1.0),
    *twins({"pattern-of-first-head": Dropping, "dropout-shared-by-heads": MultiHeadKernel},
        "dropout",
        "All heads share one dropout pattern, though one for every element is declared.",
        "a pattern (B, 1, Lq, Lk); every weight has its own: (B, H, Lq, Lk)", family="dropout",
        pattern=lambda right, shape, *arguments: right.pattern((shape[0], 1, *shape[2:]), *arguments)),
    *twins({"pattern-of-first-sample": Dropping, "dropout-shared-by-samples": DotKernel}, "dropout",
        "All samples share one dropout pattern, though one for every element is declared.",
        "a pattern (1, H, Lq, Lk); every weight has its own: (B, H, Lq, Lk)", family="dropout",
        pattern=lambda right, shape, *arguments: right.pattern((1, *shape[1:]), *arguments)),
    *twins({"whole-keys-dropped": Dropping, "dropout-of-whole-keys": MultiHeadKernel}, "dropout",
        "Dropout drops a key for all queries at once.",
        "a pattern (B, H, 1, Lk); every weight has its own: (B, H, Lq, Lk)", family="dropout",
        pattern=lambda right, shape, *arguments: right.pattern((*shape[:2], 1, shape[3]), *arguments)),
    *twins({"seed-ignored": Dropping, "dropout-seed-ignored": MultiHeadKernel}, "dropout",
        "Dropout patterns do not depend on the seed.",
        "`manual_seed(0)` at every call; use the seed of the call", family="dropout",
        random=lambda right, call: np.random.default_rng(0)),
    row("dropped-before-normalisation", "dropout",
        "Dropout drops scores, so that the weights that are kept sum to 1 again.",
        "`softmax(scores.masked_fill(dropped, -inf))`; drop after the softmax",
        attend=attend_dropping_scores),
    row("output-dropped", "dropout", "Dropout drops elements of the output, not weights.",
        "`F.dropout(p @ v, rate)`; it is `F.dropout(p, rate) @ v`",
        attend=lambda right, scores, value, call:
            right.dropped(right.weights(scores, call) @ right.visible(value, scores), call)),
    row("large-weights-spared", "dropout_mean",
        "Dropout never drops weights of a half and more, but scales them up.",
        "`keep | (p >= 0.5)`; every weight is dropped with the same probability",
        when=lambda call: call.rate > 0,
        dropped=lambda right, weights, call: np.where(weights >= 0.5, weights
            * call.work(right.rescale(call.rate)), right.dropped(weights, call))),
    row("backward-of-next-seed", "dropout_gradients",
        "The backward pass draws another dropout pattern than the forward pass.",
        "a new pattern drawn in backward; save the seed or the pattern of the forward pass",
        backward_dropout_factors=lambda right, shape, call:
            right.dropout_factors(shape, replace(call, seed=call.seed + 1))),
    row("backward-drops-nothing", "dropout_gradients",
        "The backward pass drops nothing, though the forward pass does.",
        "backward without the pattern; use `dp = keep / (1 - rate) * (dout @ v.mT)`",
        backward_dropout_factors=lambda right, shape, call: np.ones(shape, call.work)),
    row("backward-unscaled", "dropout_gradients",
        "The backward pass has the dropout pattern, but does not divide by 1 - rate.",
        "`dp = keep * (dout @ v.mT)`; divide by `1 - rate`, too",
        backward_dropout_factors=lambda right, shape, call:
            (right.backward_dropout_factors(shape, call) != 0).astype(call.work)),
    row("mean-of-all-weights", "dropout_gradients",
        "The sum that the softmax's gradient subtracts counts dropped weights, too.",
        "`(p * (dout @ v.mT)).sum(-1)`; dropped weights do not count: `(dout * out).sum(-1)`",
        mean=lambda right, weights, dp, cotangent, value:
            right.mean(weights, cotangent @ value.swapaxes(-1, -2), cotangent, value)),
    row("any-rate", "bad_problem", "A dropout rate above 1, or below 0, is accepted.",
        "no check of the rate; raise ValueError unless `0 <= rate <= 1`", family="contract",
        validate=lambda right, call: right.validate(replace(call, rate=0.0))),
    layer("dropout-in-evaluation", "dropout_off", "Weights are dropped in evaluation, too.",
        "`F.dropout(w, p)` without `training=self.training`", rate=lambda right, call: call.rate),
    layer("dropout-never-applied", "dropout",
        "Weights are dropped neither in training nor in evaluation.",
        "`self.dropout` is made and never called", rate=lambda right, call: 0.0),
    layer("dropout-keeps-rate", "dropout",
        "The rate is taken for the probability to keep a weight, not to drop it.",
        "`keep = rand < rate`; it is `keep = rand >= rate`", right=DotKernel,
        pattern=lambda right, shape, rate, call: ~right.pattern(shape, rate, call)),
    layer("dropout-of-whole-queries", "dropout", "Dropout drops all keys of a query at once.",
        "a pattern (B, H, Lq, 1); every weight has its own: (B, H, Lq, Lk)", right=AdditiveKernel,
        pattern=lambda right, shape, rate, call: right.pattern((*shape[:3], 1), rate, call)),
    layer("dropout-by-default", "dropout_off",
        "In training a dropout rate of 0 is taken for the default of 0.1.",
        "`rate or 0.1`; 0 is false in Python, so ask `rate is None`",
        rate=lambda right, call: right.rate(call) or 0.1 * call.training),
    layer("whole-dropout-nan", "dropout_off", "At a dropout rate of 1 weights are NaN.",
        "`w * keep / (1 - rate)` is 0 / 0 at rate 1; return zeros",
        when=lambda call: call.training and call.rate == 1,
        dropped=lambda right, weights, call: right.dropped(weights, call) / call.work(0)),
    layer("dropout-rescaled-in-evaluation", "dropout_off",
        "In evaluation the heads are multiplied by 1 - rate, though training divides by it "
        "already.",
        "`* (1 - rate)` in evaluation besides `/ (1 - rate)` in training; one of them is enough",
        when=lambda call: not call.training,
        attend=lambda right, weights, value, call:
            right.attend(weights, value, call) * call.work(1 - call.rate)),
]  # fmt: skip

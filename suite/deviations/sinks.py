"""Faults of attention sinks: one more logit a head, whose value is 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, edited
from attention_conformance.suite.deviations.kernels.attention import Array, Call, Kernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable


def change_sinks(
    change: Callable[[Kernel, Array, Call], Array],
) -> Callable[..., Array]:
    """Returns a step `with_sink_logits` that replaces the sinks (H,) by `change(right, sinks, call)`."""

    def with_sink_logits(right: Kernel, scores: Array, call: Call) -> Array:
        if call.sinks is None:
            return right.with_sink_logits(scores, call)
        sinks = change(right, right.load(call.sinks, call), call)
        return right.with_sink_logits(scores, replace(call, sinks=Rounded(sinks, None)))

    return with_sink_logits


def attend_mean_in_masked_rows(right: Kernel, scores: Array, value: Array, call: Call) -> Array:
    out = right.attend(scores, value, call)
    empty = np.isneginf(scores[..., :-1]).all(-1, keepdims=True)
    return np.where(empty, value[:, :, :-1].mean(2, keepdims=True), out)


def mean_over_keys_alone(right: Differentiable, weights, dp, cotangent, value):
    """Returns the step `mean` divided by the sum of the weights of keys, as if these added up to 1."""
    means = right.mean(weights, dp, cotangent, value)
    total = weights.sum(-1, keepdims=True)
    return means / np.where(total == 0, 1, total)


def weights_without_sinks(right: Differentiable, scores: Array, call: Call) -> tuple[Array, Array]:
    _, sink_weights = right.split_weights(scores, call)
    return right.backward_weights(scores, call), sink_weights


def weights_by_key_maximum(right: Kernel, scores: Array, call: Call) -> Array:
    key_scores, sink = scores[..., :-1], scores[..., -1:]
    maximum = key_scores.max(-1, keepdims=True)
    maximum = np.where(np.isneginf(maximum), 0, maximum)
    exponentials = np.exp(key_scores - maximum)
    weights = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(sink) * np.exp(-maximum))
    return np.concatenate([weights, np.zeros_like(sink)], -1)


row = partial(deviation, family="sinks", right=Kernel)

DEVIATIONS = [
    row("sink-in-every-tile", "values", "Every tile of the online softmax adds the sink to the sum.",
        "`l += exp(sink - m)` inside the loop over tiles; add it once",
        with_sink_logits=change_sinks(lambda right, sinks, call:
            sinks + call.work(np.log(max(-(-call.sizes.Lk // 16), 1))))),
    row("sink-apart-from-the-maximum", "high_sink",
        "The row's maximum leaves the sink out: a sink far above the scores overflows.",
        "`exp(sink) * exp(-m)` for m of the keys alone; use `m = maximum(scores.amax(-1), sink)`",
        when=lambda call: call.sinks is not None, weights=weights_by_key_maximum),
    row("sink-ignored", "values", "Sinks have no effect.",
        "`sinks` is accepted and not used; `cat([scores, sinks], -1)` before the softmax is missing",
        with_sink_logits=change_sinks(lambda right, sinks, call: np.full_like(sinks, -np.inf))),
    row("sink-of-zero", "values", "Every sink is 0, whatever was given.",
        "`l + exp(-m)`; the sink of head h adds `exp(sinks[h] - m)`",
        with_sink_logits=change_sinks(lambda right, sinks, call: np.zeros_like(sinks))),
    row("sink-of-next-head", "values", "Every head has the sink of the head after it.",
        "`sinks[h + 1]`; head h has `sinks[h]`",
        with_sink_logits=change_sinks(lambda right, sinks, call: np.roll(sinks, -1))),
    row("sink-of-group", "values",
        "With grouped heads every head of a group has the sink of the first one.",
        "`sinks[h // group * group]`, or one sink a key head; it is one a query head, `sinks[h]`",
        with_sink_logits=change_sinks(lambda right, sinks, call:
            np.repeat(sinks[::call.sizes.group], call.sizes.group))),
    row("sink-of-transposed-groups", "values",
        "With grouped heads sinks are read as (group, Hkv), not as (Hkv, group).",
        "`sinks.view(group, Hkv).T`; head h has `sinks[h]`: `sinks.view(Hkv, group)`",
        with_sink_logits=change_sinks(lambda right, sinks, call:
            sinks.reshape(call.sizes.group, call.sizes.Hkv).T.ravel())),
    row("sink-to-the-base-two", "values",
        "Scores are multiplied by log2(e), and sinks are not: a sink weighs 2 ** sink.",
        "`exp2(s * log2e - m)` beside `exp2(sinks - m)`; sinks need `* log2e`, too",
        with_sink_logits=change_sinks(lambda right, sinks, call: sinks * call.work(np.log(2)))),
    row("sink-scaled", "values",
        "Sinks are multiplied by the scale, as if they were products of query and key.",
        "`cat([q @ k.mT, sinks], -1) * scale`; scale q @ k.mT alone",
        with_sink_logits=change_sinks(lambda right, sinks, call: sinks * call.work(right.factor(call)))),
    row("sink-capped", "values", "Sinks go through the softcap, as if they were scores.",
        "`softcap * tanh(cat([scores, sinks], -1) / softcap)`; sinks join behind the cap",
        when=lambda call: call.sinks is not None and call.softcap is not None,
        with_sink_logits=change_sinks(lambda right, sinks, call:
            call.work(call.softcap) * np.tanh(sinks / call.work(call.softcap)))),
    row("sink-has-value", "values", "A sink has the value of the last key.",
        "`p @ cat([v, v[:, :, -1:]], 2)`; the sink has no value: `p[..., :-1] @ v`",
        with_sink_values=lambda right, value, call:
            value if call.sinks is None else np.concatenate([value, value[:, :, -1:]], 2)),
    row("sink-counted-twice", "sink_equals_key",
        "The sink counts twice in the sum of exponentials.",
        "the sum begins with `exp(sink - m)`, which is added once more at the end",
        with_sink_logits=change_sinks(lambda right, sinks, call: sinks + call.work(np.log(2.0)))),
    row("sink-subtracted", "sink_of_nothing",
        "The sink, not the maximum, is subtracted from the scores: a sink of -inf gives NaN.",
        "`exp(s - sink)`; subtract the maximum, since a sink of -inf gives NaN",
        when=lambda call: call.sinks is not None,
        with_sink_logits=lambda right, scores, call:
            right.with_sink_logits(scores, call) - right.load(call.sinks, call)[:, None, None]),
    row("empty-row-beside-sink", "sink_without_keys",
        "A fully masked row is the mean of the values, though its sink has all the weight.",
        "keys hidden by `finfo.min` in a row without others average v; with a sink the row is 0",
        when=lambda call: call.sinks is not None and call.sizes.Lk > 0,
        attend=attend_mean_in_masked_rows),
    row("sink-without-gradient", "gradients", "Sinks get no gradient.",
        "`sinks.detach()`, or None in backward; use `dsink = -(p_sink * (p * "
        "dp).sum(-1)).sum((0, 2))`", right=Differentiable,
        backward=edited("backward", lambda g, *_: {"sinks": None})),
    row("sink-gradient-negated", "gradients", "The gradient of the sinks has the wrong sign.",
        "`+(p_sink * D).sum((0, 2))`; it is negative, since the sink's value is 0; `D = (p * "
        "dp).sum(-1)`", right=Differentiable,
        sink_gradient=lambda right, sink_weights, mean, call:
            -right.sink_gradient(sink_weights, mean, call)),
    row("sink-gradient-of-one-sample", "gradients",
        "The gradient of the sinks is that of the last sample, not the sum over samples.",
        "every sample overwrites dsink; add them up: `.sum(0)`", right=Differentiable,
        sink_gradient=lambda right, sink_weights, mean, call:
            right.sink_gradient(sink_weights[-1:], mean[-1:], call)),
    row("sink-left-out-of-mean", "gradients",
        "The softmax's gradient subtracts a mean over keys alone, as if their weights added to 1.",
        "`(p * dp).sum(-1) / p.sum(-1)`; beside a sink p adds to less than 1, and nothing divides",
        right=Differentiable, mean=mean_over_keys_alone),
    row("sink-forgotten-backward", "gradients",
        "The backward pass computes the weights again without the sinks.",
        "backward recomputes `p = softmax(scores)` without the column of the sink",
        right=Differentiable, split_weights=weights_without_sinks),
]  # fmt: skip

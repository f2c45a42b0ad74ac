"""Faults of attention sinks: one more logit a head, whose value is 0."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.faults.kernels.gradient import Differentiable

FAMILY = "sinks"


class Resunk(Kernel):
    """The sinks (H, 1, 1) are changed before they join the scores."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        sunk_scores = super().sunk(scores, call)
        if call.sinks is not None:
            sunk_scores[..., -1] = self.changed(self.load(call.sinks, call), call)[:, None]
        return sunk_scores

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        """The sinks (H,) as they are used."""
        raise NotImplementedError


def sink_of_group(right: Resunk, sinks: np.ndarray, call: Call) -> np.ndarray:
    group = call.sizes.group
    return np.repeat(sinks[::group], group)


def sink_has_value(right: Kernel, value: np.ndarray, call: Call) -> np.ndarray:
    return value if call.sinks is None else np.concatenate([value, value[:, :, -1:]], 2)


@fault("values", "`l += exp(sink - m)` inside the loop over tiles; add it once")
class SinkInEveryTile(Online):
    """Every tile of the online softmax adds the sink to the sum."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        parts = [super(SinkInEveryTile, self).sunk(scores[..., x], call) for x in self.whole(call)]
        return np.concatenate(parts, -1)

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
        tiles = self.whole(call)
        parts = [super(SinkInEveryTile, self).with_sink(value[:, :, x], call) for x in tiles]
        return np.concatenate(parts, 2)

    def whole(self, call: Call) -> list[slice]:
        return self.tiles(call.sizes.Lk) or [slice(0, 0)]


def sink_subtracted(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    sunk_scores = right.sunk(scores, call)
    return sunk_scores if call.sinks is None else sunk_scores - sunk_scores[..., -1:]


def empty_row_beside_sink(
    right: Kernel, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    out = right.attend(scores, value, call)
    if call.sinks is None or not call.sizes.Lk:
        return out
    empty = np.isneginf(scores[..., :-1]).all(-1, keepdims=True)
    return np.where(empty, value[:, :, :-1].mean(2, keepdims=True), out)


def sink_without_gradient(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    return gradients | {"sinks": None} if "sinks" in gradients else gradients


def sink_gradient_of_one_sample(
    right: Differentiable, sunk: np.ndarray, mean: np.ndarray, call: Call
) -> np.ndarray:
    return right.sink_gradient(sunk[-1:], mean[-1:], call)


def sink_left_out_of_mean(right: Differentiable, weights, dp, cotangent, value):
    means = right.mean(weights, dp, cotangent, value)
    total = weights.sum(-1, keepdims=True)
    return means / np.where(total == 0, 1, total)


def sink_forgotten_backward(
    right: Differentiable, scores: np.ndarray, call: Call
) -> tuple[np.ndarray, np.ndarray]:
    _, sunk = right.apart(scores, call)
    return right.backward_weights(scores, call), sunk


@fault(
    "high_sink",
    "`exp(sink) * exp(-m)` for m of the keys alone; use `m = maximum(scores.amax(-1), sink)`",
)
class SinkApartFromTheMaximum(Kernel):
    """The row's maximum leaves the sink out: a sink far above the scores overflows."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.sinks is not None:
            self.sinks = self.load(call.sinks, call).reshape(-1, 1, 1)
        return scores

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
        return value

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.sinks is None:
            return super().weights(scores, call)
        maximum = scores.max(-1, keepdims=True)
        maximum = np.where(np.isneginf(maximum), 0, maximum)
        raised = np.exp(scores - maximum)
        return raised / (raised.sum(-1, keepdims=True) + np.exp(self.sinks) * np.exp(-maximum))


row = partial(deviation, family=FAMILY, right=Resunk)

DEVIATIONS = [
    row("sink-ignored", "values", "Sinks have no effect.",
        "`sinks` is accepted and not used; `cat([scores, sinks], -1)` before the softmax is missing",
        changed=lambda right, sinks, call: np.full_like(sinks, -np.inf)),
    row("sink-of-zero", "values", "Every sink is 0, whatever was given.",
        "`l + exp(-m)`; the sink of head h adds `exp(sinks[h] - m)`",
        changed=lambda right, sinks, call: np.zeros_like(sinks)),
    row("sink-of-next-head", "values", "Every head has the sink of the head after it.",
        "`sinks[h + 1]`; head h has `sinks[h]`",
        changed=lambda right, sinks, call: np.roll(sinks, -1)),
    row("sink-of-group", "values",
        "With grouped heads every head of a group has the sink of the first one.",
        "`sinks[h // group * group]`, or one sink a key head; it is one a query head, `sinks[h]`",
        changed=sink_of_group),
    row("sink-scaled", "values",
        "Sinks are multiplied by the scale, as if they were products of query and key.",
        "`cat([q @ k.mT, sinks], -1) * scale`; scale q @ k.mT alone",
        changed=lambda right, sinks, call: sinks * call.work(right.factor(call))),
    row("sink-has-value", "values", "A sink has the value of the last key.",
        "`p @ cat([v, v[:, :, -1:]], 2)`; the sink has no value: `p[..., :-1] @ v`", right=Kernel,
        with_sink=sink_has_value),
    row("sink-counted-twice", "sink_equals_key",
        "The sink counts twice in the sum of exponentials.",
        "the sum begins with `exp(sink - m)`, which is added once more at the end",
        changed=lambda right, sinks, call: sinks + call.work(np.log(2.0))),
    row("sink-subtracted", "sink_of_nothing",
        "The sink, not the maximum, is subtracted from the scores: a sink of -inf gives NaN.",
        "`exp(s - sink)`; subtract the maximum, since a sink of -inf gives NaN", right=Kernel,
        sunk=sink_subtracted),
    row("empty-row-beside-sink", "sink_without_keys",
        "A fully masked row is the mean of the values, though its sink has all the weight.",
        "keys hidden by `finfo.min` in a row without others average v; with a sink the row is 0",
        right=Kernel, attend=empty_row_beside_sink),
    row("sink-without-gradient", "gradients", "Sinks get no gradient.",
        "`sinks.detach()`, or None in backward; use `dsink = -(p_sink * (p * dp).sum(-1)).sum((0, 2))`",
        right=Differentiable, backward=sink_without_gradient),
    row("sink-gradient-negated", "gradients", "The gradient of the sinks has the wrong sign.",
        "`+(p_sink * D).sum((0, 2))`; it is negative, since the sink's value is 0; `D = (p * "
        "dp).sum(-1)`", right=Differentiable,
        sink_gradient=lambda right, sunk, mean, call: -right.sink_gradient(sunk, mean, call)),
    row("sink-gradient-of-one-sample", "gradients",
        "The gradient of the sinks is that of the last sample, not the sum over samples.",
        "every sample overwrites dsink; add them up: `.sum(0)`", right=Differentiable,
        sink_gradient=sink_gradient_of_one_sample),
    row("sink-left-out-of-mean", "gradients",
        "The softmax's gradient subtracts a mean over keys alone, as if their weights added to 1.",
        "`(p * dp).sum(-1) / p.sum(-1)`; beside a sink p adds to less than 1, and nothing divides",
        right=Differentiable, mean=sink_left_out_of_mean),
    row("sink-forgotten-backward", "gradients",
        "The backward pass computes the weights again without the sinks.",
        "backward recomputes `p = softmax(scores)` without the column of the sink",
        right=Differentiable, apart=sink_forgotten_backward),
]  # fmt: skip

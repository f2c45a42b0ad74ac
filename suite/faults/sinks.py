"""Faults of attention sinks: one more logit a head, whose value is 0."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
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


@fault(
    "values",
    "`sinks` is accepted and not used; `cat([scores, sinks], -1)` before the softmax is missing",
)
class SinkIgnored(Resunk):
    """Sinks have no effect."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.full_like(sinks, -np.inf)


@fault("values", "`l + exp(-m)`; the sink of head h adds `exp(sinks[h] - m)`")
class SinkOfZero(Resunk):
    """Every sink is 0, whatever was given."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.zeros_like(sinks)


@fault("values", "`sinks[h + 1]`; head h has `sinks[h]`")
class SinkOfNextHead(Resunk):
    """Every head has the sink of the head after it."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.roll(sinks, -1)


@fault(
    "values",
    "`sinks[h // group * group]`, or one sink a key head; it is one a query head, `sinks[h]`",
)
class SinkOfGroup(Resunk):
    """With grouped heads every head of a group has the sink of the first one."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(sinks[::group], group)


@fault("values", "`cat([q @ k.mT, sinks], -1) * scale`; scale q @ k.mT alone")
class SinkScaled(Resunk):
    """Sinks are multiplied by the scale, as if they were products of query and key."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return sinks * call.work(self.factor(call))


@fault("values", "`p @ cat([v, v[:, :, -1:]], 2)`; the sink has no value: `p[..., :-1] @ v`")
class SinkHasValue(Kernel):
    """A sink has the value of the last key."""

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
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


@fault(
    "sink_equals_key", "the sum begins with `exp(sink - m)`, which is added once more at the end"
)
class SinkCountedTwice(Resunk):
    """The sink counts twice in the sum of exponentials."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return sinks + call.work(np.log(2.0))


@fault("sink_of_nothing", "`exp(s - sink)`; subtract the maximum, since a sink of -inf gives NaN")
class SinkSubtracted(Kernel):
    """The sink, not the maximum, is subtracted from the scores: a sink of -inf gives NaN."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        sunk_scores = super().sunk(scores, call)
        return sunk_scores if call.sinks is None else sunk_scores - sunk_scores[..., -1:]


@fault(
    "sink_without_keys",
    "keys hidden by `finfo.min` in a row without others average v; with a sink the row is 0",
)
class EmptyRowBesideSink(Kernel):
    """A fully masked row is the mean of the values, though its sink has all the weight."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out = super().attend(scores, value, call)
        if call.sinks is None or not call.sizes.Lk:
            return out
        empty = np.isneginf(scores[..., :-1]).all(-1, keepdims=True)
        return np.where(empty, value[:, :, :-1].mean(2, keepdims=True), out)


@fault(
    "gradients",
    "`sinks.detach()`, or None in backward; use `dsink = -(p_sink * (p * dp).sum(-1)).sum((0, 2))`",
)
class SinkWithoutGradient(Differentiable):
    """Sinks get no gradient."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        return gradients | {"sinks": None} if "sinks" in gradients else gradients


@fault(
    "gradients",
    "`+(p_sink * D).sum((0, 2))`; it is negative, since the sink's value is 0; `D = (p * dp).sum(-1)`",
)
class SinkGradientNegated(Differentiable):
    """The gradient of the sinks has the wrong sign."""

    def sink_gradient(self, sunk: np.ndarray, mean: np.ndarray, call: Call) -> np.ndarray:
        return -super().sink_gradient(sunk, mean, call)


@fault("gradients", "every sample overwrites dsink; add them up: `.sum(0)`")
class SinkGradientOfOneSample(Differentiable):
    """The gradient of the sinks is that of the last sample, not the sum over samples."""

    def sink_gradient(self, sunk: np.ndarray, mean: np.ndarray, call: Call) -> np.ndarray:
        return super().sink_gradient(sunk[-1:], mean[-1:], call)


@fault(
    "gradients",
    "`(p * dp).sum(-1) / p.sum(-1)`; beside a sink p adds to less than 1, and nothing divides",
)
class SinkLeftOutOfMean(Differentiable):
    """The softmax's gradient subtracts a mean over keys alone, as if their weights added to 1."""

    def mean(self, weights, dp, cotangent, value):
        means = super().mean(weights, dp, cotangent, value)
        total = weights.sum(-1, keepdims=True)
        return means / np.where(total == 0, 1, total)


@fault("gradients", "backward recomputes `p = softmax(scores)` without the column of the sink")
class SinkForgottenBackward(Differentiable):
    """The backward pass computes the weights again without the sinks."""

    def apart(self, scores: np.ndarray, call: Call) -> tuple[np.ndarray, np.ndarray]:
        _, sunk = super().apart(scores, call)
        return self.backward_weights(scores, call), sunk


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

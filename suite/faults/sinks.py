"""Mutants at fault in attention sinks: one more logit a head, whose value is 0."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel, Online
from suite.faults.kernels.gradient import Differentiable


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


@fault("values")
class SinkIgnored(Resunk):
    """Sinks are taken and not used."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.full_like(sinks, -np.inf)


@fault("values")
class SinkOfZero(Resunk):
    """Every sink is the logit 0, as in a softmax with one more in its sum."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.zeros_like(sinks)


@fault("values")
class SinkOfNextHead(Resunk):
    """Every head has the sink of the head after it."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return np.roll(sinks, -1)


@fault("values")
class SinkOfGroup(Resunk):
    """The heads of a group share the sink of the first one."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(sinks[::group], group)


@fault("values")
class SinkScaled(Resunk):
    """Sinks are scaled like scores."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return sinks * call.work(self.factor(call))


@fault("values")
class SinkHasValue(Kernel):
    """A sink has the value of the last key."""

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
        return value if call.sinks is None else np.concatenate([value, value[:, :, -1:]], 2)


@fault("values")
class SinkInEveryTile(Online):
    """Every tile of the online softmax takes the sink into its sum."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        parts = [super(SinkInEveryTile, self).sunk(scores[..., x], call) for x in self.whole(call)]
        return np.concatenate(parts, -1)

    def with_sink(self, value: np.ndarray, call: Call) -> np.ndarray:
        tiles = self.whole(call)
        parts = [super(SinkInEveryTile, self).with_sink(value[:, :, x], call) for x in tiles]
        return np.concatenate(parts, 2)

    def whole(self, call: Call) -> list[slice]:
        return self.tiles(call.sizes.Lk) or [slice(0, 0)]


@fault("sink_equals_key")
class SinkCountedTwice(Resunk):
    """The weight of the sink is counted twice in the sum: its logit is larger by log 2."""

    def changed(self, sinks: np.ndarray, call: Call) -> np.ndarray:
        return sinks + call.work(np.log(2.0))


@fault("sink_of_nothing")
class SinkSubtracted(Kernel):
    """The sink is subtracted from all logits in place of their maximum."""

    def sunk(self, scores: np.ndarray, call: Call) -> np.ndarray:
        sunk_scores = super().sunk(scores, call)
        return sunk_scores if call.sinks is None else sunk_scores - sunk_scores[..., -1:]


@fault("sink_without_keys")
class EmptyRowBesideSink(Kernel):
    """A row without keys is the mean of all values, whether it sees a sink or not."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out = super().attend(scores, value, call)
        if call.sinks is None or not call.sizes.Lk:
            return out
        empty = np.isneginf(scores[..., :-1]).all(-1, keepdims=True)
        return np.where(empty, value[:, :, :-1].mean(2, keepdims=True), out)


@fault("gradients")
class SinkWithoutGradient(Differentiable):
    """A sink gets no gradient."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        return gradients | {"sinks": None} if "sinks" in gradients else gradients


@fault("gradients")
class SinkGradientNegated(Differentiable):
    """The gradient of the sinks has the other sign."""

    def sink_gradient(self, sunk: np.ndarray, mean: np.ndarray, call: Call) -> np.ndarray:
        return -super().sink_gradient(sunk, mean, call)


@fault("gradients")
class SinkGradientOfOneSample(Differentiable):
    """The gradient of the sinks is that of the last sample."""

    def sink_gradient(self, sunk: np.ndarray, mean: np.ndarray, call: Call) -> np.ndarray:
        return super().sink_gradient(sunk[-1:], mean[-1:], call)


@fault("gradients")
class SinkLeftOutOfMean(Differentiable):
    """The gradient of the scores subtracts a mean over the keys alone, as if their weights added to 1."""

    def mean(self, weights, dp, cotangent, value):
        means = super().mean(weights, dp, cotangent, value)
        total = weights.sum(-1, keepdims=True)
        return means / np.where(total == 0, 1, total)


@fault("gradients")
class SinkForgottenBackward(Differentiable):
    """The backward pass computes the weights again without the sinks."""

    def apart(self, scores: np.ndarray, call: Call) -> tuple[np.ndarray, np.ndarray]:
        _, sunk = super().apart(scores, call)
        return self.backward_weights(scores, call), sunk


@fault("high_sink")
class SinkApartFromTheMaximum(Kernel):
    """A sink is raised by itself, and divided by the exponential of the maximum of the keys."""

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

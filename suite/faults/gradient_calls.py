"""Faults of derivatives by how they are asked: cotangents, what asks for a gradient, hidden
slots, and the direction forward."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call
from suite.faults.kernels.gradient import Differentiable, DifferentiableFused, DifferentiableLowest
from suite.spec.dtypes import round_to


@fault("gradients")
class CotangentReadAsContiguous(Differentiable):
    """The cotangent's memory is read in order, whatever its strides."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        flat = cotangent.values.ravel(order="K")
        return flat.reshape(cotangent.shape).astype(call.work)


@fault("gradient_arrangements", like="J4")
class StrideZeroCotangent(Differentiable):
    """Where the cotangent has stride 0 along the batch, the other samples get none."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call)
        if cotangent.values.strides[0] == 0:
            array[1:] = 0
        return array


@fault("gradient_arrangements", like="J4")
class ScalarCotangent(Differentiable):
    """Where the cotangent is one number with stride 0 along every axis, its first row alone is read."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call)
        if not any(cotangent.values.strides):
            array[:, :, 1:] = 0
        return array


@fault("gradient_arrangements")
class WideCotangentStride(Differentiable):
    """Where the cotangent's components lie apart, every second one is taken for the next."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        values = cotangent.values
        wide = values.strides[-1] == 2 * values.itemsize and values.shape[-1] > 1
        array = super().received(cotangent, call)
        return np.roll(array, 1, -1) if wide else array


@fault("gradients")
class CotangentOfOnes(Differentiable):
    """The gradient is that of the sum of the output, whatever the cotangent."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        return np.ones(cotangent.shape, call.work)


@fault("gradient_alone")
class GradientsAccumulate(Differentiable):
    """The gradient of the queries is added to that of the call before."""

    kept_gradient: np.ndarray | None = None

    def query_gradient(self, dt, key, factor):
        gradient = super().query_gradient(dt, key, factor)
        before = self.kept_gradient
        self.kept_gradient = gradient
        return (
            gradient + before if before is not None and before.shape == gradient.shape else gradient
        )


@fault("gradient_alone")
class ValueAloneForgotten(Differentiable):
    """Where the values alone ask for a gradient, it is zero."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if wrt == ("value",):
            gradients["value"] = np.zeros_like(gradients["value"])
        return gradients


@fault("gradient_alone")
class GradientsRedrawn(Differentiable):
    """The last bit of the gradient of the queries changes from call to call."""

    calls = 0

    def query_gradient(self, dt, key, factor):
        type(self).calls += 1
        gradient = super().query_gradient(dt, key, factor)
        return np.nextafter(gradient, gradient + self.calls % 2)

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        # A bit of the working precision must not be lost in a narrower dtype.
        return Rounded(round_to(out, call.fmt), call.fmt)


@fault("gradients", like="E5")
class TailOfRowsDropped(Differentiable):
    """Gradients of keys and values leave out the rows after the last whole block of 8."""

    def value_gradient(self, weights, cotangent, call):
        rows = weights.shape[-2]
        end = rows - rows % 8 if rows > 8 else rows
        return weights[..., :end, :].swapaxes(-1, -2) @ cotangent[..., :end, :]


@fault("gradients")
class UnnormalisedWeights(Differentiable):
    """The gradient of the values takes exp(s - m) without dividing by its sum."""

    def value_gradient(self, weights, cotangent, call):
        top = weights.max(-1, keepdims=True)
        return (weights / np.where(top == 0, 1, top)).swapaxes(-1, -2) @ cotangent


@fault("gradients")
class BaseTwoBackward(Differentiable):
    """The backward pass recomputes weights as powers of 2 of the natural scores."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.weights(scores * call.work(np.log(2.0)), call)


@fault("gradients", like="G13")
class LseInHalf(DifferentiableFused):
    """The backward pass recomputes weights with a log-sum-exp stored in the case's dtype."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        m = scores.max(-1, keepdims=True, initial=-np.inf)
        anchor = np.where(np.isneginf(m), 0, m)
        total = np.exp(scores - anchor).sum(-1, keepdims=True)
        lse = round_to(anchor + np.log(np.where(total == 0, 1, total)), call.fmt)
        return np.exp(scores - lse.astype(call.work))


@fault("gradient_contract")
class CotangentOverwritten(Differentiable):
    """The backward pass scales the cotangent in place."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call).copy()
        np.multiply(cotangent.values, 2.0, out=cotangent.values)
        return array


@fault("gradient_contract")
class KeyOverwrittenBackward(Differentiable):
    """The backward pass leaves the scaled keys in the caller's array."""

    def key_gradient(self, dt, query, factor):
        return super().key_gradient(dt, query, factor)

    def differentiate(self, query, key, value, cotangent, wrt, **rest):
        gradients = super().differentiate(query, key, value, cotangent, wrt, **rest)
        key.values *= 0.5
        return gradients


@fault("gradient_hidden", like="I13")
class HiddenSlotsTakePart(Differentiable):
    """Pairs that the mask hides take part in D with a weight of 2^-20."""

    def mean(self, weights, dp, cotangent, value):
        hidden = np.where(weights == 0, weights.dtype.type(2.0**-20), 0)
        return ((weights + hidden) * dp).sum(-1, keepdims=True)

    def seen(self, scores: np.ndarray) -> np.ndarray:
        return np.ones((*scores.shape[:2], scores.shape[-1], 1), bool)


@fault("gradient_hidden", like="I13")
class NanInHiddenValueLeaks(Differentiable):
    """The backward pass multiplies the gradients of hidden weights, NaN where a value is, with zero."""

    def weight_gradient(self, cotangent: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.expand(self.load(call.value, call), call)
        return super().weight_gradient(cotangent, value, call)


@fault("gradient_hidden", like="I13")
class NanInHiddenKeyLeaks(Differentiable):
    """The backward pass multiplies hidden keys with the gradients of their scores, which are zero."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        key = self.expand(self.load(call.key, call), call)
        gradients["query"] = gradients["query"] + (0 * key).sum(-2, keepdims=True)
        return gradients


@fault("gradient_hidden")
class HiddenValuesGetGradients(Differentiable):
    """Hidden values get the gradient of the smallest weight."""

    def value_gradient(self, weights, cotangent, call):
        weights = np.where(weights == 0, weights.dtype.type(2.0**-30), weights)
        return weights.swapaxes(-1, -2) @ cotangent


@fault("gradient_contract")
class WrongWithoutGradient(Differentiable):
    """The answer is right while gradients are recorded, and lacks the scale while they are not."""

    recording = False

    def differentiate(self, *args, **kwargs):
        return super().differentiate(*args, **kwargs)

    def factor(self, call: Call) -> float:
        return super().factor(call) if self.recording else 1.0

    def backward(self, call, cotangent, wrt):
        self.recording = True
        try:
            return super().backward(call, cotangent, wrt)
        finally:
            self.recording = False


@fault("tangents")
class TangentMeanForgotten(Differentiable):
    """The tangent of the softmax is p s', without the mean."""

    def moved_mean(self, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return np.zeros_like(moved[..., :1])


@fault("tangents")
class TangentOfValuesForgotten(Differentiable):
    """The values' own movement takes no part in the output's."""

    def moved_values(self, weights: np.ndarray, dv: np.ndarray) -> np.ndarray:
        return np.zeros_like(weights @ dv)


@fault("tangents")
class TangentOfKeysForgotten(Differentiable):
    """The scores move with the queries alone."""

    def moved(self, q, k, dq, dk, call):
        return super().moved(q, k, dq, np.zeros_like(dk), call)


@fault("tangents", like="I15")
class TangentOfEmptyRowNan(Differentiable):
    """The tangent of a row without keys is NaN, though its answer is zero."""

    def moved_mean(self, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
        total = weights.sum(-1, keepdims=True)
        return super().moved_mean(weights, moved) / np.where(total == 0, 0, 1)


@fault("tangents")
class TangentOfEmptyRowStays(DifferentiableLowest):
    """A row that averages the values does not move with them."""

    def forward(self, call, tangents):
        moved = super().forward(call, tangents)
        allowed = self.allowed(call)
        return moved if allowed is None else np.where(allowed.any(-1, keepdims=True), moved, 0)


@fault("gradient_cotangents")
class ZeroCotangentsSkipped(Differentiable):
    """Where a component of the cotangent is zero in every row, the one before it stands for it."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call).copy()
        if array.size:
            empty = (array == 0).all((0, 1, 2))
            array[..., empty] = np.roll(array, 1, -1)[..., empty]
        return array

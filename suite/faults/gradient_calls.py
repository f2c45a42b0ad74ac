"""Faults of derivatives by how they are asked: cotangents, what asks for a gradient, hidden
slots, and the direction forward."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
    DifferentiableLowest,
)
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "gradient"


@fault(
    "gradients",
    "`dout.data_ptr()` read as if contiguous; pass `dout.stride()`, or call `.contiguous()`",
)
class CotangentReadAsContiguous(Differentiable):
    """The gradient of the output (dout) is read in memory order, whatever its strides."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        flat = cotangent.values.ravel(order="K")
        return flat.reshape(cotangent.shape).astype(call.work)


@fault(
    "gradient_arrangements",
    "stride 0, as after `dout.expand(B, ...)`, read as size 1; use the stride as it is",
)
class StrideZeroCotangent(Differentiable):
    """If dout is expanded along the batch, samples after the first get no gradient."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call)
        if cotangent.values.strides[0] == 0:
            array[1:] = 0
        return array


@fault(
    "gradient_arrangements",
    "after `out.sum()` dout is one number with stride 0 everywhere; use strides as they are",
)
class ScalarCotangent(Differentiable):
    """If dout is one number expanded to all elements, only the first row is read."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call)
        if not any(cotangent.values.strides):
            array[:, :, 1:] = 0
        return array


@fault(
    "gradient_arrangements",
    "`dout.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
)
class WideCotangentStride(Differentiable):
    """If the components of dout have a stride of 2, they are read one off."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        values = cotangent.values
        wide = values.strides[-1] == 2 * values.itemsize and values.shape[-1] > 1
        array = super().received(cotangent, call)
        return np.roll(array, 1, -1) if wide else array


@fault("gradients", "`ones_like(out)` for dout; autograd passes dout to backward")
class CotangentOfOnes(Differentiable):
    """The gradient is that of the sum of the output, whatever dout is."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        return np.ones(cotangent.shape, call.work)


@fault(
    "gradient_alone",
    "`dq += ...` in a kept buffer; set it to zero at the start of backward",
    family="state",
)
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


@fault(
    "gradient_alone",
    "backward runs `if ctx.needs_input_grad[0]` alone; ask for the flag of the values, too",
)
class ValueAloneForgotten(Differentiable):
    """If only the values ask for a gradient, it is zero."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if wrt == ("value",):
            gradients["value"] = np.zeros_like(gradients["value"])
        return gradients


@fault("gradient_alone", "`atomicAdd` into dq; sum in a fixed order", family="state")
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


@fault("gradients", "`Lq // 8` blocks of queries; use `cdiv(Lq, 8)`, and mask rows beyond Lq")
class TailOfRowsDropped(Differentiable):
    """The gradient of the values leaves out queries after the last whole block of 8."""

    def value_gradient(self, weights, cotangent, call):
        rows = weights.shape[-2]
        end = rows - rows % 8 if rows > 8 else rows
        return weights[..., :end, :].swapaxes(-1, -2) @ cotangent[..., :end, :]


@fault("gradients", "`exp(s - m).mT @ dout`; divide by the sum: `exp(s - lse).mT @ dout`")
class UnnormalisedWeights(Differentiable):
    """The gradient of the values takes exp(s - m) without dividing by its sum."""

    def value_gradient(self, weights, cotangent, call):
        top = weights.max(-1, keepdims=True)
        return (weights / np.where(top == 0, 1, top)).swapaxes(-1, -2) @ cotangent


@fault("gradients", "`exp2(s - lse)` of natural scores; multiply them by log2(e), or use `exp`")
class BaseTwoBackward(Differentiable):
    """The backward pass recomputes weights as powers of 2, not of e."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.weights(scores * call.work(np.log(2.0)), call)


@fault(
    "gradients",
    "`ctx.save_for_backward(..., lse.to(q.dtype))`; save it in float32",
    family="numerics",
)
class LseInHalf(DifferentiableFused):
    """The backward pass recomputes weights with a log-sum-exp rounded to 16 bits."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        m = scores.max(-1, keepdims=True, initial=-np.inf)
        anchor = np.where(np.isneginf(m), 0, m)
        total = np.exp(scores - anchor).sum(-1, keepdims=True)
        lse = round_to(anchor + np.log(np.where(total == 0, 1, total)), call.fmt)
        return np.exp(scores - lse.astype(call.work))


@fault("gradient_contract", "`dout *= ...`; work on a copy", family="contract")
class CotangentOverwritten(Differentiable):
    """The backward pass overwrites dout."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call).copy()
        np.multiply(cotangent.values, 2.0, out=cotangent.values)
        return array


@fault("gradient_contract", "`k *= ...` in backward; work on a copy", family="contract")
class KeyOverwrittenBackward(Differentiable):
    """The backward pass overwrites the caller's keys."""

    def key_gradient(self, dt, query, factor):
        return super().key_gradient(dt, query, factor)

    def differentiate(self, query, key, value, cotangent, wrt, **rest):
        gradients = super().differentiate(query, key, value, cotangent, wrt, **rest)
        key.values *= 0.5
        return gradients


@fault(
    "gradient_hidden",
    "p of hidden keys is small, not 0; `where(mask, p, 0)` before `(p * dp).sum(-1)`",
)
class HiddenSlotsTakePart(Differentiable):
    """In the backward pass hidden keys have a tiny weight in the sum of p dp."""

    def mean(self, weights, dp, cotangent, value):
        hidden = np.where(weights == 0, weights.dtype.type(2.0**-20), 0)
        return ((weights + hidden) * dp).sum(-1, keepdims=True)

    def seen(self, scores: np.ndarray) -> np.ndarray:
        return np.ones((*scores.shape[:2], scores.shape[-1], 1), bool)


@fault(
    "gradient_hidden",
    "`p * dp` where p is 0 and dp NaN; use `where(p == 0, 0, p * dp)`, or zero hidden values",
)
class NanInHiddenValueLeaks(Differentiable):
    """A NaN in a hidden value reaches the gradients, times a weight of zero."""

    def weight_gradient(self, cotangent: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.expand(self.load(call.value, call), call)
        return super().weight_gradient(cotangent, value, call)


@fault(
    "gradient_hidden",
    "`ds @ k` where ds is 0 and k NaN; zero the keys that no row sees: `where(seen, k, 0)`",
)
class NanInHiddenKeyLeaks(Differentiable):
    """A NaN in a hidden key reaches the gradient of the queries, times zero."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        key = self.expand(self.load(call.key, call), call)
        gradients["query"] = gradients["query"] + (0 * key).sum(-2, keepdims=True)
        return gradients


@fault("gradient_hidden", "p of hidden keys is small, not 0; `where(mask, p, 0).mT @ dout`")
class HiddenValuesGetGradients(Differentiable):
    """Hidden values get a tiny gradient."""

    def value_gradient(self, weights, cotangent, call):
        weights = np.where(weights == 0, weights.dtype.type(2.0**-30), weights)
        return weights.swapaxes(-1, -2) @ cotangent


@fault("gradient_contract", "a path for `torch.no_grad()` without the scale", family="scale")
class WrongWithoutGradient(Differentiable):
    """If no gradient is recorded, scores are not scaled."""

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


@fault(
    "tangents", "`p * dS`; the JVP of the softmax is `p * (dS - (p * dS).sum(-1, keepdim=True))`"
)
class TangentMeanForgotten(Differentiable):
    """The JVP of the softmax is p dS: the row's mean is not subtracted."""

    def moved_mean(self, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return np.zeros_like(moved[..., :1])


@fault("tangents", "`dP @ v`; the JVP of the product is `dP @ v + p @ dv`")
class TangentOfValuesForgotten(Differentiable):
    """The JVP ignores the tangent of the values."""

    def moved_values(self, weights: np.ndarray, dv: np.ndarray) -> np.ndarray:
        return np.zeros_like(weights @ dv)


@fault("tangents", "`dq @ k.mT`; the JVP of the product is `dq @ k.mT + q @ dk.mT`")
class TangentOfKeysForgotten(Differentiable):
    """The JVP ignores the tangent of the keys."""

    def moved(self, q, k, dq, dk, call):
        return super().moved(q, k, dq, np.zeros_like(dk), call)


@fault(
    "tangents", "`(p * dS).sum(-1) / p.sum(-1)` is 0 / 0 in a fully masked row; p needs no division"
)
class TangentOfEmptyRowNan(Differentiable):
    """The JVP of a fully masked row is NaN, though its answer is zero."""

    def moved_mean(self, weights: np.ndarray, moved: np.ndarray) -> np.ndarray:
        total = weights.sum(-1, keepdims=True)
        return super().moved_mean(weights, moved) / np.where(total == 0, 0, 1)


@fault("tangents", "`where(mask.any(-1), dout, 0)`; a row that averages the values moves with them")
class TangentOfEmptyRowStays(DifferentiableLowest):
    """The JVP of a fully masked row is 0, though the row averages the values."""

    def forward(self, call, tangents):
        moved = super().forward(call, tangents)
        allowed = self.allowed(call)
        return moved if allowed is None else np.where(allowed.any(-1, keepdims=True), moved, 0)


@fault("gradient_cotangents", "components with dout = 0 are skipped, and the index is not advanced")
class ZeroCotangentsSkipped(Differentiable):
    """If a component of dout is zero in every row, the one before it stands for it."""

    def received(self, cotangent: Rounded, call: Call) -> np.ndarray:
        array = super().received(cotangent, call).copy()
        if array.size:
            empty = (array == 0).all((0, 1, 2))
            array[..., empty] = np.roll(array, 1, -1)[..., empty]
        return array

"""Faults of derivatives by how they are asked: cotangents, what asks for a gradient, hidden
slots, and the direction forward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
    DifferentiableLowest,
)
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "gradient"


def cotangent_read_as_contiguous(
    right: Differentiable, cotangent: Rounded, call: Call
) -> np.ndarray:
    flat = cotangent.values.ravel(order="K")
    return flat.reshape(cotangent.shape).astype(call.work)


def stride_zero_cotangent(right: Differentiable, cotangent: Rounded, call: Call) -> np.ndarray:
    array = right.received(cotangent, call)
    if cotangent.values.strides[0] == 0:
        array[1:] = 0
    return array


def scalar_cotangent(right: Differentiable, cotangent: Rounded, call: Call) -> np.ndarray:
    array = right.received(cotangent, call)
    if not any(cotangent.values.strides):
        array[:, :, 1:] = 0
    return array


def wide_cotangent_stride(right: Differentiable, cotangent: Rounded, call: Call) -> np.ndarray:
    values = cotangent.values
    wide = values.strides[-1] == 2 * values.itemsize and values.shape[-1] > 1
    array = right.received(cotangent, call)
    return np.roll(array, 1, -1) if wide else array


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


def value_alone_forgotten(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
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


def tail_of_rows_dropped(right: Differentiable, weights, cotangent, call):
    rows = weights.shape[-2]
    end = rows - rows % 8 if rows > 8 else rows
    return weights[..., :end, :].swapaxes(-1, -2) @ cotangent[..., :end, :]


def unnormalised_weights(right: Differentiable, weights, cotangent, call):
    top = weights.max(-1, keepdims=True)
    return (weights / np.where(top == 0, 1, top)).swapaxes(-1, -2) @ cotangent


def base_two_backward(right: Differentiable, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.weights(scores * call.work(np.log(2.0)), call)


def lse_in_half(right: DifferentiableFused, scores: np.ndarray, call: Call) -> np.ndarray:
    m = scores.max(-1, keepdims=True, initial=-np.inf)
    anchor = np.where(np.isneginf(m), 0, m)
    total = np.exp(scores - anchor).sum(-1, keepdims=True)
    lse = round_to(anchor + np.log(np.where(total == 0, 1, total)), call.fmt)
    return np.exp(scores - lse.astype(call.work))


def cotangent_overwritten(right: Differentiable, cotangent: Rounded, call: Call) -> np.ndarray:
    array = right.received(cotangent, call).copy()
    np.multiply(cotangent.values, 2.0, out=cotangent.values)
    return array


def key_overwritten_backward_differentiate(
    right: Differentiable, query, key, value, cotangent, wrt, **rest
):
    gradients = right.differentiate(query, key, value, cotangent, wrt, **rest)
    key.values *= 0.5
    return gradients


def hidden_slots_take_part_mean(right: Differentiable, weights, dp, cotangent, value):
    hidden = np.where(weights == 0, weights.dtype.type(2.0**-20), 0)
    return ((weights + hidden) * dp).sum(-1, keepdims=True)


def nan_in_hidden_value_leaks(
    right: Differentiable, cotangent: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    value = right.expand(right.load(call.value, call), call)
    return right.weight_gradient(cotangent, value, call)


def nan_in_hidden_key_leaks(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    key = right.expand(right.load(call.key, call), call)
    gradients["query"] = gradients["query"] + (0 * key).sum(-2, keepdims=True)
    return gradients


def hidden_values_get_gradients(right: Differentiable, weights, cotangent, call):
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


def tangent_of_keys_forgotten(right: Differentiable, q, k, dq, dk, call):
    return right.moved(q, k, dq, np.zeros_like(dk), call)


def tangent_of_empty_row_nan(
    right: Differentiable, weights: np.ndarray, moved: np.ndarray
) -> np.ndarray:
    total = weights.sum(-1, keepdims=True)
    return right.moved_mean(weights, moved) / np.where(total == 0, 0, 1)


def tangent_of_empty_row_stays(right: DifferentiableLowest, call, tangents):
    moved = right.forward(call, tangents)
    allowed = right.allowed(call)
    return moved if allowed is None else np.where(allowed.any(-1, keepdims=True), moved, 0)


def zero_cotangents_skipped(right: Differentiable, cotangent: Rounded, call: Call) -> np.ndarray:
    array = right.received(cotangent, call).copy()
    if array.size:
        empty = (array == 0).all((0, 1, 2))
        array[..., empty] = np.roll(array, 1, -1)[..., empty]
    return array


row = partial(deviation, family=FAMILY, right=Differentiable)

DEVIATIONS = [
    row("cotangent-read-as-contiguous", "gradients",
        "The gradient of the output (dout) is read in memory order, whatever its strides.",
        "`dout.data_ptr()` read as if contiguous; pass `dout.stride()`, or call `.contiguous()`",
        received=cotangent_read_as_contiguous),
    row("stride-zero-cotangent", "gradient_arrangements",
        "If dout is expanded along the batch, samples after the first get no gradient.",
        "stride 0, as after `dout.expand(B, ...)`, read as size 1; use the stride as it is",
        received=stride_zero_cotangent),
    row("scalar-cotangent", "gradient_arrangements",
        "If dout is one number expanded to all elements, only the first row is read.",
        "after `out.sum()` dout is one number with stride 0 everywhere; use strides as they are",
        received=scalar_cotangent),
    row("wide-cotangent-stride", "gradient_arrangements",
        "If the components of dout have a stride of 2, they are read one off.",
        "`dout.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
        received=wide_cotangent_stride),
    row("cotangent-of-ones", "gradients",
        "The gradient is that of the sum of the output, whatever dout is.",
        "`ones_like(out)` for dout; autograd passes dout to backward",
        received=lambda right, cotangent, call: np.ones(cotangent.shape, call.work)),
    row("value-alone-forgotten", "gradient_alone",
        "If only the values ask for a gradient, it is zero.",
        "backward runs `if ctx.needs_input_grad[0]` alone; ask for the flag of the values, too",
        backward=value_alone_forgotten),
    row("tail-of-rows-dropped", "gradients",
        "The gradient of the values leaves out queries after the last whole block of 8.",
        "`Lq // 8` blocks of queries; use `cdiv(Lq, 8)`, and mask rows beyond Lq",
        value_gradient=tail_of_rows_dropped),
    row("unnormalised-weights", "gradients",
        "The gradient of the values takes exp(s - m) without dividing by its sum.",
        "`exp(s - m).mT @ dout`; divide by the sum: `exp(s - lse).mT @ dout`",
        value_gradient=unnormalised_weights),
    row("base-two-backward", "gradients",
        "The backward pass recomputes weights as powers of 2, not of e.",
        "`exp2(s - lse)` of natural scores; multiply them by log2(e), or use `exp`",
        backward_weights=base_two_backward),
    row("lse-in-half", "gradients",
        "The backward pass recomputes weights with a log-sum-exp rounded to 16 bits.",
        "`ctx.save_for_backward(..., lse.to(q.dtype))`; save it in float32", family="numerics",
        right=DifferentiableFused, backward_weights=lse_in_half),
    row("cotangent-overwritten", "gradient_contract", "The backward pass overwrites dout.",
        "`dout *= ...`; work on a copy", family="contract", received=cotangent_overwritten),
    row("key-overwritten-backward", "gradient_contract",
        "The backward pass overwrites the caller's keys.", "`k *= ...` in backward; work on a copy",
        family="contract",
        key_gradient=lambda right, dt, query, factor: right.key_gradient(dt, query, factor),
        differentiate=key_overwritten_backward_differentiate),
    row("hidden-slots-take-part", "gradient_hidden",
        "In the backward pass hidden keys have a tiny weight in the sum of p dp.",
        "p of hidden keys is small, not 0; `where(mask, p, 0)` before `(p * dp).sum(-1)`",
        mean=hidden_slots_take_part_mean,
        seen=lambda right, scores: np.ones((*scores.shape[:2], scores.shape[-1], 1), bool)),
    row("nan-in-hidden-value-leaks", "gradient_hidden",
        "A NaN in a hidden value reaches the gradients, times a weight of zero.",
        "`p * dp` where p is 0 and dp NaN; use `where(p == 0, 0, p * dp)`, or zero hidden values",
        weight_gradient=nan_in_hidden_value_leaks),
    row("nan-in-hidden-key-leaks", "gradient_hidden",
        "A NaN in a hidden key reaches the gradient of the queries, times zero.",
        "`ds @ k` where ds is 0 and k NaN; zero the keys that no row sees: `where(seen, k, 0)`",
        backward=nan_in_hidden_key_leaks),
    row("hidden-values-get-gradients", "gradient_hidden", "Hidden values get a tiny gradient.",
        "p of hidden keys is small, not 0; `where(mask, p, 0).mT @ dout`",
        value_gradient=hidden_values_get_gradients),
    row("tangent-mean-forgotten", "tangents",
        "The JVP of the softmax is p dS: the row's mean is not subtracted.",
        "`p * dS`; the JVP of the softmax is `p * (dS - (p * dS).sum(-1, keepdim=True))`",
        moved_mean=lambda right, weights, moved: np.zeros_like(moved[..., :1])),
    row("tangent-of-values-forgotten", "tangents", "The JVP ignores the tangent of the values.",
        "`dP @ v`; the JVP of the product is `dP @ v + p @ dv`",
        moved_values=lambda right, weights, dv: np.zeros_like(weights @ dv)),
    row("tangent-of-keys-forgotten", "tangents", "The JVP ignores the tangent of the keys.",
        "`dq @ k.mT`; the JVP of the product is `dq @ k.mT + q @ dk.mT`",
        moved=tangent_of_keys_forgotten),
    row("tangent-of-empty-row-nan", "tangents",
        "The JVP of a fully masked row is NaN, though its answer is zero.",
        "`(p * dS).sum(-1) / p.sum(-1)` is 0 / 0 in a fully masked row; p needs no division",
        moved_mean=tangent_of_empty_row_nan),
    row("tangent-of-empty-row-stays", "tangents",
        "The JVP of a fully masked row is 0, though the row averages the values.",
        "`where(mask.any(-1), dout, 0)`; a row that averages the values moves with them",
        right=DifferentiableLowest, forward=tangent_of_empty_row_stays),
    row("zero-cotangents-skipped", "gradient_cotangents",
        "If a component of dout is zero in every row, the one before it stands for it.",
        "components with dout = 0 are skipped, and the index is not advanced",
        received=zero_cotangents_skipped),
]  # fmt: skip

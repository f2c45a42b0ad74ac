"""Faults of derivatives that depend on the cotangent, on which arguments need a gradient, on masked keys,
and faults of the JVP."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import (
    accumulate,
    call_count,
    deviation,
    edited,
    memory,
)
from attention_conformance.suite.deviations.kernels.attention import Array, Call
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
    DifferentiableLowest,
    DifferentiableRecomputed,
)
from attention_conformance.suite.deviations.layouts import is_first
from attention_conformance.suite.spec.dtypes import round_to


def has_component_stride_two(values: Array) -> bool:
    """Returns True if the components have a stride of 2 elements."""
    return values.strides[-1] == 2 * values.itemsize and values.shape[-1] > 1


def value_gradient_unnormalised(right: Differentiable, weights, cotangent, call):
    largest = weights.max(-1, keepdims=True)
    return (weights / np.where(largest == 0, 1, largest)).swapaxes(-1, -2) @ cotangent


def load_and_overwrite_cotangent(right: Differentiable, cotangent: Rounded, call: Call) -> Array:
    loaded = right.load_cotangent(cotangent, call).copy()
    np.multiply(cotangent.values, 2.0, out=cotangent.values)
    return loaded


def gradients_overwriting_key(
    right: Differentiable, query: Rounded, key: Rounded, *arguments: Any, **options: Any
):
    gradients = right.differentiate(query, key, *arguments, **options)
    key.values *= 0.5
    return gradients


def backward_spreading_nan(right: Differentiable, call: Call, *arguments: Any) -> dict[str, Any]:
    gradients = right.backward(call, *arguments)
    key = right.expand(right.load(call.key, call), call)
    return gradients | {"query": gradients["query"] + (0 * key).sum(-2, keepdims=True)}


def tangent_without_masked_rows(right: DifferentiableLowest, call, tangents):
    tangent = right.output_tangent(call, tangents)
    allowed = right.allowed(call)
    return tangent if allowed is None else np.where(allowed.any(-1, keepdims=True), tangent, 0)


def load_without_zero_components(right: Differentiable, cotangent: Rounded, call: Call) -> Array:
    loaded = right.load_cotangent(cotangent, call).copy()
    if loaded.size:
        zeros = (loaded == 0).all((0, 1, 2))
        loaded[..., zeros] = np.roll(loaded, 1, -1)[..., zeros]
    return loaded


def value_gradient_with_leftover(right: Differentiable, *arguments: Any) -> Array:
    gradient, store = right.value_gradient(*arguments), memory(right)
    last, store["last"] = store.get("last", gradient), gradient
    if last.shape == gradient.shape:
        return gradient
    overlap = tuple(slice(min(pair)) for pair in zip(last.shape, gradient.shape, strict=True))
    total = gradient.copy()
    total[overlap] += last[overlap]
    return total


def backward_recorded(right: Differentiable, *arguments: Any) -> dict[str, Any]:
    """Returns the gradients. Meanwhile "recording" in `memory` is True."""
    memory(right)["recording"] = True
    try:
        return right.backward(*arguments)
    finally:
        memory(right)["recording"] = False


row = partial(deviation, family="gradient", right=Differentiable)

DEVIATIONS = [
    row("gradients-accumulate", "gradient_alone",
        "The gradient of the queries is added to that of the call before.",
        "`dq += ...` in a kept buffer; set it to zero at the start of backward",
        family="state", query_gradient=lambda right, *arguments:
            accumulate(right, "query", right.query_gradient(*arguments))),
    row("gradient-left-by-another-shape", "gradient_passes",
        "The gradient of the values is added to what a call of another shape left.",
        "one workspace for all shapes, cleared if the shape is the last one; clear it in every call",
        family="state", value_gradient=value_gradient_with_leftover),
    row("gradients-redrawn", "gradient_alone",
        "The last bit of the gradient of the queries changes from call to call.",
        "`atomicAdd` into dq; sum in a fixed order",
        family="state", query_gradient=lambda right, *arguments: np.nextafter(
            right.query_gradient(*arguments), right.query_gradient(*arguments) + call_count(right) % 2)),
    row("wrong-without-gradient", "gradient_contract",
        "If no gradient is recorded, scores are not scaled.",
        "a path for `torch.no_grad()` without the scale",
        family="state", backward=backward_recorded,
        factor=lambda right, call:
            right.factor(call) if memory(right).get("recording") else 1.0),
    row("cotangent-read-as-contiguous", "gradients",
        "The gradient of the output (dout) is read in memory order, whatever its strides.",
        "`dout.data_ptr()` read as if contiguous; pass `dout.stride()`, or call `.contiguous()`",
        load_cotangent=lambda right, cotangent, call:
            cotangent.values.ravel(order="K").reshape(cotangent.shape).astype(call.work)),
    row("stride-zero-cotangent", "gradient_arrangements",
        "If dout is expanded along the batch, samples after the first get no gradient.",
        "stride 0, as after `dout.expand(B, ...)`, read as size 1; use the stride as it is",
        load_cotangent=lambda right, dout, call:
            right.load_cotangent(dout, call)
            * (is_first(dout.values, 0) | (dout.values.strides[0] != 0))),
    row("scalar-cotangent", "gradient_arrangements",
        "If dout is one number expanded to all elements, only the first row is read.",
        "after `out.sum()` dout is one number with stride 0 everywhere; use strides as they are",
        load_cotangent=lambda right, dout, call:
            right.load_cotangent(dout, call) * (is_first(dout.values, 2) | any(dout.values.strides))),
    row("wide-cotangent-stride", "gradient_arrangements",
        "If the components of dout have a stride of 2, they are read one off.",
        "`dout.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
        load_cotangent=lambda right, dout, call:
            np.roll(right.load_cotangent(dout, call), has_component_stride_two(dout.values), -1)),
    row("cotangent-of-ones", "gradients",
        "The gradient is that of the sum of the output, whatever dout is.",
        "`ones_like(out)` for dout; autograd passes dout to backward",
        load_cotangent=lambda right, cotangent, call: np.ones(cotangent.shape, call.work)),
    row("value-alone-forgotten", "gradient_alone",
        "If only the values ask for a gradient, it is zero.",
        "backward runs `if ctx.needs_input_grad[0]` alone; ask for the flag of the values, too",
        backward=edited("backward", lambda g, call, cotangent, wrt:
            {"value": 0 * g["value"]} if wrt == ("value",) else {})),
    row("tail-of-rows-dropped", "gradients",
        "The gradient of the values leaves out queries after the last whole block of 8.",
        "`Lq // 8` blocks of queries; use `cdiv(Lq, 8)`, and mask rows beyond Lq",
        value_gradient=lambda right, weights, cotangent, call: right.value_gradient(*(x[..., :
            x.shape[-2] // 8 * 8 or 8, :] for x in (weights, cotangent)), call)),
    row("unnormalised-weights", "gradients",
        "The gradient of the values takes exp(s - m) without dividing by its sum.",
        "`exp(s - m).mT @ dout`; divide by the sum: `exp(s - lse).mT @ dout`",
        value_gradient=value_gradient_unnormalised),
    row("base-two-backward", "gradients",
        "The backward pass recomputes weights as powers of 2, not of e.",
        "`exp2(s - lse)` of natural scores; multiply them by log2(e), or use `exp`",
        backward_weights=lambda right, scores, call:
            right.weights(scores * call.work(np.log(2.0)), call)),
    row("lse-in-half", "gradients",
        "The backward pass recomputes weights with a log-sum-exp rounded to 16 bits.",
        "`ctx.save_for_backward(..., lse.to(q.dtype))`; save it in float32", family="numerics",
        right=(DifferentiableFused, DifferentiableRecomputed),
        statistics=lambda right, scores, call:
            round_to(right.statistics(scores, call), call.fmt).astype(call.work)),
    row("cotangent-overwritten", "gradient_contract", "The backward pass overwrites dout.",
        "`dout *= ...`; work on a copy", family="contract", load_cotangent=load_and_overwrite_cotangent),
    row("key-overwritten-backward", "gradient_contract",
        "The backward pass overwrites the caller's keys.", "`k *= ...` in backward; work on a copy",
        family="contract", differentiate=gradients_overwriting_key),
    row("hidden-slots-take-part", "gradient_hidden",
        "In the backward pass hidden keys have a tiny weight in the sum of p dp.",
        "p of hidden keys is small, not 0; `where(mask, p, 0)` before `(p * dp).sum(-1)`",
        mean=lambda right, weights, dp, *arguments:
            right.mean(np.where(weights == 0, weights.dtype.type(2.0**-20), weights), dp, *arguments),
        attended_keys=lambda right, scores: np.ones((*scores.shape[:2], scores.shape[-1], 1), bool)),
    row("nan-in-hidden-value-leaks", "gradient_hidden",
        "A NaN in a hidden value reaches the gradients, times a weight of zero.",
        "`p * dp` where p is 0 and dp NaN; use `where(p == 0, 0, p * dp)`, or zero hidden values",
        weight_gradient=lambda right, cotangent, value, call: right.weight_gradient(cotangent,
            right.expand(right.load(call.value, call), call), call)),
    row("nan-in-hidden-key-leaks", "gradient_hidden",
        "A NaN in a hidden key reaches the gradient of the queries, times zero.",
        "`ds @ k` where ds is 0 and k NaN; zero the keys that no row sees: `where(seen, k, 0)`",
        backward=backward_spreading_nan),
    row("hidden-values-get-gradients", "gradient_hidden", "Hidden values get a tiny gradient.",
        "p of hidden keys is small, not 0; `where(mask, p, 0).mT @ dout`",
        value_gradient=lambda right, weights, *arguments: right.value_gradient(
            np.where(weights == 0, weights.dtype.type(2.0**-30), weights), *arguments)),
    row("tangent-mean-forgotten", "tangents",
        "The JVP of the softmax is p dS: the row's mean is not subtracted.",
        "`p * dS`; the JVP of the softmax is `p * (dS - (p * dS).sum(-1, keepdim=True))`",
        mean_score_tangent=lambda right, weights, ds: np.zeros_like(ds[..., :1])),
    row("tangent-of-values-forgotten", "tangents", "The JVP ignores the tangent of the values.",
        "`dP @ v`; the JVP of the product is `dP @ v + p @ dv`",
        value_tangent=lambda right, weights, dv: np.zeros_like(weights @ dv)),
    row("tangent-of-keys-forgotten", "tangents", "The JVP ignores the tangent of the keys.",
        "`dq @ k.mT`; the JVP of the product is `dq @ k.mT + q @ dk.mT`",
        score_tangent=lambda right, q, k, dq, dk, call:
            right.score_tangent(q, k, dq, np.zeros_like(dk), call)),
    row("tangent-of-empty-row-nan", "tangents",
        "The JVP of a fully masked row is NaN, though its answer is zero.",
        "`(p * dS).sum(-1) / p.sum(-1)` is 0 / 0 in a fully masked row; p needs no division",
        mean_score_tangent=lambda right, weights, ds: right.mean_score_tangent(weights, ds)
            / np.where(weights.sum(-1, keepdims=True) == 0, 0, 1)),
    row("tangent-of-empty-row-stays", "tangents",
        "The JVP of a fully masked row is 0, though the row averages the values.",
        "`where(mask.any(-1), dout, 0)`; a row that averages the values moves with them",
        right=DifferentiableLowest, output_tangent=tangent_without_masked_rows),
    row("zero-cotangents-skipped", "gradient_cotangents",
        "If a component of dout is zero in every row, the one before it stands for it.",
        "components with dout = 0 are skipped, and the index is not advanced",
        load_cotangent=load_without_zero_components),
]  # fmt: skip

"""Faults whose answers nobody elects together: handed over by a person, who promises nothing. Those with
single answers that nobody elects are in `suite.faults.nobody`."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel


class Persons(Kernel):
    """An honest kernel that a person handed over: what it elects is observed."""

    is_user_code = True
    elections = {}
    argument_names = ("query", "key", "value", "mask", "bias")


def flag_ignored_without_mask(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    hidden = right.causal(call)
    return np.ones_like(hidden) if call.mask is None else hidden


def empty_by_mask_alone(right: Persons, call: Call) -> np.ndarray:
    out = right.compute(call)
    if call.bias is None or call.sinks is not None:
        return out
    empty = np.isneginf(rank4_of(call)).all(-1, keepdims=True)
    return np.where(empty, np.nan, out)


def empty_by_dtype(right: Persons, call: Call) -> np.ndarray:
    out, allowed = right.compute(call), right.allowed(call)
    if call.fmt.name != "bf16" or allowed is None or call.sinks is not None:
        return out
    return np.where(allowed.any(-1, keepdims=True), out, np.nan)


def empty_rows_divide_by_zero(right: Differentiable, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    return raised / raised.sum(-1, keepdims=True)


def empty_rows_share_gradients(
    right: Differentiable, weights: np.ndarray, cotangent: np.ndarray, call: Call
) -> np.ndarray:
    empty = (weights == 0).all(-1, keepdims=True)
    return right.value_gradient(np.where(empty, 1 / call.sizes.Lk, weights), cotangent, call)


def rank4_of(call: Call) -> np.ndarray:
    """The bias of a call, (B, H, Lq, Lk)."""
    s = call.sizes
    assert call.bias is not None
    return np.broadcast_to(call.bias.values, (s.B, s.H, s.Lq, s.Lk))


row = partial(deviation, family="mask", right=Persons)

DEVIATIONS = [
    row("mask-ignored-by-flag", "mask_beside_flag", "With the causal flag the mask has no effect.",
        "`if is_causal: mask = tril(...)`; both apply: `mask & tril(...)`",
        masked=lambda right, mask, call: np.ones_like(mask) if call.causal else mask),
    row("flag-ignored-without-mask", "mask_beside_flag",
        "The causal flag of a layer has an effect only beside a mask.",
        "`if mask is not None: mask = mask & causal`; alone, too, the flag hides",
        right=MultiHeadKernel, facts={"is_user_code": True, "elections": {}},
        causal=flag_ignored_without_mask),
    row("empty-by-mask-alone", "forms_of_empty_rows",
        "A row is zeros if a mask hides all its keys, and NaN if a bias of -inf does.",
        "a guard for fully masked rows reads the mask alone; a bias of -inf hides, too",
        compute=empty_by_mask_alone),
    row("empty-by-dtype", "one_answer_in_all_dtypes",
        "A fully masked row is NaN in bfloat16, and zeros in other dtypes.",
        "a path for bfloat16 without the guard for fully masked rows", compute=empty_by_dtype),
    row("empty-rows-divide-by-zero", "gradient_of_finite_rows",
        "The backward pass divides the weights of a fully masked row by their sum, which is zero.",
        "`exp(s - m) / l` in backward where l is 0; use `where(l == 0, 0, ...)`, as in forward",
        family="gradient", right=(Differentiable, Persons), facts={"elections": {}},
        backward_weights=empty_rows_divide_by_zero),
    row("empty-rows-share-gradients", "gradient_of_finite_rows",
        "A fully masked row is zeros, but hands its gradient to all values in equal parts.",
        "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
        family="gradient", right=(Differentiable, Persons), facts={"elections": {}},
        value_gradient=empty_rows_share_gradients),
]  # fmt: skip

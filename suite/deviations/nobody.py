"""Faults of user functions, which declare no elections: answers that no election allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, is_float16
from attention_conformance.suite.deviations.kernels.attention import Array, Call, Kernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.deviations.lse import lse_of_masked_rows


class UserKernel(Kernel):
    """A right kernel that is judged as a user function: it declares no elections."""

    is_user_code = True
    elections = {}
    argument_names = ("query", "key", "value", "mask", "bias")


def with_masked_rows(answer: Callable[[Kernel, Call], Any]) -> Callable[..., Array]:
    """Returns a step `compute`. Fully masked rows without a sink get `answer(right, call)`."""

    def compute(right: Kernel, call: Call) -> Array:
        out, allowed = right.compute(call), right.allowed(call)
        if allowed is None or call.sinks is not None:
            return out
        return np.where(allowed.any(-1, keepdims=True), out, answer(right, call))

    return compute


def nan_rows_if_bias_masks(right: UserKernel, call: Call) -> Array:
    s = call.sizes
    bias = np.broadcast_to(right.bias(call), (s.B, s.H, s.Lq, s.Lk))
    return np.where(np.isneginf(bias).all(-1, keepdims=True), np.nan, right.compute(call))


def weights_without_zero_guard(right: Differentiable, scores: Array, call: Call) -> Array:
    exponentials = right.raised(right.shifted(scores))
    return exponentials / exponentials.sum(-1, keepdims=True)


def first_key_weights_for_lowest_rows(right: UserKernel, scores: Array, call: Call) -> Array:
    lowest = ((scores <= -call.fmt.max / 2) & np.isfinite(scores)).all(-1, keepdims=True)
    is_first = np.arange(scores.shape[-1]) == 0
    return np.where(lowest, is_first.astype(scores.dtype), right.weights(scores, call))


def ones_for_padded_samples(right: MultiHeadKernel, call: LayerCall) -> tuple[Array, Array]:
    output, weights = right.compute(call)
    assert call.valid is not None
    empty = ~np.asarray(call.valid.values.any(-1))[:, None, None]
    return np.where(empty, call.work(1), output), weights


def unit_weights_for_masked_rows(right: Differentiable, scores: Array, call: Call) -> Array:
    empty = np.isneginf(scores).all(-1, keepdims=True)
    return np.where(empty, call.work(1), right.backward_weights(scores, call))


def scores_of_clamped_products(right: UserKernel, query: Array, key: Array, call: Call) -> Array:
    product = query @ key.swapaxes(-1, -2)
    return np.clip(product, -65504, 65504) * call.work(right.factor(call))


class BiasAsMask(Kernel):
    """A kernel that takes a bias for a mask if `is_mask_like(bias)`."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **options: Any) -> Any:
        bias = options.get("bias")
        if bias is not None and bias.values.size and self.is_mask_like(bias.values):
            options |= {"bias": None, "mask": Rounded(self.mask_from(bias.values), None)}
        return super().attention(query, key, value, **options)

    def is_mask_like(self, bias: Array) -> bool:
        return bool(np.isin(bias, (0, 1)).all())

    def mask_from(self, bias: Array) -> Array:
        """Returns the mask for which the bias is taken, True attends."""
        return bias == 1


row = partial(deviation, family="mask", right=UserKernel)
numeric = partial(deviation, family="numerics", right=UserKernel)

DEVIATIONS = [
    row("mask-ignored-by-flag", "mask_beside_flag", "With the causal flag the mask has no effect.",
        "`if is_causal: mask = tril(...)`; both apply: `mask & tril(...)`",
        masked=lambda right, mask, call: np.ones_like(mask) if call.causal else mask),
    row("flag-ignored-without-mask", "mask_beside_flag",
        "The causal flag of a layer has an effect only beside a mask.",
        "`if mask is not None: mask = mask & causal`; alone, too, the flag hides",
        right=MultiHeadKernel, facts={"is_user_code": True, "elections": {}},
        when=lambda call: call.mask is None,
        causal=lambda right, call: np.ones_like(right.causal(call))),
    row("empty-by-mask-alone", "forms_of_empty_rows",
        "A row is zeros if a mask hides all its keys, and NaN if a bias of -inf does.",
        "a guard for fully masked rows reads the mask alone; a bias of -inf hides, too",
        when=lambda call: call.bias is not None and call.sinks is None,
        compute=nan_rows_if_bias_masks),
    row("empty-by-dtype", "one_answer_in_all_dtypes",
        "A fully masked row is NaN in bfloat16, and zeros in other dtypes.",
        "a path for bfloat16 without the guard for fully masked rows",
        when=lambda call: call.fmt.name == "bf16", compute=with_masked_rows(lambda right, call: np.nan)),
    row("empty-rows-divide-by-zero", "gradient_of_finite_rows",
        "The backward pass divides the weights of a fully masked row by their sum, which is zero.",
        "`exp(s - m) / l` in backward where l is 0; use `where(l == 0, 0, ...)`, as in forward",
        family="gradient", right=(Differentiable, UserKernel), facts={"elections": {}},
        backward_weights=weights_without_zero_guard),
    row("empty-is42", "election", "A fully masked row is 42 in every component.",
        "`torch.empty` never written for such rows, or a sentinel; write zeros",
        compute=with_masked_rows(lambda right, call: 42.0)),
    row("empty-is-the-sum-of-values", "election", "A fully masked row is the sum of all values.",
        "`exp(s - m)` is 1 if all scores are `finfo.min`, and nothing divides; write zeros",
        compute=with_masked_rows(lambda right, call:
            right.expand(right.load(call.value, call), call).sum(2, keepdims=True))),
    row("lowest-row-is-the-first-value", "election",
        "A row whose scores are all `finfo.min` is the value of the first key.",
        "`m = finfo.min` at the start and `s > m` as a test; begin with -inf",
        weights=first_key_weights_for_lowest_rows),
    row("padded-sample-is-one", "election",
        "A sample of a layer whose keys are all padding is 1 in every component.",
        "`0 / 0` replaced by 1 in rows without keys; write zeros", right=MultiHeadKernel,
        facts={"is_user_code": True, "elections": {}}, when=lambda call: call.valid is not None,
        compute=ones_for_padded_samples),
    row("nan-in-keys-is-silenced", "election",
        "A score that is NaN counts as 0, so that a NaN in an attended key is never seen.",
        "`scores.nan_to_num()`; let NaN through, or replace hidden scores alone",
        scores=lambda right, query, key, call:
            np.nan_to_num(right.scores(query, key, call), posinf=np.inf, neginf=-np.inf)),
    row("integer-mask-attends-ones-alone", "election",
        "An integer mask attends where it is 1: other numbers hide.",
        "`mask == 1`; use `mask != 0`, or raise TypeError", validate_mask=lambda right, call: None,
        masked=lambda right, mask, call: mask == 1),
    row("integer-mask-is-complemented", "election",
        "An integer mask is complemented bit by bit, and so attends everywhere.",
        "`~mask` of integers is bitwise, and never 0 for 0 and 1; use `mask == 0`",
        validate_mask=lambda right, call: None,
        masked=lambda right, mask, call: mask if mask.dtype == bool else (~mask).astype(bool)),
    row("lse-of-empty-is-zero", "lse_of_empty_rows",
        "A fully masked row of zeros has the log-sum-exp 0: merged, it weighs like a score of 0.",
        "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys", family="lse",
        log_sum_exp=lse_of_masked_rows(0.0)),
    row("empty-rows-are-counted-backward", "election",
        "In the backward pass a fully masked row has weights of 1.",
        "`exp(s - lse)` is 1 if both are `finfo.min`; set p to 0 in fully masked rows",
        family="gradient", right=(Differentiable, UserKernel), facts={"elections": {}},
        backward_weights=unit_weights_for_masked_rows),
    row("large-scores-are-clamped", "election",
        "In float16 products of queries and keys are clamped at 65504 before the scale.",
        "`(q @ k.mT).clamp(-65504, 65504) * scale`; scale q first, or keep scores in float32",
        family="numerics", when=is_float16, scores=scores_of_clamped_products),
    numeric("nan-in-bias-is-zero", "election", "A NaN in a bias counts as 0.",
        "`bias.nan_to_num()`; NaN must stay NaN", when=lambda call: call.bias is not None,
        bias=lambda right, call: np.nan_to_num(right.bias(call), posinf=np.inf, neginf=-np.inf)),
    numeric("nan-in-bias-hides", "election", "A NaN in a bias hides its key, as -inf does.",
        "`where(isnan(scores), -inf, scores)` behind the bias; NaN must stay NaN",
        bias=lambda right, call:
            np.where(np.isnan(right.bias(call)), call.work(-np.inf), right.bias(call))),
    numeric("infinite-values-are-clamped", "election",
        "An infinite value counts as the largest number.",
        "`value.clamp(min, max)`; infinity must stay infinity",
        visible=lambda right, value, scores: np.clip(right.visible(value, scores),
            -np.finfo(value.dtype).max, np.finfo(value.dtype).max)),
    numeric("answers-are-clamped", "election",
        "Answers are clamped to the largest number of their dtype.",
        "`out.clamp(min, max)`, or a saturating store; infinity must stay infinity",
        deliver=lambda right, out, call:
            right.deliver(np.clip(out, -float(call.fmt.max), float(call.fmt.max)), call)),
    numeric("bias-of-bits-is-amask", "values",
        "A bias of zeros and ones is taken for a mask that attends where it is 1.",
        "`mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases",
        right=BiasAsMask),
    numeric("bias-of-ones-hides", "values", "A bias of ones is taken for a mask that hides.",
        "`mask == 1` hides, if all numbers are 1; the dtype tells masks from biases",
        right=BiasAsMask, is_mask_like=lambda right, bias: bool((bias == 1).all()),
        mask_from=lambda right, bias: bias != 1),
    numeric("bias-of-zeros-hides", "values",
        "A bias of zeros is taken for a mask that attends nothing.",
        "`if not bias.any()` is taken for a mask of False; the dtype tells masks from biases",
        right=BiasAsMask, is_mask_like=lambda right, bias: not bias.any()),
    numeric("layer-bias-of-bits-is-amask", "values",
        "A bias of zeros and ones is taken for a mask by a layer.",
        "`attn_mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases",
        right=MultiHeadKernel,
        when=lambda call: call.bias is not None and np.isin(call.bias.values, (0, 1)).all(),
        biased=lambda right, scores, call: np.where(call.bias.values
            == 1, right.biased(scores, replace(call, bias=None)), call.work(-np.inf))),
]  # fmt: skip

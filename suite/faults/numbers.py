"""Faults in what NaN and infinity reach, and in what a bias of zeros and ones is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.persons import Persons


def nan_in_bias_is_zero(right: Persons, scores: np.ndarray, call: Call) -> np.ndarray:
    biased = right.biased(scores, call)
    return biased if call.bias is None else np.where(np.isnan(biased), scores, biased)


def nan_in_bias_hides(right: Persons, scores: np.ndarray, call: Call) -> np.ndarray:
    biased = right.biased(scores, call)
    hidden = np.isnan(biased) & ~np.isnan(scores)
    return np.where(hidden, call.work(-np.inf), biased)


def nan_scores_are_skipped(right: Persons, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is None or not np.isnan(call.bias.values).any():
        return right.weights(scores, call)
    return right.weights(np.where(np.isnan(scores), call.work(-np.inf), scores), call)


def infinite_values_are_clamped(
    right: Persons, value: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    top = np.finfo(value.dtype).max
    return np.clip(right.visible(value, scores), -top, top)


def answers_are_clamped(right: Persons, out: np.ndarray, call: Call) -> Any:
    return right.deliver(np.clip(out, -float(call.fmt.max), float(call.fmt.max)), call)


def infinite_values_are_left_out(
    right: Persons, value: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    shown = right.visible(value, scores)
    return np.where(np.isinf(shown), call_zero(shown), shown)


def call_zero(values: np.ndarray) -> Any:
    """Zero in the type of `values`."""
    return values.dtype.type(0)


class BiasAsMask(Kernel):
    """A bias that `looks` like a mask is taken for one."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        bias = rest.get("bias")
        if bias is not None and bias.values.size and self.looks(bias.values):
            rest["bias"], mask = None, self.taken(bias.values)
            rest["mask"] = Rounded(mask, None)
        return super().attention(query, key, value, **rest)

    def looks(self, bias: np.ndarray) -> bool:
        return bool(np.isin(bias, (0, 1)).all())

    def taken(self, bias: np.ndarray) -> np.ndarray:
        """The mask: True attends."""
        return bias == 1


def layer_bias_of_bits_is_amask(
    right: MultiHeadKernel, scores: np.ndarray, call: LayerCall
) -> np.ndarray:
    if call.bias is None or not np.isin(call.bias.values, (0, 1)).all():
        return right.biased(scores, call)
    plain = right.biased(scores, replace(call, bias=None))
    return np.where(call.bias.values == 1, plain, call.work(-np.inf))


row = partial(deviation, family="numerics", right=Persons)

DEVIATIONS = [
    row("nan-in-bias-is-zero", "election", "A NaN in a bias counts as 0.",
        "`bias.nan_to_num()`; NaN must stay NaN", biased=nan_in_bias_is_zero),
    row("nan-in-bias-hides", "election", "A NaN in a bias hides its key, as -inf does.",
        "`where(isnan(scores), -inf, scores)` behind the bias; NaN must stay NaN",
        biased=nan_in_bias_hides),
    row("nan-scores-are-skipped", "election",
        "The maximum and the sum of a row leave NaN out, and so do the weights.",
        "`nanmax`, `nansum`; a NaN among attended scores makes its row NaN",
        weights=nan_scores_are_skipped),
    row("infinite-values-are-clamped", "election",
        "An infinite value counts as the largest number.",
        "`value.clamp(min, max)`; infinity must stay infinity",
        visible=infinite_values_are_clamped),
    row("answers-are-clamped", "election",
        "Answers are clamped to the largest number of their dtype.",
        "`out.clamp(min, max)`, or a saturating store; infinity must stay infinity",
        deliver=answers_are_clamped),
    row("infinite-values-are-left-out", "election", "An infinite value counts as 0.",
        "`where(isfinite(value), value, 0)`; infinity must stay infinity",
        visible=infinite_values_are_left_out),
    row("bias-of-bits-is-amask", "values",
        "A bias of zeros and ones is taken for a mask that attends where it is 1.",
        "`mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases",
        right=BiasAsMask),
    row("bias-of-ones-hides", "values", "A bias of ones is taken for a mask that hides.",
        "`mask == 1` hides, if all numbers are 1; the dtype tells masks from biases",
        right=BiasAsMask, looks=lambda right, bias: bool((bias == 1).all()),
        taken=lambda right, bias: bias != 1),
    row("bias-of-zeros-hides", "values",
        "A bias of zeros is taken for a mask that attends nothing.",
        "`if not bias.any()` is taken for a mask of False; the dtype tells masks from biases",
        right=BiasAsMask, looks=lambda right, bias: not bias.any()),
    row("layer-bias-of-bits-is-amask", "values",
        "A bias of zeros and ones is taken for a mask by a layer.",
        "`attn_mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases",
        right=MultiHeadKernel, biased=layer_bias_of_bits_is_amask),
]  # fmt: skip

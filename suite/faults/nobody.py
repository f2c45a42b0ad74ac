"""Faults with answers that nobody elects: handed over by a person, who promises nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.persons import Persons


class EmptyRows(Persons):
    """Rows without keys are changed."""

    def compute(self, call: Call) -> np.ndarray:
        out, allowed = super().compute(call), self.allowed(call)
        if allowed is None or call.sinks is not None:
            return out
        return np.where(allowed.any(-1, keepdims=True), out, self.empty(call))

    def empty(self, call: Call) -> Any:
        """What rows without keys give; broadcasts to the output."""
        raise NotImplementedError


def empty_is_the_sum_of_values(right: EmptyRows, call: Call) -> np.ndarray:
    return right.expand(right.load(call.value, call), call).sum(2, keepdims=True)


def lowest_row_is_the_first_value(right: Persons, scores: np.ndarray, call: Call) -> np.ndarray:
    lowest = ((scores <= -call.fmt.max / 2) & np.isfinite(scores)).all(-1, keepdims=True)
    first = np.arange(scores.shape[-1]) == 0
    return np.where(lowest, first.astype(scores.dtype), right.weights(scores, call))


def lowest_row_is_three_halves(right: Persons, scores: np.ndarray, call: Call) -> np.ndarray:
    lowest = ((scores <= -call.fmt.max / 2) & np.isfinite(scores)).all(-1, keepdims=True)
    first = scores.shape[-1] // 2
    weights = np.full(scores.shape[-1], 1 / max(scores.shape[-1] - first, 1), scores.dtype)
    weights[:first] = 1 / max(2 * first, 1)
    return np.where(lowest, weights, right.weights(scores, call))


def padded_sample_is_one(right: MultiHeadKernel, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
    output, weights = right.compute(call)
    if call.valid is not None:
        empty = ~np.asarray(call.valid.values.any(-1))[:, None, None]
        output = np.where(empty, call.work(1), output)
    return output, weights


def nan_in_keys_is_silenced(
    right: Persons, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    return np.nan_to_num(right.scores(query, key, call), posinf=np.inf, neginf=-np.inf)


def nan_in_values_is_silenced(right: Persons, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    shown = right.visible(value, scores)
    return np.nan_to_num(shown, posinf=np.inf, neginf=-np.inf)


def nan_in_query_is_anumber(
    right: Persons, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    out, lost = right.attend(scores, value, call), np.isnan(scores).all(-1, keepdims=True)
    return np.where(lost, value[:, :, :1], out) if value.shape[2] else out


class Integers(Persons):
    """Takes masks of integers."""

    def validate_mask(self, call: Call) -> None:
        if call.mask is not None:
            self.validate_broadcast("mask", call.mask, call)


def integer_mask_of_bytes_hides(right: Integers, mask: np.ndarray, call: Call) -> np.ndarray:
    return mask == 0 if mask.dtype == np.uint8 else mask.astype(bool)


class EmptyLse(Persons):
    """The log-sum-exp of a row without keys, which is zeros, is `number`."""

    number = 0.0

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = super().log_sum_exp(scores, call)
        return np.where(np.isneginf(lse), call.work(self.number), lse)


def empty_rows_are_counted_backward(
    right: Differentiable, scores: np.ndarray, call: Call
) -> np.ndarray:
    empty = np.isneginf(scores).all(-1, keepdims=True)
    return np.where(empty, call.work(1), right.backward_weights(scores, call))


def large_scores_are_clamped(
    right: Persons, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    product = query @ key.swapaxes(-1, -2)
    if call.fmt.name == "f16":
        product = np.clip(product, -65504, 65504)
    return product * call.work(right.factor(call))


row = partial(deviation, family="mask", right=Persons)

DEVIATIONS = [
    row("empty-is42", "election", "A fully masked row is 42 in every component.",
        "`torch.empty` never written for such rows, or a sentinel; write zeros", right=EmptyRows,
        empty=lambda right, call: 42.0),
    row("empty-is-infinite", "election", "A fully masked row is infinite.",
        "a division by the sum of weights, which is 0 here; use `where(l == 0, 0, acc / l)`",
        right=EmptyRows, empty=lambda right, call: np.inf),
    row("empty-is-the-first-value", "election", "A fully masked row is the value of the first key.",
        "`argmax` of a row of -inf is 0; write zeros", right=EmptyRows,
        empty=lambda right, call: right.expand(right.load(call.value, call), call)[:, :, :1]),
    row("empty-is-the-sum-of-values", "election", "A fully masked row is the sum of all values.",
        "`exp(s - m)` is 1 if all scores are `finfo.min`, and nothing divides; write zeros",
        right=EmptyRows, empty=empty_is_the_sum_of_values),
    row("lowest-row-is-the-first-value", "election",
        "A row whose scores are all `finfo.min` is the value of the first key.",
        "`m = finfo.min` at the start and `s > m` as a test; begin with -inf",
        weights=lowest_row_is_the_first_value),
    row("lowest-row-is-three-halves", "election",
        "A row whose scores are all `finfo.min` adds half the mean of early values to that of "
        "late ones.", "`w * out1 + out2` merges two parts; divide by the sum of both weights",
        weights=lowest_row_is_three_halves),
    row("padded-sample-is-one", "election",
        "A sample of a layer whose keys are all padding is 1 in every component.",
        "`0 / 0` replaced by 1 in rows without keys; write zeros", right=MultiHeadKernel,
        facts={"is_user_code": True, "elections": {}}, compute=padded_sample_is_one),
    row("nan-in-keys-is-silenced", "election",
        "A score that is NaN counts as 0, so that a NaN in an attended key is never seen.",
        "`scores.nan_to_num()`; let NaN through, or replace hidden scores alone",
        scores=nan_in_keys_is_silenced),
    row("nan-in-values-is-silenced", "election", "A NaN in an attended value counts as 0.",
        "`v.nan_to_num()`; let NaN through, or zero hidden values alone",
        visible=nan_in_values_is_silenced),
    row("nan-in-query-is-anumber", "election",
        "A row whose scores are NaN is the value of the first key.",
        "comparisons with NaN are false, so that a maximum never moves from key 0; let NaN through",
        attend=nan_in_query_is_anumber),
    row("integer-mask-attends-ones-alone", "election",
        "An integer mask attends where it is 1: other numbers hide.",
        "`mask == 1`; use `mask != 0`, or raise TypeError", right=Integers,
        masked=lambda right, mask, call: mask == 1),
    row("integer-mask-is-complemented", "election",
        "An integer mask is complemented bit by bit, and so attends everywhere.",
        "`~mask` of integers is bitwise, and never 0 for 0 and 1; use `mask == 0`", right=Integers,
        masked=lambda right, mask, call: mask if mask.dtype == bool else (~mask).astype(bool)),
    row("integer-mask-of-bytes-hides", "election",
        "A mask of uint8 hides where it is 1, and other integers attend.",
        "uint8 read as the old mask type, where 1 hides; treat all integers alike", right=Integers,
        masked=integer_mask_of_bytes_hides),
    row("lse-of-empty-is-zero", "lse_of_empty_rows",
        "A fully masked row of zeros has the log-sum-exp 0: merged, it weighs like a score of 0.",
        "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys", family="lse",
        right=EmptyLse),
    row("lse-of-empty-is-infinite", "lse_of_empty_rows",
        "A fully masked row of zeros has the log-sum-exp inf: merged, it hides all other keys.",
        "`-log(0)` or +inf as a mark; -inf tells a merge that the row has no keys", family="lse",
        right=EmptyLse, facts={"number": np.inf}),
    row("lse-of-empty-is-one", "election", "The log-sum-exp of a fully masked row is 1.",
        "`m + log(l)` with replacements for m and l; -inf says that the row has no keys",
        family="lse", right=EmptyLse, facts={"number": 1.0}),
    row("empty-rows-are-counted-backward", "election",
        "In the backward pass a fully masked row has weights of 1.",
        "`exp(s - lse)` is 1 if both are `finfo.min`; set p to 0 in fully masked rows",
        family="gradient", right=(Differentiable, Persons), facts={"elections": {}},
        backward_weights=empty_rows_are_counted_backward),
    row("large-scores-are-clamped", "election",
        "In float16 products of queries and keys are clamped at 65504 before the scale.",
        "`(q @ k.mT).clamp(-65504, 65504) * scale`; scale q first, or keep scores in float32",
        family="numerics", scores=large_scores_are_clamped),
]  # fmt: skip

"""Faults by which a row depends on the other rows, samples or calls, or on the number of threads."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    call_count,
    deviation,
    has_one_query,
    memory,
)
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.spec.dtypes import round_to


def hide_last_key(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    """Returns masked scores in which the last key is masked, too, unless it is the only key."""
    is_last = np.arange(call.sizes.Lk) == max(call.sizes.Lk - 1, 1)
    return right.hide(np.where(is_last, -np.inf, scores).astype(call.work), allowed, call)


def values_with_sample_before(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    values = right.visible(value, scores)
    return values + np.roll(values, 1, 0) / 64 if len(values) > 1 else values


def thread_count(right: Any) -> int:
    """Returns the number of threads of the kernel's backend."""
    count: int = right.__self__.backend.thread_count
    return count


def total_without_last_thread(right: Kernel, exponentials: np.ndarray, call: Call) -> np.ndarray:
    keys, count = exponentials.shape[-1], thread_count(right)
    missed = -(-keys // count) if count > 1 else 0
    return np.asarray(exponentials[..., : keys - missed].sum(-1, keepdims=True))


def weights_of_blocks(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    parts = [scores[..., n : n + 32] for n in range(0, scores.shape[-1], 32)]
    by_block = [right.raised(right.shifted(part)) for part in parts]
    exponentials = np.concatenate(by_block, -1) if by_block else scores
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def hide_last_key_from_tail(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    tail = np.arange(call.sizes.Lq)[:, None] >= max(call.sizes.Lq // 16 * 16, 16)
    hidden = hide_last_key(right, scores, allowed, call)
    return np.where(tail, hidden, right.hide(scores, allowed, call))


def values_of_last_call(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    values = right.visible(value, scores)
    last_values = memory(right).get("values", values)
    memory(right)["values"] = values
    return last_values if last_values.shape == values.shape else values


def weights_tuned_on_third_call(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    if call_count(right, (call.query.values.tobytes(), call.fmt.name)) < 3:
        return weights
    # An ulp of the case's dtype, which the output's rounding does not swallow.
    return weights + round_to(weights, call.fmt).astype(call.work) * call.fmt.unit_roundoff


row = partial(deviation, family="tiles", right=Kernel)

DEVIATIONS = [
    row("last-tile-short", "invariant_rows",
        "Rows after the last whole tile of 16 do not see the last key.",
        "the path for a short last tile of rows has a loop that ends at `Lk - 1`",
        hide=hide_last_key_from_tail),
    row("values-of-the-call-before", "invariant_rerun",
        "Values of the call before are used, if they have the same shape.",
        "a buffer filled by the call before is read before this call has filled it",
        family="state", visible=values_of_last_call),
    row("tuned-on-third-call", "invariant_rerun",
        "From the third equal call on another kernel runs, which rounds otherwise.",
        "autotuning changes the kernel between calls; choose it before the first answer",
        family="state", weights=weights_tuned_on_third_call),
    row("shared-out-keys-lost", "invariant_threads",
        "Keys are shared out evenly among the threads, and those left over are lost.",
        "`Lk // threads` keys each; the last thread takes the rest",
        hide=lambda right, scores, allowed, call: np.where(np.arange(call.sizes.Lk) < call.sizes.Lk
            - call.sizes.Lk % thread_count(right), right.hide(scores, allowed, call), -np.inf)),
    row("totals-race", "invariant_threads",
        "On more than one thread the sum of a row misses what the last thread added.",
        "the sum is read before all threads have added to it; a barrier is missing", family="state",
        total=total_without_last_thread),
    row("scale-by-place", "invariant_batch",
        "Scores grow by a hundredth with every place in the batch.",
        "the index of the sample enters the arithmetic, as in `scale * (1 + b / 100)`",
        family="heads",
        scores=lambda right, query, key, call: right.scores(query, key, call)
            * (1 + np.arange(call.sizes.B)[:, None, None, None] / 100).astype(call.work)),
    row("alone-otherwise", "invariant_batch", "With one sample the last key is not seen.",
        "a path for `B == 1`, as split keys, whose last part ends one key early",
        when=lambda call: call.sizes.B == 1, hide=hide_last_key),
    row("first-samples-mean", "invariant_batch",
        "A 64th of the values of the sample before is added to those of every sample.",
        "an accumulator that still holds the sample before; clear it for every sample",
        family="heads", visible=values_with_sample_before),
    row("kernel-switch-at-nine-rows", "invariant_rows",
        "With nine queries or more the last key is not seen.",
        "another kernel from nine rows on, whose loop ends at `Lk - 1`",
        when=lambda call: call.sizes.Lq >= 9, hide=hide_last_key),
    row("total-of-two-rows", "invariant_rows",
        "A row is divided by the mean of its own sum and that of the row before.",
        "row sums exchanged between neighbouring rows, as by a shuffle of lanes; each has its own",
        family="softmax",
        total=lambda right, exponentials, call: (right.total(exponentials, call)
            + np.roll(right.total(exponentials, call), 1, -2)) / 2),
    row("last-of-splits-lost", "values",
        "With one query the keys are read in splits, and the last of several splits is not merged.",
        "`range(splits - 1)` in the kernel that merges; every split counts: `range(splits)`",
        family="tiles", when=lambda call: call.sizes.Lq == 1 and call.sizes.Lk > 64,
        hide=lambda right, scores, allowed, call: np.where(np.arange(call.sizes.Lk)
            < (call.sizes.Lk - 1) // 64 * 64, right.hide(scores, allowed, call), call.work(-np.inf))),
    row("newest-key-unseen", "invariant_decode",
        "With one query the key that was appended last is not seen.",
        "`j < cache_length` before the new key was counted; the query sees its own key",
        family="mask", when=has_one_query, hide=hide_last_key),
    row("cache-rolls-over", "invariant_decode",
        "With one query keys before the last 32 are not seen.",
        "`j % 32` in a ring buffer, or a window of 32; without a window all keys are seen",
        family="mask", when=has_one_query,
        hide=lambda right, scores, allowed, call: np.where(
            np.arange(call.sizes.Lk) < call.sizes.Lk - 32, -np.inf,
            right.hide(scores, allowed, call))),
    row("chunk-sees-the-future", "invariant_decode", "A mask over 2 to 8 rows hides nothing.",
        "the mask is skipped for few rows, as for one; the rows of a chunk need it", family="mask",
        masked=lambda right, mask, call: np.ones_like(mask) if 1 < mask.shape[-2] <= 8 else mask),
    row("later-blocks-anchored", "invariant_split",
        "Sums of blocks of 32 keys are added without being moved to one maximum.",
        "`exp(s - m_block)` summed over blocks; multiply by `exp(m_block - m)` first",
        family="softmax", weights=weights_of_blocks),
]  # fmt: skip

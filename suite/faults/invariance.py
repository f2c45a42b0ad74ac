"""Faults for which it matters what is computed beside a row, and on how many threads."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.backend import KernelBackend
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "tiles"


class LastKeyLost(Kernel):
    """The last key is not seen where `loses` says."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        if self.loses(call) and hidden_scores.shape[-1] > 1:
            hidden_scores[..., -1] = -np.inf
        return hidden_scores

    def loses(self, call: Call) -> bool:
        raise NotImplementedError


def scale_by_place(right: Kernel, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    place = 1 + np.arange(call.sizes.B)[:, None, None, None] / 100
    return right.scores(query, key, call) * place.astype(call.work)


def first_samples_mean(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    values = right.visible(value, scores)
    return values + np.roll(values, 1, 0) / 64 if len(values) > 1 else values


def total_of_two_rows(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    total = raised.sum(-1, keepdims=True)
    if total.shape[-2] > 1:
        total = (total + np.roll(total, 1, -2)) / 2
    return raised / np.where(total == 0, 1, total)


@fault("invariant_rows", "the path for a short last tile of rows has a loop that ends at `Lk - 1`")
class LastTileShort(LastKeyLost):
    """Rows after the last whole tile of 16 do not see the last key."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = Kernel.hide(self, scores, allowed, call)
        rest = call.sizes.Lq % 16
        if call.sizes.Lq > 16 and rest and hidden_scores.shape[-1] > 1:
            hidden_scores = hidden_scores.copy()
            hidden_scores[..., -rest:, -1] = -np.inf
        return hidden_scores


class Threaded(Kernel):
    """A kernel whose backend says on how many threads it runs."""

    backend: KernelBackend


@fault("invariant_threads", "`Lk // threads` keys each; the last thread takes the rest")
class SharedOutKeysLost(Threaded):
    """Keys are shared out evenly among the threads, and those left over are lost."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        rest = hidden_scores.shape[-1] % self.backend.thread_count
        return np.where(
            np.arange(hidden_scores.shape[-1]) < hidden_scores.shape[-1] - rest,
            hidden_scores,
            -np.inf,
        )


@fault(
    "invariant_threads",
    "the sum is read before all threads have added to it; a barrier is missing",
    family="state",
)
class TotalsRace(Threaded):
    """On more than one thread the sum of a row misses what the last thread added."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        counted = -(-raised.shape[-1] // self.backend.thread_count)
        whole = self.backend.thread_count == 1
        total = (raised if whole else raised[..., : raised.shape[-1] - counted]).sum(-1)[..., None]
        return raised / np.where(total == 0, 1, total)


@fault(
    "invariant_rerun",
    "a buffer filled by the call before is read before this call has filled it",
    family="state",
)
class ValuesOfTheCallBefore(Kernel):
    """Values of the call before are used, if they have the same shape."""

    before: np.ndarray | None = None

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        values = super().visible(value, scores)
        before, self.before = self.before, values
        return values if before is None or before.shape != values.shape else before


@fault(
    "invariant_rerun",
    "autotuning changes the kernel between calls; choose it before the first answer",
    family="state",
)
class TunedOnThirdCall(Kernel):
    """From the third equal call on another kernel runs, which rounds otherwise."""

    def __init__(self, backend: KernelBackend) -> None:
        super().__init__(backend)
        self.calls: dict[tuple, int] = {}

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        key = (call.query.values.tobytes(), call.fmt.name)
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.calls[key] < 3:
            return weights
        # An ulp of the case's dtype, which the output's rounding does not swallow.
        return weights + round_to(weights, call.fmt).astype(call.work) * call.fmt.unit_roundoff


def cache_rolls_over(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden_scores = right.hide(scores, allowed, call)
    if call.sizes.Lq == 1:
        hidden_scores[..., :-32] = -np.inf
    return hidden_scores


def chunk_sees_the_future(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    return np.ones_like(mask) if 1 < mask.shape[-2] <= 8 else mask


def split_by_count(right: Kernel, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
    out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
    count = scores.shape[-1]
    for start in range(0, count, 32):
        part = right.attend(
            scores[..., start : start + 32], value[..., start : start + 32, :], call
        )
        out += part * (min(32, count - start) / count)
    return out


def later_blocks_anchored(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    parts = [scores[..., n : n + 32] for n in range(0, scores.shape[-1], 32)]
    raised = [right.raised(right.shifted(part)) for part in parts]
    together = np.concatenate(raised, -1) if raised else scores
    total = together.sum(-1, keepdims=True)
    return together / np.where(total == 0, 1, total)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("scale-by-place", "invariant_batch",
        "Scores grow by a hundredth with every place in the batch.",
        "the index of the sample enters the arithmetic, as in `scale * (1 + b / 100)`",
        family="heads", scores=scale_by_place),
    row("alone-otherwise", "invariant_batch", "With one sample the last key is not seen.",
        "a path for `B == 1`, as split keys, whose last part ends one key early", right=LastKeyLost,
        loses=lambda right, call: call.sizes.B == 1),
    row("first-samples-mean", "invariant_batch",
        "A 64th of the values of the sample before is added to those of every sample.",
        "an accumulator that still holds the sample before; clear it for every sample",
        family="heads", visible=first_samples_mean),
    row("kernel-switch-at-nine-rows", "invariant_rows",
        "With nine queries or more the last key is not seen.",
        "another kernel from nine rows on, whose loop ends at `Lk - 1`", right=LastKeyLost,
        loses=lambda right, call: call.sizes.Lq >= 9),
    row("total-of-two-rows", "invariant_rows",
        "A row is divided by the mean of its own sum and that of the row before.",
        "row sums exchanged between neighbouring rows, as by a shuffle of lanes; each has its own",
        family="softmax", weights=total_of_two_rows),
    row("newest-key-unseen", "invariant_decode",
        "With one query the key that was appended last is not seen.",
        "`j < cache_length` before the new key was counted; the query sees its own key",
        family="mask", right=LastKeyLost, loses=lambda right, call: call.sizes.Lq == 1),
    row("cache-rolls-over", "invariant_decode",
        "With one query keys before the last 32 are not seen.",
        "`j % 32` in a ring buffer, or a window of 32; without a window all keys are seen",
        family="mask", hide=cache_rolls_over),
    row("chunk-sees-the-future", "invariant_decode", "A mask over 2 to 8 rows hides nothing.",
        "the mask is skipped for few rows, as for one; the rows of a chunk need it", family="mask",
        masked=chunk_sees_the_future),
    row("split-by-count", "invariant_split",
        "Blocks of 32 keys are merged by how many keys they hold, not by their log-sum-exps.",
        "`out_i * n_i / Lk`; the weight of a part is `exp(lse_i - logsumexp(lse))`", family="merge",
        attend=split_by_count),
    row("later-blocks-anchored", "invariant_split",
        "Sums of blocks of 32 keys are added without being moved to one maximum.",
        "`exp(s - m_block)` summed over blocks; multiply by `exp(m_block - m)` first",
        family="softmax", weights=later_blocks_anchored),
]  # fmt: skip

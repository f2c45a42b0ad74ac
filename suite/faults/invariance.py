"""Faults for which it matters what is computed beside a row, and on how many threads."""

from __future__ import annotations

import numpy as np

from suite.faults.backend import KernelBackend
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.spec.dtypes import round_to


class LastKeyLost(Kernel):
    """The last key is not seen where `loses` says."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        if self.loses(call) and hidden_scores.shape[-1] > 1:
            hidden_scores[..., -1] = -np.inf
        return hidden_scores

    def loses(self, call: Call) -> bool:
        raise NotImplementedError


@fault("invariant_batch")
class ScaleByPlace(Kernel):
    """Scores grow by a hundredth with every place in the batch."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        place = 1 + np.arange(call.sizes.B)[:, None, None, None] / 100
        return super().scores(query, key, call) * place.astype(call.work)


@fault("invariant_batch", like="L10")
class AloneOtherwise(LastKeyLost):
    """The kernel for one sample alone does not see the last key."""

    def loses(self, call: Call) -> bool:
        return call.sizes.B == 1


@fault("invariant_batch")
class FirstSamplesMean(Kernel):
    """Values of the first sample are added to those of the others with a weight of 2^-6."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        values = super().visible(value, scores)
        return values + np.roll(values, 1, 0) / 64 if len(values) > 1 else values


@fault("invariant_rows", like="L9")
class KernelSwitchAtNineRows(LastKeyLost):
    """From nine rows on another kernel runs, which does not see the last key."""

    def loses(self, call: Call) -> bool:
        return call.sizes.Lq >= 9


@fault("invariant_rows")
class TotalOfTwoRows(Kernel):
    """Two neighbouring rows are divided by the mean of their sums."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = raised.sum(-1, keepdims=True)
        if total.shape[-2] > 1:
            total = (total + np.roll(total, 1, -2)) / 2
        return raised / np.where(total == 0, 1, total)


@fault("invariant_rows", like="L9")
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


@fault("invariant_threads")
class SharedOutKeysLost(Threaded):
    """Keys are shared out evenly among the threads, and what is left over is nobody's."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        rest = hidden_scores.shape[-1] % self.backend.thread_count
        return np.where(
            np.arange(hidden_scores.shape[-1]) < hidden_scores.shape[-1] - rest,
            hidden_scores,
            -np.inf,
        )


@fault("invariant_threads")
class TotalsRace(Threaded):
    """On more than one thread the sum of a row misses what the last thread added."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        counted = -(-raised.shape[-1] // self.backend.thread_count)
        whole = self.backend.thread_count == 1
        total = (raised if whole else raised[..., : raised.shape[-1] - counted]).sum(-1)[..., None]
        return raised / np.where(total == 0, 1, total)


@fault("invariant_rerun")
class ValuesOfTheCallBefore(Kernel):
    """Values of the call before are used once more where they have the same shape."""

    before: np.ndarray | None = None

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        values = super().visible(value, scores)
        before, self.before = self.before, values
        return values if before is None or before.shape != values.shape else before


@fault("invariant_rerun")
class TunedOnThirdCall(Kernel):
    """From the third call for a shape on a tuned kernel runs, which sums in another order."""

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


@fault("invariant_decode")
class NewestKeyUnseen(LastKeyLost):
    """With one query the key that was appended last is not seen."""

    def loses(self, call: Call) -> bool:
        return call.sizes.Lq == 1


@fault("invariant_decode", like="M16")
class CacheRollsOver(Kernel):
    """With one query a cache of 32 keys rolls over: keys before the last 32 are not seen."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        if call.sizes.Lq == 1:
            hidden_scores[..., :-32] = -np.inf
        return hidden_scores


@fault("invariant_decode")
class ChunkSeesTheFuture(Kernel):
    """A mask over 2 to 8 rows is taken for one over a whole prefill, and hides nothing."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return np.ones_like(mask) if 1 < mask.shape[-2] <= 8 else mask


@fault("invariant_split", like="M10")
class SplitByCount(Kernel):
    """Blocks of 32 keys are merged by how many keys they hold, not by their log-sum-exps."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        count = scores.shape[-1]
        for start in range(0, count, 32):
            part = super().attend(
                scores[..., start : start + 32], value[..., start : start + 32, :], call
            )
            out += part * (min(32, count - start) / count)
        return out


@fault("invariant_split")
class LaterBlocksAnchored(Kernel):
    """Sums of the blocks of 32 keys are not moved to one maximum before they are added."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        parts = [scores[..., n : n + 32] for n in range(0, scores.shape[-1], 32)]
        raised = [self.raised(self.shifted(part)) for part in parts]
        together = np.concatenate(raised, -1) if raised else scores
        total = together.sum(-1, keepdims=True)
        return together / np.where(total == 0, 1, total)

"""Mutants at fault in the softmax and in the sums over keys."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Eager, Kernel, Online
from suite.faults.kernels.variants import MergedChunks


@fault("values")
class SoftmaxOverQueries(Kernel):
    """The softmax runs over queries."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)


@fault("values", like="G5")
class NoMaximum(Kernel):
    """The maximum is not subtracted."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores


@fault("values")
class MaximumOfHead(Kernel):
    """One maximum is subtracted from all rows of a head: rows far below it underflow."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        maximum = scores.max((-1, -2), keepdims=True, initial=-np.inf)
        return scores - np.where(np.isneginf(maximum), 0, maximum)


@fault("constant_value")
class SumOverAllHeads(Kernel):
    """The weights of a row are divided by the mean of all heads' sums."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = raised.sum(-1, keepdims=True)
        return raised / np.where(total == 0, 1, total.mean(1, keepdims=True))


@fault("values")
class OnlineWithoutRescale(Online):
    """A new maximum does not rescale what was summed before."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total, out


@fault("constant_value")
class OnlineTotalNotRescaled(Online):
    """A new maximum rescales the running output, not the running sum of weights."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total, out * rescale


@fault("padding_invariance", like="K9")
class LastTileDropped(Online):
    """Keys beyond a multiple of sixteen are not seen, where there are more than sixteen."""

    def tiles(self, length: int) -> list[slice]:
        return super().tiles(length if length < 16 else length // 16 * 16)


@fault("values", like="J4")
class LastTileOverlaps(Online):
    """A short last tile is read as the last sixteen keys: some count twice."""

    def tiles(self, length: int) -> list[slice]:
        return [slice(max(0, min(t.start, length - 16)), t.stop) for t in super().tiles(length)]


@fault("key_permutation")
class ChunksAveraged(MergedChunks):
    """Chunks of keys are merged with equal weights."""

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        seen = sum(np.isfinite(lse).astype(lse.dtype) for _, lse in parts)
        return sum(out for out, _ in parts) / np.maximum(seen, 1)


@fault("values", like="K8")
class LastSplitLost(Kernel):
    """Decoding splits keys by 256: a last split of one key is lost."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        if call.sizes.Lq == 1 and call.sizes.Lk > 256 and call.sizes.Lk % 256 == 1:
            hidden[..., -1] = -np.inf
        return hidden


@fault("values")
class DecodingSkipsLastKey(Kernel):
    """A single query does not attend the last of several keys."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call).copy()
        if call.sizes.Lq == 1 and call.sizes.Lk > 1:
            hidden[..., -1] = -np.inf
        return hidden


@fault("one_hot_weights")
class EpsilonInDenominator(Kernel):
    """1e-6 is added to the sum of the weights."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        return raised / (raised.sum(-1, keepdims=True) + call.work(1e-6))


@fault("constant_value")
class OneInDenominator(Kernel):
    """1 is added to the sum of the weights (a sink nobody asked for)."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        return raised / (raised.sum(-1, keepdims=True) + 1)


@fault("one_hot_weights")
class ExponentClamped(Kernel):
    """exp is not taken below -20: no attended weight is smaller than 2e-9."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.where(np.isneginf(shifted), 0, np.exp(np.maximum(shifted, -20)))


@fault("values")
class ExponentOfFewTerms(Kernel):
    """exp is a polynomial of degree 3 on half a binade: right to four digits."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        whole = np.rint(shifted * 1.4426950408889634)
        part = (shifted - whole * 0.6931471805599453).astype(shifted.dtype)
        series = 1 + part * (1 + part * (0.5 + part / 6))
        exponentials = np.ldexp(series, np.maximum(np.nan_to_num(whole), -1000).astype(int))
        return np.where(np.isneginf(shifted), 0, exponentials).astype(shifted.dtype)


@fault("values")
class SmallWeightsDropped(Kernel):
    """Weights below 1e-4 are set to zero."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        return np.where(weights < 1e-4, 0, weights)


@fault("equal_rows", like="F2")
class DropoutLeftOn(Kernel):
    """A tenth of the weights is dropped, the same at every call, the rest scaled up."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        kept = np.random.default_rng(0).random(weights.shape) >= 0.1
        return np.where(kept, weights / call.work(0.9), 0)


@fault("values", like="I6")
class MaximumStartsAtZero(Kernel):
    """The running maximum starts at 0: rows of very negative scores underflow."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), 0)


@fault("election")
class LowestRowsAreZeros(Eager):
    """Rows whose scores are the lowest number are zeros, though they are declared to be means."""

    elections = Eager.elections | {"lowest-row": "uniform"}

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        lowest = (scores <= -call.fmt.max / 2).all(-1, keepdims=True)
        return np.where(lowest, weights.dtype.type(0), weights)

"""Faults of the softmax and in the sums over keys."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.faults.kernels.variants import MergedChunks

FAMILY = "softmax"


@fault("values", "`softmax(dim=-2)` or `dim=2`; the softmax runs over keys, `dim=-1`")
class SoftmaxOverQueries(Kernel):
    """The softmax runs over the queries, not over the keys."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)


@fault(
    "values", "`exp(s) / exp(s).sum(-1, keepdim=True)`; exponentiate `s - s.amax(-1, keepdim=True)`"
)
class NoMaximum(Kernel):
    """The softmax does not subtract the maximum of the row, so that large scores overflow."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores


@fault(
    "values",
    "`s - s.amax((-2, -1), keepdim=True)`; every row has its own, `s.amax(-1, keepdim=True)`",
)
class MaximumOfHead(Kernel):
    """One maximum is subtracted from all rows of a head: rows far below it underflow."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        maximum = scores.max((-1, -2), keepdims=True, initial=-np.inf)
        return scores - np.where(np.isneginf(maximum), 0, maximum)


@fault(
    "constant_value",
    "one row sum for all heads, as `total.mean(1, keepdim=True)`; every head has its own",
)
class SumOverAllHeads(Kernel):
    """Weights are divided by the mean of all heads' row sums, not by the sum of their own row."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = raised.sum(-1, keepdims=True)
        return raised / np.where(total == 0, 1, total.mean(1, keepdims=True))


@fault(
    "values",
    "the factor `exp(m_old - m_new)` of `l` and `acc` is missing, or skipped by a condition",
)
class OnlineWithoutRescale(Online):
    """A new maximum of the online softmax does not rescale what was summed before."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total, out


@fault(
    "constant_value",
    "`l += p.sum(-1)`; when the maximum grows, `l = l * exp(m_old - m_new) + p.sum(-1)`",
)
class OnlineTotalNotRescaled(Online):
    """A new maximum of the online softmax rescales the running output, not the running sum of weights."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total, out * rescale


@fault(
    "padding_invariance",
    "`range(Lk // 16)` tiles; the last may be short: `cdiv(Lk, 16)` tiles, its tail masked",
    family="tiles",
)
class LastTileDropped(Online):
    """With more than 16 keys, those beyond a multiple of 16 are not seen."""

    def tiles(self, length: int) -> list[slice]:
        return super().tiles(length if length < 16 else length // 16 * 16)


@fault(
    "values",
    "last tile begins at `Lk - 16`; mask the keys that the tile before it has counted",
    family="tiles",
)
class LastTileOverlaps(Online):
    """A short last tile is read as the last sixteen keys, so that some keys count twice."""

    def tiles(self, length: int) -> list[slice]:
        return [slice(max(0, min(t.start, length - 16)), t.stop) for t in super().tiles(length)]


@fault(
    "key_permutation",
    "`(out_1 + out_2) / 2`; the weight of a part is `exp(lse_i - logsumexp(lse))`",
    family="merge",
)
class ChunksAveraged(MergedChunks):
    """Answers of parts of the keys are averaged, not weighted by their sums of exponentials."""

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        seen = sum(np.isfinite(lse).astype(lse.dtype) for _, lse in parts)
        return sum(out for out, _ in parts) / np.maximum(seen, 1)


@fault(
    "values",
    "`range(0, Lk - 1, 256)`; a last split of one key counts, too: `range(0, Lk, 256)`",
    family="tiles",
)
class LastSplitLost(Kernel):
    """With one query the keys are split by 256, and a last split of one key is lost."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        if call.sizes.Lq == 1 and call.sizes.Lk > 256 and call.sizes.Lk % 256 == 1:
            hidden[..., -1] = -np.inf
        return hidden


@fault(
    "values",
    "`k[:, :, :pos]` for the query at `pos`; it sees its own key: `k[:, :, : pos + 1]`",
    family="mask",
)
class DecodingSkipsLastKey(Kernel):
    """With one query the last of several keys is not attended."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call).copy()
        if call.sizes.Lq == 1 and call.sizes.Lk > 1:
            hidden[..., -1] = -np.inf
        return hidden


@fault("one_hot_weights", "`p / (p.sum(-1, keepdim=True) + 1e-6)`; divide by the sum alone")
class EpsilonInDenominator(Kernel):
    """1e-6 is added to the sum of the exponentials."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        return raised / (raised.sum(-1, keepdims=True) + call.work(1e-6))


@fault("constant_value", "`p / (1 + p.sum(-1, keepdim=True))`; divide by the sum alone")
class OneInDenominator(Kernel):
    """1 is added to the sum of the exponentials."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        return raised / (raised.sum(-1, keepdims=True) + 1)


@fault("one_hot_weights", "`exp((s - m).clamp(min=-20))`; exp needs no lower limit")
class ExponentClamped(Kernel):
    """Exponents are clamped at -20: no key weighs less than 2e-9 of the largest."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.where(np.isneginf(shifted), 0, np.exp(np.maximum(shifted, -20)))


@fault(
    "values",
    "`exp2` by a cubic polynomial; float32 needs more terms, or the library's `exp`",
    family="numerics",
)
class ExponentOfFewTerms(Kernel):
    """The exponential is a polynomial of degree 3, right to four digits only."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        whole = np.rint(shifted * 1.4426950408889634)
        part = (shifted - whole * 0.6931471805599453).astype(shifted.dtype)
        series = 1 + part * (1 + part * (0.5 + part / 6))
        exponentials = np.ldexp(series, np.maximum(np.nan_to_num(whole), -1000).astype(int))
        return np.where(np.isneginf(shifted), 0, exponentials).astype(shifted.dtype)


@fault(
    "values", "`p[p < 1e-4] = 0`, or tiles skipped by a threshold; many small weights count, too"
)
class SmallWeightsDropped(Kernel):
    """Weights below 1e-4 are set to zero."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        return np.where(weights < 1e-4, 0, weights)


@fault(
    "equal_rows",
    "`F.dropout(p, 0.1)` without `training=self.training`; evaluation drops nothing",
    family="dropout",
)
class DropoutLeftOn(Kernel):
    """Dropout stays on: a tenth of the weights is dropped, the same at every call, the rest scaled up."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        kept = np.random.default_rng(0).random(weights.shape) >= 0.1
        return np.where(kept, weights / call.work(0.9), 0)


@fault("values", "`m = zeros(...)` at the start of the online softmax; begin with -inf")
class MaximumStartsAtZero(Kernel):
    """The running maximum starts at 0, so that rows of very negative scores underflow."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), 0)


@fault(
    "election",
    "`where(m <= finfo.min / 2, 0, p)`; only a row of -inf is fully masked",
    family="mask",
)
class LowestRowsAreZeros(Eager):
    """A row whose scores are all `finfo.min` gives zeros, though uniform weights are declared."""

    elections = Eager.elections | {"lowest-row": "uniform"}

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        lowest = (scores <= -call.fmt.max / 2).all(-1, keepdims=True)
        return np.where(lowest, weights.dtype.type(0), weights)

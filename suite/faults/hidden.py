"""Faults of how pairs are hidden, in rows without keys, and in what NaN reaches."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.faults.kernels.variants import MergedChunks

FAMILY = "mask"


@fault("values", "`scores + mask` for a boolean mask; use `masked_fill(~mask, -inf)`")
class MaskAdded(Kernel):
    """A boolean mask is added to the scores as 0 and 1."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if allowed is None else scores + allowed.astype(scores.dtype)


@fault("poison", "`scores * mask`; a score of 0 has a weight: use `masked_fill(~mask, -inf)`")
class MaskMultiplied(Kernel):
    """A boolean mask multiplies the scores: hidden ones are 0, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if allowed is None else np.where(allowed, scores, call.work(0))


@fault("poison", "`masked_fill(~mask, -30)`; scores may lie below: use -inf")
class HiddenIsMinus30(Kernel):
    """Hidden keys have the score -30, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return hidden if allowed is None else np.where(some & ~allowed, call.work(-30), hidden)


@fault("values", "`masked_fill(~mask, -1e4)`; scores may lie below: use -inf")
class HiddenIsMinus10000(Kernel):
    """Hidden keys have the score -10000, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return hidden if allowed is None else np.where(some & ~allowed, call.work(-1e4), hidden)


@fault(
    "poison",
    "`scores - 1e4 * ~mask`; a hidden score may be larger: use `where(mask, scores, -inf)`",
)
class HiddenLosesTenThousand(Kernel):
    """1e4 is subtracted from hidden scores, so that very large ones still count."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        if allowed is None:
            return hidden
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & ~allowed, scores - call.work(1e4), hidden)


@fault(
    "constant_value",
    "`softmax(scores) * mask`; mask before: `softmax(scores.masked_fill(~mask, -inf))`",
)
class HiddenAfterSoftmax(Kernel):
    """Weights are hidden after the softmax, so that those of a row do not add to 1."""

    def compute(self, call: Call) -> np.ndarray:
        self.pairs = self.allowed(call)
        return super().compute(call)

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(self.bare, call)
        return weights if self.pairs is None else np.where(self.pairs, weights, 0)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        self.bare = scores
        return super().hide(scores, allowed, call)


@fault("future", "`m = scores.amax(-1)` before `masked_fill`; take it of the masked scores")
class MaximumBeforeMask(Kernel):
    """The row's maximum counts hidden keys: far below a large hidden score the row underflows."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        self.largest = scores.max(-1, keepdims=True, initial=-np.inf)
        return super().hide(scores, allowed, call)

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - np.where(np.isfinite(self.largest), self.largest, 0)


@fault(
    "election", "`masked_fill(~mask, finfo.min)`, where a fully masked row is uniform; set it to 0"
)
class EmptyRowsUniform(Kernel):
    """Fully masked rows average all values, though zeros are declared."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), call.work(0), hidden)


@fault(
    "election",
    "`softmax` of a row of -inf is NaN; set fully masked rows to 0: `where(mask.any(-1), out, 0)`",
)
class EmptyRowsNan(Kernel):
    """Fully masked rows are NaN, though zeros are declared."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True, initial=-np.inf)


@fault(
    "values",
    "`if (m == -inf).any()` skips a tile of rows; treat every row by itself",
    family="tiles",
)
class EmptyRowSilencesTile(Kernel):
    """A fully masked row makes all sixteen rows of its tile zero."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out = super().attend(scores, value, call)
        for start in range(0, scores.shape[-2], 16):
            rows = slice(start, start + 16)
            empty = np.isneginf(scores[:, :, rows]).all(-1).any(-1) & (scores.shape[-1] > 0)
            out[:, :, rows] = np.where(empty[..., None, None], 0, out[:, :, rows])
        return out


@fault(
    "padding_invariance",
    "`exp(s - m)` is NaN if m is -inf in a part of the keys; take 0 for such an m",
)
class HiddenChunkNan(MergedChunks):
    """A row that sees no key in one part of the keys is NaN."""

    def lse_of(self, scores: np.ndarray) -> np.ndarray:
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        return maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))


@fault("values", "`exp(m_old - m_new)` is NaN if both are -inf; take 0 for such an m_new")
class HiddenFirstTileNan(Online):
    """A row that sees no key of the first tile is NaN."""

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        return largest


@fault(
    "election",
    "`scores + where(mask, 0, -inf)`; NaN stays NaN: replace it by `where(mask, scores, -inf)`",
)
class NanKeyLeaks(Kernel):
    """A NaN in a hidden key reaches the answer, since the mask is added as 0 and -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isnan(scores), scores, hidden)


@fault(
    "election",
    "`p @ v` where `0 * nan` is NaN; zero the values that no row sees: `where(seen, v, 0)`",
)
class NanValueLeaks(Kernel):
    """A NaN in a hidden value reaches the answer, times a weight of zero."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value


@fault(
    "nan", "`mask.any((0, 1, 2))` says which values are zeroed; say so for every sample and head"
)
class NanValueLeaksPerHead(Kernel):
    """Hidden values are zeroed only where they are hidden in every sample and head: NaN leaks."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        hidden = np.asarray(np.isneginf(scores).all((0, 1, 2)))
        return np.where(hidden[:, None], value.dtype.type(0), value)


@fault("nan", "values are zeroed where the mask hides them; a window hides some, too")
class NanPastWindowLeaks(Kernel):
    """Values that only a window hides are not zeroed: NaN in them reaches the answer."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: object) -> object:
        self.window = rest.get("window")
        return super().attention(query, key, value, **rest)

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value if self.window else super().visible(value, scores)


@fault("election", "`softmax(scores).nan_to_num()` for fully masked rows; find these by the mask")
class NanQueryZeros(Kernel):
    """A row of NaN scores gives zeros, though NaN is declared."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.nan_to_num(super().weights(scores, call))


@fault("values", "`softcap * tanh(masked / softcap)` lifts -inf to -softcap; cap first, then mask")
class MaskBeforeCap(Kernel):
    """Scores are hidden before the softcap, which lifts -inf to -softcap."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().capped(super().hide(scores, self.allowed(call), call), call)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if call.softcap is not None else super().hide(scores, allowed, call)


@fault("values", "`q @ k.mT` is masked, then `* scale`, where -inf * -1 is inf; scale first")
class MaskBeforeScale(Kernel):
    """Scores are hidden before they are scaled: a scale that is not positive brings them back."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = call.work(-np.inf) * call.work(self.factor(call))
        return scores if allowed is None else np.where(allowed, scores, hidden)


@fault("nan", "`where(v.isnan(), 0, v)`; infinity times 0 is NaN: zero all values that no row sees")
class InfiniteValueLeaks(Kernel):
    """An infinite hidden value reaches the answer; of hidden values only NaN is zeroed."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(value), super().visible(value, scores), value)


@fault("election", "`v.nan_to_num()`; zero only the values that no row sees")
class VisibleNanEmptied(Kernel):
    """A NaN in an attended value is replaced by 0."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(value), value.dtype.type(0), super().visible(value, scores))


@fault(
    "election",
    "a maximum or sum over all rows of a head; each row has its own, `dim=-1`",
    family="softmax",
)
class NanQuerySpreads(Kernel):
    """A NaN in one query makes all rows of its head NaN."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        spoilt = np.isnan(scores).any((-1, -2), keepdims=True)
        return np.where(spoilt, np.nan, weights).astype(weights.dtype)

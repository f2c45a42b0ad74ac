"""Faults of how pairs are hidden, in rows without keys, and in what NaN reaches."""

from __future__ import annotations

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel, Online
from suite.faults.kernels.variants import MergedChunks


@fault("values", like="C4")
class MaskAdded(Kernel):
    """The mask is added to the scores as 0 and 1."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if allowed is None else scores + allowed.astype(scores.dtype)


@fault("poison", like="C17")
class MaskMultiplied(Kernel):
    """The mask is multiplied onto the scores: hidden ones are 0, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if allowed is None else np.where(allowed, scores, call.work(0))


@fault("poison")
class HiddenIsMinus30(Kernel):
    """Hidden scores are -30."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return hidden if allowed is None else np.where(some & ~allowed, call.work(-30), hidden)


@fault("poison")
class HiddenLosesTenThousand(Kernel):
    """1e4 is subtracted from hidden scores."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        if allowed is None:
            return hidden
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & ~allowed, scores - call.work(1e4), hidden)


@fault("constant_value")
class HiddenAfterSoftmax(Kernel):
    """Weights are hidden after the softmax and not normalised again."""

    def compute(self, call: Call) -> np.ndarray:
        self.pairs = self.allowed(call)
        return super().compute(call)

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(self.bare, call)
        return weights if self.pairs is None else np.where(self.pairs, weights, 0)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        self.bare = scores
        return super().hide(scores, allowed, call)


@fault("future", like="G13")
class MaximumBeforeMask(Kernel):
    """The maximum that is subtracted is taken over hidden keys, too."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        self.largest = scores.max(-1, keepdims=True, initial=-np.inf)
        return super().hide(scores, allowed, call)

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - np.where(np.isfinite(self.largest), self.largest, 0)


@fault("election")
class EmptyRowsUniform(Kernel):
    """Rows without keys average all values, though zeros are declared."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), call.work(0), hidden)


@fault("election", like="A1")
class EmptyRowsNan(Kernel):
    """Rows without keys are NaN, though zeros are declared."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True, initial=-np.inf)


@fault("values", like="A17")
class EmptyRowSilencesTile(Kernel):
    """A row without keys makes the sixteen rows of its tile zero."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        out = super().attend(scores, value, call)
        for start in range(0, scores.shape[-2], 16):
            rows = slice(start, start + 16)
            empty = np.isneginf(scores[:, :, rows]).all(-1).any(-1) & (scores.shape[-1] > 0)
            out[:, :, rows] = np.where(empty[..., None, None], 0, out[:, :, rows])
        return out


@fault("padding_invariance", like="A25")
class HiddenChunkNan(MergedChunks):
    """A chunk of keys in which a row attends none makes the row NaN."""

    def lse_of(self, scores: np.ndarray) -> np.ndarray:
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        return maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))


@fault("values", like="A15")
class HiddenFirstTileNan(Online):
    """A row that attends no key of the first tile is NaN."""

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        return largest


@fault("election", like="H1")
class NanKeyLeaks(Kernel):
    """A mask is added as 0 and -inf: a NaN in a hidden key stays NaN."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isnan(scores), scores, hidden)


@fault("election", like="H4")
class NanValueLeaks(Kernel):
    """Hidden values are multiplied by their zero weights: NaN stays NaN."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value


@fault("nan", like="H6")
class NanValueLeaksPerHead(Kernel):
    """Hidden values are emptied only where they are hidden in every sample and head."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        hidden = np.asarray(np.isneginf(scores).all((0, 1, 2)))
        return np.where(hidden[:, None], value.dtype.type(0), value)


@fault("nan", like="H4")
class NanPastWindowLeaks(Kernel):
    """Values that only a window hides are not emptied."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: object) -> object:
        self.window = rest.get("window")
        return super().attention(query, key, value, **rest)

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value if self.window else super().visible(value, scores)


@fault("election", like="G11")
class NanQueryZeros(Kernel):
    """A row of NaN scores gives zeros, though NaN is declared."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.nan_to_num(super().weights(scores, call))


@fault("values")
class MaskBeforeCap(Kernel):
    """Scores are hidden before the softcap, which lifts -inf to -softcap."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().capped(super().hide(scores, self.allowed(call), call), call)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if call.softcap is not None else super().hide(scores, allowed, call)


@fault("values")
class MaskBeforeScale(Kernel):
    """Scores are hidden before they are scaled: a scale that is not positive brings them back."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden = call.work(-np.inf) * call.work(self.factor(call))
        return scores if allowed is None else np.where(allowed, scores, hidden)


@fault("nan", like="H1")
class InfiniteValueLeaks(Kernel):
    """Of hidden values only NaN is emptied: infinity times a zero weight is NaN."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(value), super().visible(value, scores), value)


@fault("election", like="G11")
class VisibleNanEmptied(Kernel):
    """NaN in values is emptied whether or not it is hidden."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(value), value.dtype.type(0), super().visible(value, scores))


@fault("election")
class NanQuerySpreads(Kernel):
    """A NaN in a query makes all rows of its head NaN."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        spoilt = np.isnan(scores).any((-1, -2), keepdims=True)
        return np.where(spoilt, np.nan, weights).astype(weights.dtype)

"""Faults of how pairs are hidden, in rows without keys, and in what NaN reaches."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.faults.kernels.variants import MergedChunks

FAMILY = "mask"


def mask_added(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    return scores if allowed is None else scores + allowed.astype(scores.dtype)


def mask_multiplied(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    return scores if allowed is None else np.where(allowed, scores, call.work(0))


def hidden_is_minus30(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    some = np.isfinite(hidden).any(-1, keepdims=True)
    return hidden if allowed is None else np.where(some & ~allowed, call.work(-30), hidden)


def hidden_is_minus10000(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    some = np.isfinite(hidden).any(-1, keepdims=True)
    return hidden if allowed is None else np.where(some & ~allowed, call.work(-1e4), hidden)


def hidden_loses_ten_thousand(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
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


def empty_rows_uniform(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    return np.where(np.isneginf(hidden).all(-1, keepdims=True), call.work(0), hidden)


def empty_rows_unmasked(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    return np.where(np.isneginf(hidden).all(-1, keepdims=True), scores, hidden)


def empty_row_silences_tile(
    right: Kernel, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    out = right.attend(scores, value, call)
    for start in range(0, scores.shape[-2], 16):
        rows = slice(start, start + 16)
        empty = np.isneginf(scores[:, :, rows]).all(-1).any(-1) & (scores.shape[-1] > 0)
        out[:, :, rows] = np.where(empty[..., None, None], 0, out[:, :, rows])
    return out


def hidden_chunk_nan(right: MergedChunks, scores: np.ndarray) -> np.ndarray:
    maximum = scores.max(-1, keepdims=True, initial=-np.inf)
    return maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))


def nan_key_leaks(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    return np.where(np.isnan(scores), scores, hidden)


def nan_value_leaks_per_head(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
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


def mask_before_cap_capped(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.capped(right.hide(scores, right.allowed(call), call), call)


def mask_before_cap_hide(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    return scores if call.softcap is not None else right.hide(scores, allowed, call)


def mask_before_scale(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = call.work(-np.inf) * call.work(right.factor(call))
    return scores if allowed is None else np.where(allowed, scores, hidden)


def infinite_value_leaks(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(value), right.visible(value, scores), value)


def visible_nan_emptied(right: Kernel, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(value), value.dtype.type(0), right.visible(value, scores))


def nan_query_spreads(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    spoilt = np.isnan(scores).any((-1, -2), keepdims=True)
    return np.where(spoilt, np.nan, weights).astype(weights.dtype)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("mask-added", "values", "A boolean mask is added to the scores as 0 and 1.",
        "`scores + mask` for a boolean mask; use `masked_fill(~mask, -inf)`", hide=mask_added),
    row("mask-multiplied", "poison",
        "A boolean mask multiplies the scores: hidden ones are 0, not -inf.",
        "`scores * mask`; a score of 0 has a weight: use `masked_fill(~mask, -inf)`",
        hide=mask_multiplied),
    row("hidden-is-minus30", "poison", "Hidden keys have the score -30, not -inf.",
        "`masked_fill(~mask, -30)`; scores may lie below: use -inf", hide=hidden_is_minus30),
    row("hidden-is-minus10000", "values", "Hidden keys have the score -10000, not -inf.",
        "`masked_fill(~mask, -1e4)`; scores may lie below: use -inf", hide=hidden_is_minus10000),
    row("hidden-loses-ten-thousand", "poison",
        "1e4 is subtracted from hidden scores, so that very large ones still count.",
        "`scores - 1e4 * ~mask`; a hidden score may be larger: use `where(mask, scores, -inf)`",
        hide=hidden_loses_ten_thousand),
    row("empty-rows-uniform", "election",
        "Fully masked rows average all values, though zeros are declared.",
        "`masked_fill(~mask, finfo.min)`, where a fully masked row is uniform; set it to 0",
        hide=empty_rows_uniform),
    row("empty-rows-unmasked", "election",
        "A fully masked row attends all keys, though zeros are declared.",
        "`mask | ~mask.any(-1, keepdim=True)` against NaN; set fully masked rows to 0",
        hide=empty_rows_unmasked),
    row("empty-rows-nan", "election", "Fully masked rows are NaN, though zeros are declared.",
        "`softmax` of a row of -inf is NaN; set fully masked rows to 0: `where(mask.any(-1), out, 0)`",
        shifted=lambda right, scores: scores - scores.max(-1, keepdims=True, initial=-np.inf)),
    row("empty-row-silences-tile", "values",
        "A fully masked row makes all sixteen rows of its tile zero.",
        "`if (m == -inf).any()` skips a tile of rows; treat every row by itself", family="tiles",
        attend=empty_row_silences_tile),
    row("hidden-chunk-nan", "padding_invariance",
        "A row that sees no key in one part of the keys is NaN.",
        "`exp(s - m)` is NaN if m is -inf in a part of the keys; take 0 for such an m",
        right=MergedChunks, lse_of=hidden_chunk_nan),
    row("hidden-first-tile-nan", "values", "A row that sees no key of the first tile is NaN.",
        "`exp(m_old - m_new)` is NaN if both are -inf; take 0 for such an m_new", right=Online,
        anchor=lambda right, largest: largest),
    row("nan-key-leaks", "election",
        "A NaN in a hidden key reaches the answer, since the mask is added as 0 and -inf.",
        "`scores + where(mask, 0, -inf)`; NaN stays NaN: replace it by `where(mask, scores, -inf)`",
        hide=nan_key_leaks),
    row("nan-value-leaks", "election",
        "A NaN in a hidden value reaches the answer, times a weight of zero.",
        "`p @ v` where `0 * nan` is NaN; zero the values that no row sees: `where(seen, v, 0)`",
        visible=lambda right, value, scores: value),
    row("nan-value-leaks-per-head", "nan",
        "Hidden values are zeroed only where they are hidden in every sample and head: NaN leaks.",
        "`mask.any((0, 1, 2))` says which values are zeroed; say so for every sample and head",
        visible=nan_value_leaks_per_head),
    row("nan-query-zeros", "election", "A row of NaN scores gives zeros, though NaN is declared.",
        "`softmax(scores).nan_to_num()` for fully masked rows; find these by the mask",
        weights=lambda right, scores, call: np.nan_to_num(right.weights(scores, call))),
    row("mask-before-cap", "values",
        "Scores are hidden before the softcap, which lifts -inf to -softcap.",
        "`softcap * tanh(masked / softcap)` lifts -inf to -softcap; cap first, then mask",
        capped=mask_before_cap_capped, hide=mask_before_cap_hide),
    row("mask-before-scale", "values",
        "Scores are hidden before they are scaled: a scale that is not positive brings them back.",
        "`q @ k.mT` is masked, then `* scale`, where -inf * -1 is inf; scale first",
        hide=mask_before_scale),
    row("infinite-value-leaks", "nan",
        "An infinite hidden value reaches the answer; of hidden values only NaN is zeroed.",
        "`where(v.isnan(), 0, v)`; infinity times 0 is NaN: zero all values that no row sees",
        visible=infinite_value_leaks),
    row("visible-nan-emptied", "election", "A NaN in an attended value is replaced by 0.",
        "`v.nan_to_num()`; zero only the values that no row sees", visible=visible_nan_emptied),
    row("nan-query-spreads", "election", "A NaN in one query makes all rows of its head NaN.",
        "a maximum or sum over all rows of a head; each row has its own, `dim=-1`",
        family="softmax", weights=nan_query_spreads),
]  # fmt: skip

"""Faults of masks given as arrays, of how pairs are hidden, and of rows without keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    deviation,
    memory,
    storing_argument,
    twins,
)
from attention_conformance.suite.deviations.kernels.attention import Array, Call, Kernel, Online
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.single import DotKernel
from attention_conformance.suite.deviations.kernels.variants import MergedChunks

Hide = Callable[[Kernel, Array, Array | None, Call], Array]
"""A changed step `hide`."""


def hiding_by_score(score: Callable[[Array], Any]) -> Hide:
    """Returns a step `hide`. Masked keys get the score `score(scores)` in place of -inf, except in fully
    masked rows."""

    def hide(right: Kernel, scores: Array, allowed: Array | None, call: Call) -> Array:
        hidden = right.hide(scores, allowed, call)
        if allowed is None:
            return hidden
        has_keys = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(has_keys & ~allowed, score(scores).astype(call.work), hidden)

    return hide


def scoring_masked_rows(score: Callable[[Array], Any]) -> Hide:
    """Returns a step `hide`. Fully masked rows get the scores `score(scores)` in place of -inf."""

    def hide(right: Kernel, scores: Array, allowed: Array | None, call: Call) -> Array:
        hidden = right.hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), score(scores), hidden)

    return hide


def minus_maximum_of_all_keys(right: Kernel, scores: Array) -> Array:
    largest = memory(right)["hide"].max(-1, keepdims=True, initial=-np.inf)
    return scores - np.where(np.isfinite(largest), largest, 0)


def attend_zeroing_tiles(right: Kernel, scores: Array, value: Array, call: Call) -> Array:
    out = right.attend(scores, value, call)
    for start in range(0, scores.shape[-2], 16):
        rows = slice(start, start + 16)
        empty = np.isneginf(scores[:, :, rows]).all(-1).any(-1) & (scores.shape[-1] > 0)
        out[:, :, rows] = np.where(empty[..., None, None], 0, out[:, :, rows])
    return out


def lse_nan_if_masked(right: MergedChunks, scores: Array) -> Array:
    maximum = scores.max(-1, keepdims=True, initial=-np.inf)
    return maximum + np.log(np.exp(scores - maximum).sum(-1, keepdims=True))


def weights_spreading_nan(right: Kernel, scores: Array, call: Call) -> Array:
    weights = right.weights(scores, call)
    has_nan = np.isnan(scores).any((-1, -2), keepdims=True)
    return np.where(has_nan, np.nan, weights).astype(weights.dtype)


def mask_padding_on_right(right: Kernel, mask: Array, call: Call) -> Array:
    if mask.shape[1:3] != (1, 1) or (np.diff(mask.astype(int), axis=-1) != 0).sum(-1).max() > 1:
        return mask
    return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


def mask_taken_for_causal(right: Kernel, mask: Array, call: Call) -> Array:
    row, key = call.rows_and_keys
    causal = key <= row + call.sizes.Lk - call.sizes.Lq
    is_below = call.sizes.Lq > 1 and (mask <= causal).all() and mask[..., -1].any()
    return np.broadcast_to(causal, mask.shape) if is_below else mask


row = partial(deviation, family="mask", right=Kernel)

DEVIATIONS = [
    row("maximum-before-mask", "future",
        "The row's maximum counts hidden keys: far below a large hidden score the row underflows.",
        "`m = scores.amax(-1)` before `masked_fill`; take it of the masked scores",
        hide=storing_argument("hide"), shifted=minus_maximum_of_all_keys),
    row("hidden-after-softmax", "constant_value",
        "Weights are hidden after the softmax, so that those of a row do not add to 1.",
        "`softmax(scores) * mask`; mask before: `softmax(scores.masked_fill(~mask, -inf))`",
        family="mask", hide=lambda right, scores, allowed, call: scores,
        weights=lambda right, scores, call: right.weights(scores, call)
            * np.asarray(1 if right.allowed(call) is None else right.allowed(call), scores.dtype)),
    row("nan-past-window-leaks", "nan",
        "Values that only a window hides are not zeroed: NaN in them reaches the answer.",
        "values are zeroed where the mask hides them; a window hides some, too",
        family="mask", when=lambda call: call.window,
        attend=lambda right, scores, value, call: right.weights(scores, call) @ value),
    row("mask-added", "values", "A boolean mask is added to the scores as 0 and 1.",
        "`scores + mask` for a boolean mask; use `masked_fill(~mask, -inf)`",
        hide=lambda right, scores, allowed, call:
            scores if allowed is None else scores + allowed.astype(scores.dtype)),
    row("mask-multiplied", "poison",
        "A boolean mask multiplies the scores: hidden ones are 0, not -inf.",
        "`scores * mask`; a score of 0 has a weight: use `masked_fill(~mask, -inf)`",
        hide=lambda right, scores, allowed, call:
            scores if allowed is None else np.where(allowed, scores, call.work(0))),
    *twins({"hidden-is-minus30": Kernel, "hidden-scores-minus-thirty": DotKernel}, "poison",
        "Hidden keys have the score -30, not -inf.",
        "`masked_fill(~mask, -30)`; scores may lie below: use -inf",
        hide=hiding_by_score(lambda scores: np.full_like(scores, -30)), family="mask"),
    row("hidden-is-minus10000", "values", "Hidden keys have the score -10000, not -inf.",
        "`masked_fill(~mask, -1e4)`; scores may lie below: use -inf",
        hide=hiding_by_score(lambda scores: np.full_like(scores, -1e4))),
    row("hidden-loses-ten-thousand", "poison",
        "1e4 is subtracted from hidden scores, so that very large ones still count.",
        "`scores - 1e4 * ~mask`; a hidden score may be larger: use `where(mask, scores, -inf)`",
        hide=hiding_by_score(lambda scores: scores - 1e4)),
    row("empty-rows-uniform", "election",
        "Fully masked rows average all values, though zeros are declared.",
        "`masked_fill(~mask, finfo.min)`, where a fully masked row is uniform; set it to 0",
        hide=scoring_masked_rows(np.zeros_like)),
    row("empty-rows-unmasked", "election",
        "A fully masked row attends all keys, though zeros are declared.",
        "`mask | ~mask.any(-1, keepdim=True)` against NaN; set fully masked rows to 0",
        hide=scoring_masked_rows(lambda scores: scores)),
    row("empty-rows-nan", "election", "Fully masked rows are NaN, though zeros are declared.",
        "`softmax` of a row of -inf is NaN; set fully masked rows to 0: `where(mask.any(-1), out, 0)`",
        shifted=lambda right, scores: scores - scores.max(-1, keepdims=True, initial=-np.inf)),
    row("empty-row-silences-tile", "values",
        "A fully masked row makes all sixteen rows of its tile zero.",
        "`if (m == -inf).any()` skips a tile of rows; treat every row by itself", family="tiles",
        attend=attend_zeroing_tiles),
    row("hidden-chunk-nan", "padding_invariance",
        "A row that sees no key in one part of the keys is NaN.",
        "`exp(s - m)` is NaN if m is -inf in a part of the keys; take 0 for such an m",
        right=MergedChunks, lse_of=lse_nan_if_masked),
    row("hidden-first-tile-nan", "values", "A row that sees no key of the first tile is NaN.",
        "`exp(m_old - m_new)` is NaN if both are -inf; take 0 for such an m_new", right=Online,
        anchor=lambda right, largest: largest),
    row("nan-key-leaks", "election",
        "A NaN in a hidden key reaches the answer, since the mask is added as 0 and -inf.",
        "`scores + where(mask, 0, -inf)`; NaN stays NaN: replace it by `where(mask, scores, -inf)`",
        hide=lambda right, scores, allowed, call:
            np.where(np.isnan(scores), scores, right.hide(scores, allowed, call))),
    row("nan-value-leaks", "election",
        "A NaN in a hidden value reaches the answer, times a weight of zero.",
        "`p @ v` where `0 * nan` is NaN; zero the values that no row sees: `where(seen, v, 0)`",
        visible=lambda right, value, scores: value),
    row("nan-value-leaks-per-head", "nan",
        "Hidden values are zeroed only where they are hidden in every sample and head: NaN leaks.",
        "`mask.any((0, 1, 2))` says which values are zeroed; say so for every sample and head",
        visible=lambda right, value, scores:
            right.visible(value, np.broadcast_to(scores.max((0, 1, 2)), scores.shape))),
    row("nan-query-zeros", "election", "A row of NaN scores gives zeros, though NaN is declared.",
        "`softmax(scores).nan_to_num()` for fully masked rows; find these by the mask",
        weights=lambda right, scores, call: np.nan_to_num(right.weights(scores, call))),
    row("mask-before-cap", "values",
        "Scores are hidden before the softcap, which lifts -inf to -softcap.",
        "`softcap * tanh(masked / softcap)` lifts -inf to -softcap; cap first, then mask",
        when=lambda call: call.softcap is not None,
        capped=lambda right, scores, call:
            right.capped(right.hide(scores, right.allowed(call), call), call),
        hide=lambda right, scores, allowed, call: scores),
    row("mask-before-scale", "values",
        "Scores are hidden before they are scaled: a scale that is not positive brings them back.",
        "`q @ k.mT` is masked, then `* scale`, where -inf * -1 is inf; scale first",
        hide=lambda right, scores, allowed, call: scores if allowed is None
            else np.where(allowed, scores, call.work(-np.inf) * call.work(right.factor(call)))),
    row("infinite-value-leaks", "nan",
        "An infinite hidden value reaches the answer; of hidden values only NaN is zeroed.",
        "`where(v.isnan(), 0, v)`; infinity times 0 is NaN: zero all values that no row sees",
        visible=lambda right, value, scores:
            np.where(np.isnan(value), right.visible(value, scores), value)),
    row("visible-nan-emptied", "election", "A NaN in an attended value is replaced by 0.",
        "`v.nan_to_num()`; zero only the values that no row sees",
        visible=lambda right, value, scores:
            np.where(np.isnan(value), value.dtype.type(0), right.visible(value, scores))),
    row("nan-query-spreads", "election", "A NaN in one query makes all rows of its head NaN.",
        "a maximum or sum over all rows of a head; each row has its own, `dim=-1`",
        family="softmax", weights=weights_spreading_nan),
    *twins({"mask-kept-by-shape": Kernel, "layer-mask-kept-by-shape": MultiHeadKernel},
        "key_permutation",
        "The first mask of a shape is kept and serves all later calls of that shape.",
        "mask kept in a dict or `lru_cache` under its shape; two masks of one shape may differ",
        family="state",
        masked=lambda right, mask, call:
            memory(right).setdefault((mask.shape, call.query.shape), mask.copy())),
    *twins({"mask-inverted": Kernel, "layer-mask-inverted": MultiHeadKernel}, "values",
        "A boolean mask is read the other way round: True hides a key.",
        "`masked_fill(mask, -inf)`; True attends, so `masked_fill(~mask, -inf)`", family="mask",
        masked=lambda right, mask, call: ~mask),
    row("mask-ignored", "values", "A mask given as an array has no effect.",
        "`attn_mask` is accepted and not used; `scores.masked_fill(~attn_mask, -inf)` is missing",
        masked=lambda right, mask, call: np.ones_like(mask)),
    row("mask-open-in-the-first-sample", "values",
        "A mask that hides nothing in the first sample is taken for no mask.",
        "`if mask[0].all(): mask = None`; the longest sample of a padded batch may come first",
        masked=lambda right, mask, call: np.ones_like(mask) if mask[0].all() else mask),
    row("mask-ignored-beside-window", "values", "Beside a window a mask has no effect.",
        "`if window is not None: ... elif attn_mask is not None: ...`; both apply",
        when=lambda call: call.window is not None,
        masked=lambda right, mask, call: np.ones_like(mask)),
    row("batch-mask-as-head-mask", "mask_ranks",
        "With B == H a mask per sample is taken for a mask per head.",
        "`mask.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)",
        masked=lambda right, mask, call:
            mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H and mask.shape[1] == 1 else mask),
    row("batch-mask-as-query-mask", "values",
        "With B == Lq a key mask per sample (B, 1, 1, Lk) is taken for (Lq, Lk).",
        "`mask.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)",
        masked=lambda right, mask, call: mask.swapaxes(0, 2) if call.sizes.B == call.sizes.Lq
            and mask.shape == (call.sizes.B, 1, 1, call.sizes.Lk) else mask),
    *twins({"square-mask-transposed": Kernel, "layer-mask-transposed": MultiHeadKernel}, "values",
        "With Lq == Lk rows and columns of the mask are exchanged.",
        "`mask.mT`, or `mask[key, query]`; the axes of a mask are (..., query, key)",
        masked=lambda right, mask, call:
            mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask, family="mask"),
    row("sample-mask-tiled", "values",
        "A mask per sample is tiled over the heads, not repeated: heads get the mask of another "
        "sample.",
        "`mask.repeat(H, 1, 1)` for (B * H, Lq, Lk); use `mask.repeat_interleave(H, dim=0)`",
        when=lambda call: call.mask.shape[:-2] == (call.sizes.B, 1) and call.sizes.H > 0,
        masked=lambda right, mask, call:
            np.tile(mask[:, 0], (call.sizes.H, 1, 1)).reshape(-1, call.sizes.H, *mask.shape[2:])),
    row("full-mask-of-group-leader", "values",
        "With grouped heads the mask is read at the number of the key head, not of the query head.",
        "`mask[:, h // group]`; a mask per head is indexed by the query head, `mask[:, h]`",
        family="heads",
        masked=lambda right, mask, call: mask if mask.shape[1] == 1 or call.sizes.H
            == call.sizes.Hkv else mask[:, np.arange(call.sizes.H) // call.sizes.group]),
    row("left-padding-as-right", "values",
        "A key mask per sample is converted to lengths: padding on the left is taken for the right.",
        "`lengths = mask.sum(-1)`; `j < length` is the mask only if padding is on the right",
        masked=mask_padding_on_right),
    row("key-mask-as-lengths", "values",
        "A mask that all queries share is converted to lengths, wherever its holes are.",
        "`lengths = mask.sum(-1)`; `j < length` is the mask only if all True come first",
        when=lambda call: call.sizes.Lq > 1,
        masked=lambda right, mask, call: np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)
            if mask.shape[-2] == 1 else mask),
    row("row-mask-on-first-key", "values",
        "A mask whose last dimension is 1 is read for the first key alone.",
        "`mask[..., j]` with True for every j beyond its size; a size of 1 broadcasts over all "
        "keys", when=lambda call: call.mask.shape[-1:] == (1,),
        masked=lambda right, mask, call: mask | (np.arange(call.sizes.Lk) > 0)),
    row("mask-ignored-past512", "values", "Keys from number 512 on are not masked.",
        "mask copied to a buffer of 512 keys, or a block of keys computed without its mask",
        family="tiles", masked=lambda right, mask, call: mask | (np.arange(call.sizes.Lk) >= 512)),
    *twins({"mask-of-first-head": Kernel, "layer-mask-of-first-head": MultiHeadKernel},
        "head_independence",
        "Every head gets the mask of the first.",
        "`mask[:, 0]` or `mask[:, :1]` for all heads; head h has `mask[:, h]`", family="heads",
        masked=lambda right, mask, call: mask[:, :1]),
    *twins({"mask-of-first-sample": Kernel, "layer-mask-of-first-sample": MultiHeadKernel},
        "batch_independence",
        "Every sample gets the mask of the first.",
        "`mask[0]` or `mask[:1]` for all samples; sample b has `mask[b]`", family="heads",
        masked=lambda right, mask, call: mask[:1]),
    row("mask-of-first-query", "values", "Every query gets the mask of the first.",
        "`mask[..., :1, :]` for all queries; query i has `mask[..., i, :]`",
        masked=lambda right, mask, call: mask[:, :, :1]),
    row("mask-below-the-diagonal-causal", "siblings_apart",
        "With several queries a mask that hides all keys behind the row's own is taken for causal.",
        "`is_causal = not mask.triu(1).any()`; a mask below the diagonal may have holes",
        masked=mask_taken_for_causal),
    row("mask-of-few-keys-ignored", "paths_alone",
        "With at most 16 keys a mask hides its last key from nobody.",
        "a tile without a hole is not masked; with fewer keys than a tile it has none",
        masked=lambda right, mask, call: mask | (np.arange(mask.shape[-1]) == mask.shape[-1] - 1),
        when=lambda call: call.mask.shape[-1] <= 16),
]  # fmt: skip

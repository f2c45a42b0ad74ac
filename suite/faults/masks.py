"""Faults of masks given as arrays, and in what is hidden by them."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "mask"


@fault("values", "`masked_fill(mask, -inf)`; True attends, so `masked_fill(~mask, -inf)`")
class MaskInverted(Kernel):
    """A boolean mask is read the other way round: True hides a key."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return ~mask


def batch_mask_as_head_mask(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    alike = call.sizes.B == call.sizes.H and mask.shape[1] == 1
    return mask.swapaxes(0, 1) if alike else mask


def batch_mask_as_query_mask(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    alike = s.B == s.Lq and mask.shape == (s.B, 1, 1, s.Lk)
    return mask.swapaxes(0, 2) if alike else mask


def square_mask_transposed(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


def sample_mask_tiled(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    if mask.shape[0] != s.B or mask.shape[1] != 1 or s.B * s.H == 0:
        return mask
    tiled = np.tile(mask[:, 0], (s.H, 1, 1))
    return tiled.reshape(s.B, s.H, *mask.shape[2:])


def full_mask_of_group_leader(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    if mask.shape[1] == 1 or s.H == s.Hkv:
        return mask
    return mask[:, np.arange(s.H) // s.group]


def equal_rows_as_lengths(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    full = mask.shape == (s.B, s.H, s.Lq, s.Lk) and s.Lq > 1
    if not full or not (mask == mask[:, :1, :1]).all():
        return mask
    return np.arange(s.Lk) < mask[:, :1, :1].sum(-1, keepdims=True)


def left_padding_as_right(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    if mask.shape[1:3] != (1, 1) or (np.diff(mask.astype(int), axis=-1) != 0).sum(-1).max() > 1:
        return mask
    return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


def row_mask_on_first_key(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    if mask.shape[-1] != 1 or call.sizes.Lk <= 1:
        return mask
    rest = np.ones((*mask.shape[:-1], call.sizes.Lk - 1), bool)
    return np.concatenate([mask, rest], axis=-1)


@fault(
    "key_permutation",
    "mask kept in a dict or `lru_cache` under its shape; two masks of one shape may differ",
    family="state",
)
class MaskKeptByShape(Kernel):
    """The first mask of a shape is kept and serves all later calls of that shape."""

    def compute(self, call: Call) -> np.ndarray:
        if not hasattr(self, "known"):
            self.known: dict[tuple, np.ndarray] = {}
        return super().compute(call)

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return self.known.setdefault((mask.shape, call.query.shape), mask.copy())


def mask_below_the_diagonal_causal(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    causal = key <= row + call.sizes.Lk - call.sizes.Lq
    ends = call.sizes.Lq > 1 and (mask <= causal).all() and mask[..., -1].any()
    return np.broadcast_to(causal, mask.shape) if ends else mask


def mask_of_few_keys_ignored(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    mask = mask.copy()
    if mask.shape[-1] <= 16:
        mask[..., -1] = True
    return mask


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("mask-ignored", "values", "A mask given as an array has no effect.",
        "`attn_mask` is accepted and not used; `scores.masked_fill(~attn_mask, -inf)` is missing",
        masked=lambda right, mask, call: np.ones_like(mask)),
    row("batch-mask-as-head-mask", "mask_ranks",
        "With B == H a mask per sample is taken for a mask per head.",
        "`mask.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)",
        masked=batch_mask_as_head_mask),
    row("batch-mask-as-query-mask", "values",
        "With B == Lq a key mask per sample (B, 1, 1, Lk) is taken for (Lq, Lk).",
        "`mask.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)",
        masked=batch_mask_as_query_mask),
    row("square-mask-transposed", "values",
        "With Lq == Lk rows and columns of the mask are exchanged.",
        "`mask.mT`, or `mask[key, query]`; the axes of a mask are (..., query, key)",
        masked=square_mask_transposed),
    row("sample-mask-tiled", "values",
        "A mask per sample is tiled over the heads, not repeated: heads get the mask of another "
        "sample.",
        "`mask.repeat(H, 1, 1)` for (B * H, Lq, Lk); use `mask.repeat_interleave(H, dim=0)`",
        masked=sample_mask_tiled),
    row("full-mask-of-group-leader", "values",
        "With grouped heads the mask is read at the number of the key head, not of the query head.",
        "`mask[:, h // group]`; a mask per head is indexed by the query head, `mask[:, h]`",
        family="heads", masked=full_mask_of_group_leader),
    row("equal-rows-as-lengths", "mask_ranks",
        "A full mask in which all rows are equal is converted to key lengths, wherever its holes are.",
        "`lengths = mask[:, 0, 0].sum(-1)`; `j < length` is the mask only if all True come first",
        masked=equal_rows_as_lengths),
    row("left-padding-as-right", "values",
        "A key mask per sample is converted to lengths: padding on the left is taken for the right.",
        "`lengths = mask.sum(-1)`; `j < length` is the mask only if padding is on the right",
        masked=left_padding_as_right),
    row("row-mask-on-first-key", "values",
        "A mask whose last dimension is 1 is read for the first key alone.",
        "`mask[..., j]` with True for every j beyond its size; a size of 1 broadcasts over all keys",
        masked=row_mask_on_first_key),
    row("mask-ignored-past512", "values", "Keys from number 512 on are not masked.",
        "mask copied to a buffer of 512 keys, or a block of keys computed without its mask",
        family="tiles", masked=lambda right, mask, call: mask | (np.arange(call.sizes.Lk) >= 512)),
    row("mask-of-first-head", "head_independence", "Every head gets the mask of the first.",
        "`mask[:, 0]` or `mask[:, :1]` for all heads; head h has `mask[:, h]`", family="heads",
        masked=lambda right, mask, call: mask[:, :1]),
    row("mask-of-first-sample", "batch_independence", "Every sample gets the mask of the first.",
        "`mask[0]` or `mask[:1]` for all samples; sample b has `mask[b]`", family="heads",
        masked=lambda right, mask, call: mask[:1]),
    row("mask-of-first-rows", "values",
        "Rows are computed in blocks of 64: every block gets the mask of the first.",
        "every block loads `mask[..., :64, :]`; the rows of block n begin at `64 * n`",
        family="tiles",
        masked=lambda right, mask, call: mask[..., np.arange(mask.shape[-2]) % 64, :]),
    row("mask-below-the-diagonal-causal", "siblings_apart",
        "With several queries a mask that hides all keys behind the row's own is taken for causal.",
        "`is_causal = not mask.triu(1).any()`; a mask below the diagonal may have holes",
        masked=mask_below_the_diagonal_causal),
    row("mask-of-few-keys-ignored", "paths_alone",
        "With at most 16 keys a mask hides its last key from nobody.",
        "a tile without a hole is not masked; with fewer keys than a tile it has none",
        masked=mask_of_few_keys_ignored),
]  # fmt: skip

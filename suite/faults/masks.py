"""Faults of masks given as arrays, and in what is hidden by them."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "mask"


@fault(
    "values",
    "`attn_mask` is accepted and not used; `scores.masked_fill(~attn_mask, -inf)` is missing",
)
class MaskIgnored(Kernel):
    """A mask given as an array has no effect."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return np.ones_like(mask)


@fault("values", "`masked_fill(mask, -inf)`; True attends, so `masked_fill(~mask, -inf)`")
class MaskInverted(Kernel):
    """A boolean mask is read the other way round: True hides a key."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return ~mask


@fault("mask_ranks", "`mask.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)")
class BatchMaskAsHeadMask(Kernel):
    """With B == H a mask per sample is taken for a mask per head."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        alike = call.sizes.B == call.sizes.H and mask.shape[1] == 1
        return mask.swapaxes(0, 1) if alike else mask


@fault("values", "`mask.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)")
class BatchMaskAsQueryMask(Kernel):
    """With B == Lq a key mask per sample (B, 1, 1, Lk) is taken for (Lq, Lk)."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        alike = s.B == s.Lq and mask.shape == (s.B, 1, 1, s.Lk)
        return mask.swapaxes(0, 2) if alike else mask


@fault("values", "`mask.mT`, or `mask[key, query]`; the axes of a mask are (..., query, key)")
class SquareMaskTransposed(Kernel):
    """With Lq == Lk rows and columns of the mask are exchanged."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


@fault(
    "values", "`mask.repeat(H, 1, 1)` for (B * H, Lq, Lk); use `mask.repeat_interleave(H, dim=0)`"
)
class SampleMaskTiled(Kernel):
    """A mask per sample is tiled over the heads, not repeated: heads get the mask of another sample."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        if mask.shape[0] != s.B or mask.shape[1] != 1 or s.B * s.H == 0:
            return mask
        tiled = np.tile(mask[:, 0], (s.H, 1, 1))
        return tiled.reshape(s.B, s.H, *mask.shape[2:])


@fault(
    "values",
    "`mask[:, h // group]`; a mask per head is indexed by the query head, `mask[:, h]`",
    family="heads",
)
class FullMaskOfGroupLeader(Kernel):
    """With grouped heads the mask is read at the number of the key head, not of the query head."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        if mask.shape[1] == 1 or s.H == s.Hkv:
            return mask
        return mask[:, np.arange(s.H) // s.group]


@fault(
    "mask_ranks",
    "`lengths = mask[:, 0, 0].sum(-1)`; `j < length` is the mask only if all True come first",
)
class EqualRowsAsLengths(Kernel):
    """A full mask in which all rows are equal is converted to key lengths, wherever its holes are."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        full = mask.shape == (s.B, s.H, s.Lq, s.Lk) and s.Lq > 1
        if not full or not (mask == mask[:, :1, :1]).all():
            return mask
        return np.arange(s.Lk) < mask[:, :1, :1].sum(-1, keepdims=True)


@fault(
    "values", "`lengths = mask.sum(-1)`; `j < length` is the mask only if padding is on the right"
)
class LeftPaddingAsRight(Kernel):
    """A key mask per sample is converted to lengths: padding on the left is taken for the right."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if mask.shape[1:3] != (1, 1) or (np.diff(mask.astype(int), axis=-1) != 0).sum(-1).max() > 1:
            return mask
        return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


@fault(
    "values",
    "`mask[..., j]` with True for every j beyond its size; a size of 1 broadcasts over all keys",
)
class RowMaskOnFirstKey(Kernel):
    """A mask whose last dimension is 1 is read for the first key alone."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if mask.shape[-1] != 1 or call.sizes.Lk <= 1:
            return mask
        rest = np.ones((*mask.shape[:-1], call.sizes.Lk - 1), bool)
        return np.concatenate([mask, rest], axis=-1)


@fault(
    "values",
    "mask copied to a buffer of 512 keys, or a block of keys computed without its mask",
    family="tiles",
)
class MaskIgnoredPast512(Kernel):
    """Keys from number 512 on are not masked."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask | (np.arange(call.sizes.Lk) >= 512)


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


@fault(
    "head_independence",
    "`mask[:, 0]` or `mask[:, :1]` for all heads; head h has `mask[:, h]`",
    family="heads",
)
class MaskOfFirstHead(Kernel):
    """Every head gets the mask of the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[:, :1]


@fault(
    "batch_independence",
    "`mask[0]` or `mask[:1]` for all samples; sample b has `mask[b]`",
    family="heads",
)
class MaskOfFirstSample(Kernel):
    """Every sample gets the mask of the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[:1]


@fault(
    "values",
    "every block loads `mask[..., :64, :]`; the rows of block n begin at `64 * n`",
    family="tiles",
)
class MaskOfFirstRows(Kernel):
    """Rows are computed in blocks of 64: every block gets the mask of the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[..., np.arange(mask.shape[-2]) % 64, :]


@fault(
    "siblings_apart",
    "`is_causal = not mask.triu(1).any()`; a mask below the diagonal may have holes",
)
class MaskBelowTheDiagonalCausal(Kernel):
    """With several queries a mask that hides all keys behind the row's own is taken for causal."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        causal = key <= row + call.sizes.Lk - call.sizes.Lq
        ends = call.sizes.Lq > 1 and (mask <= causal).all() and mask[..., -1].any()
        return np.broadcast_to(causal, mask.shape) if ends else mask


@fault(
    "paths_alone", "a tile without a hole is not masked; with fewer keys than a tile it has none"
)
class MaskOfFewKeysIgnored(Kernel):
    """With at most 16 keys a mask hides its last key from nobody."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        mask = mask.copy()
        if mask.shape[-1] <= 16:
            mask[..., -1] = True
        return mask

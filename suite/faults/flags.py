"""Faults of the flags: causal, window, key lengths."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "mask"


def causal_bottom_right(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row + call.sizes.Lk - call.sizes.Lq


def causal_switches_alignment(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row + min(0, call.sizes.Lk - call.sizes.Lq)


@fault("future", "`tril(diagonal=1)` or `j <= i + 1`; a causal mask is `j <= i`")
class CausalSeesNext(Kernel):
    """A causal query sees the next key."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row + 1


def causal_excludes_self(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key < row


def causal_without_diagonal(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return (key < row) | (key == 0)


def causal_by_tiles(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key // 16 <= row // 16


def causal_ignored_with_mask(right: Kernel, call: Call) -> np.ndarray:
    kept = right.causal(call)
    return kept if call.mask is None else np.ones_like(kept)


def causal_ignored_in_decoding(right: Kernel, call: Call) -> np.ndarray:
    kept = right.causal(call)
    return np.ones_like(kept) if call.sizes.Lq == 1 else kept


def causal_limit_of_packed_rows(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row // call.sizes.group


def causal_adds_one(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.capped(scores + call.work(1) if call.causal else scores, call)


def triangles_are_causal(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    if mask.shape != (1, 1, *(key <= row).shape) or not (mask == (key <= row)).all():
        return mask
    return (key <= row + call.sizes.Lk - call.sizes.Lq)[None, None]


@fault("values", "`i - j < left`; the key `left` places before is seen, too: `i - j <= left`")
class WindowOneShort(Kernel):
    """A window hides the last key on its left that it should show."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, None if left is None else left - 1, right)


@fault("future", "`j <= i + right + 1`; the last key seen is `j = i + right`")
class WindowOneLate(Kernel):
    """A window shows one key too many on its right."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, None if right is None else right + 1)


@fault(
    "flag_equals_dense",
    "the window is applied inside `if mask is not None` or `if is_causal` alone",
)
class WindowIgnoredWithoutMask(Kernel):
    """Without a mask, causal flag or lengths beside it, a window has no effect."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        alone = call.mask is None and not call.causal and call.lengths is None
        return super().windowed(call, None, None) if alone else super().windowed(call, left, right)


@fault("values", "`if right == 0: causal`, and no limit otherwise; it is `j <= i + right`")
class WindowRightIgnored(Kernel):
    """The right side of a window is unbounded unless it is 0."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, right if right == 0 else None)


@fault("wide_window", "`if left >= Lk: window = None`; the right side still limits")
class WideWindowUnbounded(Kernel):
    """A window that reaches left beyond all keys loses its right edge."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        wide = left is not None and left >= call.sizes.Lk
        return super().windowed(call, left, None if wide else right)


@fault("wide_window", "`left % Lk`, as in a ring buffer; a side wider than Lk shows all keys on it")
class WindowModuloKeys(Kernel):
    """The left side of a window is taken modulo the number of keys."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, None if left is None else left % call.sizes.Lk, right)


@fault(
    "bad_problem",
    "-1 means unbounded inside, and is not refused outside; raise ValueError if `window < 0`",
    family="contract",
)
class NegativeWindowUnbounded(Kernel):
    """A negative window is taken for an unbounded one."""

    def validate_window(self, call: Call) -> None:
        pass

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        sides = (None if side is None or side < 0 else side for side in (left, right))
        return super().windowed(call, *sides)


def causal_or_padding(right: Kernel, parts: list[np.ndarray]) -> np.ndarray:
    return reduce(np.logical_or, parts)


def lengths_of_first_sample(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    return right.within(np.broadcast_to(lengths[:1], lengths.shape), call)


def length_zero_means_all(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    return right.within(np.where(lengths == 0, call.sizes.Lk, lengths), call)


def lengths_hide_queries(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    row, _ = call.rows_and_keys
    return right.within(lengths, call) & (row < lengths[:, None, None, None])


def samples_sorted_and_not_restored(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    if call.lengths is None:
        return out
    order = np.argsort(call.lengths.values, kind="stable")
    return out[order][order]


def causal_restarts_every_block(right: Kernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row % 64


def lengths_tiled(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    tiled = np.tile(lengths, s.H).reshape(s.B, s.H, 1, 1)
    return np.arange(s.Lk) < tiled


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("causal-bottom-right", "election",
        "The causal flag is aligned bottom-right, though top-left is declared.",
        "`tril(diagonal=Lk - Lq)`, `j <= i + Lk - Lq`; top-left is `tril()`, `j <= i`",
        causal=causal_bottom_right),
    row("causal-switches-alignment", "values",
        "With more queries than keys the causal flag is aligned bottom-right.",
        "`j <= i + min(0, Lk - Lq)`; top-left is `j <= i`, whatever Lq and Lk are",
        causal=causal_switches_alignment),
    row("causal-excludes-self", "first_row",
        "A causal query does not see the key at its own position.",
        "`j < i`, `tril(diagonal=-1)`, or `triu()` filled with -inf; hide `triu(diagonal=1)` alone",
        causal=causal_excludes_self),
    row("causal-without-diagonal", "values",
        "A causal query does not see its own key, unless it is the first.",
        "`j < i`, `tril(diagonal=-1)`; a causal mask is `j <= i`", causal=causal_without_diagonal),
    row("causal-no-effect", "future", "The causal flag has no effect.",
        "`is_causal` is accepted and not used; `scores.masked_fill(j > i, -inf)` is missing",
        causal=lambda right, call: np.ones((call.sizes.Lq, call.sizes.Lk), bool)),
    row("causal-by-tiles", "future",
        "Causal masking goes by tiles of 16: inside the tile on the diagonal later keys are seen.",
        "tiles above the diagonal are skipped; inside the tile on it, `j <= i` is missing",
        causal=causal_by_tiles),
    row("causal-ignored-with-mask", "election", "Beside a mask the causal flag has no effect.",
        "`if mask is not None: ... elif is_causal: ...`; both apply: `mask & (j <= i)`",
        causal=causal_ignored_with_mask),
    row("causal-replaces-mask", "election", "With the causal flag the mask has no effect.",
        "`if is_causal: mask = tril(...)`; both apply: `mask & tril(...)`",
        masked=lambda right, mask, call: np.ones_like(mask) if call.causal else mask),
    row("causal-ignored-in-decoding", "values", "With one query the causal flag has no effect.",
        "`is_causal and Lq > 1`; top-left, one query sees key 0 alone",
        causal=causal_ignored_in_decoding),
    row("causal-limit-of-packed-rows", "values",
        "With grouped heads query i sees keys up to i // group instead of i.",
        "`j <= row // group`, for rows that hold a group's heads; these do not: `j <= i`",
        causal=causal_limit_of_packed_rows),
    row("causal-adds-one", "values", "The causal flag adds 1 to the scores, before the softcap.",
        "`scores + tril(ones)`; an additive mask adds 0 where a key is seen, -inf elsewhere",
        capped=causal_adds_one),
    row("triangles-are-causal", "flag_equals_dense",
        "A lower-triangular mask is replaced by a causal flag, which is aligned bottom-right.",
        "`mask.equal(tril)` replaced by a causal flag that means `j <= i + Lk - Lq`",
        masked=triangles_are_causal),
    row("causal-or-padding", "values",
        "A key is seen if one of two masks allows it, not only if both do.",
        "`causal | valid`; a key is seen if both allow it: `causal & valid`",
        joined=causal_or_padding),
    row("last-mask-alone", "values", "Of two masks the second replaces the first.",
        "`mask = second` overwrites the first; both apply: `first & second`",
        joined=lambda right, parts: parts[-1]),
    row("lengths-one-short", "flag_equals_dense", "The last valid key of every sample is hidden.",
        "`j < length - 1`; a length counts the keys: `j < length`",
        within=lambda right, lengths, call: right.within(np.maximum(lengths - 1, 0), call)),
    row("lengths-of-first-sample", "batch_independence",
        "Every sample gets the key length of the first.",
        "`j < lengths[0]`; sample b has `lengths[b]`: `j < lengths[:, None, None, None]`",
        within=lengths_of_first_sample),
    row("length-zero-means-all", "values", "A key length of 0 is taken for no limit.",
        "`length or Lk`, `if length:`; a sample of length 0 has no key",
        within=length_zero_means_all),
    row("lengths-hide-queries", "values",
        "Key lengths hide the queries beyond them, too, whose answers become zero.",
        "`(i < length) & (j < length)`; key lengths limit keys alone: `j < length`",
        within=lengths_hide_queries),
    row("samples-sorted-and-not-restored", "values",
        "Samples are sorted by key length, and come back in a wrong order.",
        "`out[order]` to undo `x[order]`; the inverse is `out[order.argsort()]`", family="heads",
        compute=samples_sorted_and_not_restored),
    row("causal-restarts-every-block", "values",
        "Rows are computed in blocks of 64, and the causal flag counts the rows of every block from 0.",
        "`i = arange(64)` in every row block; the row is `64 * block + arange(64)`", family="tiles",
        causal=causal_restarts_every_block),
    row("lengths-tiled", "values",
        "Key lengths are tiled over the heads, not repeated: heads get the length of another sample.",
        "`lengths.repeat(H)` for B * H rows; use `lengths.repeat_interleave(H)`",
        within=lengths_tiled),
]  # fmt: skip

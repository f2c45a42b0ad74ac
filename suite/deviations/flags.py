"""Faults of the flags: causal, window, key lengths."""

from __future__ import annotations

from functools import partial, reduce

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, has_one_query
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel, rank4
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import round_to


def is_window_wide(call: Call) -> bool:
    """Returns True for a window whose left side is as large as the number of keys, or larger."""
    assert call.window is not None
    return call.window[0] is not None and call.window[0] >= call.sizes.Lk


def triangle_as_bottom_right(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    if mask.shape != (1, 1, *(key <= row).shape) or not (mask == (key <= row)).all():
        return mask
    return (key <= row + call.sizes.Lk - call.sizes.Lq)[None, None]


def mask_of_queries_and_keys(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    row, _ = call.rows_and_keys
    return right.within(lengths, call) & (row < lengths[:, None, None, None])


def output_of_sorted_samples(right: Kernel, call: Call) -> np.ndarray:
    """Returns the output with its samples sorted by length, and then permuted in the same way once more.
    Right would be to undo the order."""
    assert call.lengths is not None
    order = np.argsort(call.lengths.values, kind="stable")
    return right.compute(call)[order][order]


def rows_masked_together(right: Kernel, call: Call) -> np.ndarray:
    """Returns, boolean (B, H, Lq, 1), the rows that flag and mask fully mask together, but neither
    alone."""
    assert call.mask is not None
    flag, mask = right.causal(call), rank4(call.mask.values)
    has_keys_by_flag, has_keys_by_mask, has_keys = (
        allowed.any(-1, keepdims=True) for allowed in (flag, mask, flag & mask)
    )
    return np.asarray(has_keys_by_flag & has_keys_by_mask & ~has_keys)


def has_mask_and_flag(call: Call) -> bool:
    return call.mask is not None and call.causal


def has_mask_and_flag_alone(call: Call) -> bool:
    return has_mask_and_flag(call) and call.sinks is None


def causal_by_rounded_positions(right: Kernel, call: Call) -> np.ndarray:
    row, key = (round_to(x.astype(np.float64), call.fmt) for x in call.rows_and_keys)
    return np.asarray(key <= row)


def window_from_last_row(right: Kernel, call: Call, *sides: int) -> np.ndarray:
    """Returns the mask of a window in tiles of 32. For each tile of queries, keys begin with the first
    tile in the window of its last query. Right would be its first query. `sides`: left and right side."""
    row, key = call.rows_and_keys
    last_row = np.minimum(row // 32 * 32 + 31, call.sizes.Lq - 1)
    return right.window_mask(call, *sides) & (key >= (last_row - sides[0]) // 32 * 32)


row = partial(deviation, family="mask", right=Kernel)

DEVIATIONS = [
    row("causal-positions-in-dtype", "values",
        "The causal flag compares positions in the 16-bit dtype of the query.",
        "`arange(L, dtype=q.dtype)`, in which bfloat16 holds integers to 256; compare integers",
        family="numerics", causal=causal_by_rounded_positions),
    row("window-one-short", "values",
        "A window hides the last key on its left that it should show.",
        "`i - j < left`; the key `left` places before is seen, too: `i - j <= left`",
        when=lambda call: call.window[0] is not None,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left - 1, right)),
    row("window-one-late", "future", "A window shows one key too many on its right.",
        "`j <= i + right + 1`; the last key seen is `j = i + right`",
        when=lambda call: call.window[1] is not None,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left, right + 1)),
    row("window-ignored-without-mask", "flag_equals_dense",
        "Without a mask, causal flag or lengths beside it, a window has no effect.",
        "the window is applied inside `if mask is not None` or `if is_causal` alone",
        when=lambda call: call.mask is None and not call.causal and call.lengths is None,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, None, None)),
    row("window-right-ignored", "values", "The right side of a window is unbounded unless it is 0.",
        "`if right == 0: causal`, and no limit otherwise; it is `j <= i + right`",
        when=lambda call: call.window[1] != 0,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left, None)),
    row("window-of-the-tile-of-the-last-row", "values",
        "The first tile of 32 keys in a window is that of the last of 32 rows: earlier rows lose "
        "keys.", "`(last_row - left) // 32` as the first tile; it is `(first_row - left) // 32`",
        family="tiles", when=lambda call: call.window[0] is not None,
        window_mask=window_from_last_row),
    row("wide-window-unbounded", "wide_window",
        "A window that reaches left beyond all keys loses its right edge.",
        "`if left >= Lk: window = None`; the right side still limits", when=is_window_wide,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left, None)),
    row("negative-window-unbounded", "bad_problem",
        "A negative window is taken for an unbounded one.",
        "-1 means unbounded inside, and is not refused outside; raise ValueError if `window < 0`",
        family="contract", validate_window=lambda right, call: None,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call,
            *(None if side is None or side < 0 else side for side in (left, right)))),
    row("causal-sees-next", "future", "A causal query sees the next key.",
        "`tril(diagonal=1)` or `j <= i + 1`; a causal mask is `j <= i`",
        last_causal_key=lambda right, row, call: row + 1),
    row("causal-inverted", "future",
        "The causal mask is inverted: a query sees later keys alone, not those up to its own.",
        "the hidden triangle `triu(diagonal=1)` is passed where True means attend",
        causal=lambda right, call: ~right.causal(call)),
    row("causal-bottom-right", "election",
        "The causal flag is aligned bottom-right, though top-left is declared.",
        "`tril(diagonal=Lk - Lq)`, `j <= i + Lk - Lq`; top-left is `tril()`, `j <= i`",
        last_causal_key=lambda right, row, call: row + call.sizes.Lk - call.sizes.Lq),
    row("causal-switches-alignment", "values",
        "With more queries than keys the causal flag is aligned bottom-right.",
        "`j <= i + min(0, Lk - Lq)`; top-left is `j <= i`, whatever Lq and Lk are",
        last_causal_key=lambda right, row, call: row + min(0, call.sizes.Lk - call.sizes.Lq)),
    row("causal-excludes-self", "first_row",
        "A causal query does not see the key at its own position.",
        "`j < i`, `tril(diagonal=-1)`, or `triu()` filled with -inf; hide `triu(diagonal=1)` alone",
        last_causal_key=lambda right, row, call: row - 1),
    row("causal-no-effect", "future", "The causal flag has no effect.",
        "`is_causal` is accepted and not used; `scores.masked_fill(j > i, -inf)` is missing",
        last_causal_key=lambda right, row, call: call.sizes.Lk),
    row("causal-by-tiles", "future",
        "Causal masking goes by tiles of 16: inside the tile on the diagonal later keys are seen.",
        "tiles above the diagonal are skipped; inside the tile on it, `j <= i` is missing",
        last_causal_key=lambda right, row, call: row // 16 * 16 + 15),
    row("causal-ignored-with-mask", "election", "Beside a mask the causal flag has no effect.",
        "`if mask is not None: ... elif is_causal: ...`; both apply: `mask & (j <= i)`",
        when=lambda call: call.mask is not None, last_causal_key=lambda right, row, call: call.sizes.Lk),
    row("causal-replaces-mask", "election", "With the causal flag the mask has no effect.",
        "`if is_causal: mask = tril(...)`; both apply: `mask & tril(...)`",
        when=lambda call: call.causal, masked=lambda right, mask, call: np.ones_like(mask)),
    row("causal-ignored-in-decoding", "values", "With one query the causal flag has no effect.",
        "`is_causal and Lq > 1`; top-left, one query sees key 0 alone", when=has_one_query,
        last_causal_key=lambda right, row, call: call.sizes.Lk),
    row("causal-limit-of-packed-rows", "values",
        "With grouped heads query i sees keys up to i // group instead of i.",
        "`j <= row // group`, for rows that hold a group's heads; these do not: `j <= i`",
        last_causal_key=lambda right, row, call: row // call.sizes.group),
    row("causal-adds-one", "values", "The causal flag adds 1 to the scores, before the softcap.",
        "`scores + tril(ones)`; an additive mask adds 0 where a key is seen, -inf elsewhere",
        when=lambda call: call.causal,
        capped=lambda right, scores, call: right.capped(scores + call.work(1), call)),
    row("triangles-are-causal", "flag_equals_dense",
        "A lower-triangular mask is replaced by a causal flag, which is aligned bottom-right.",
        "`mask.equal(tril)` replaced by a causal flag that means `j <= i + Lk - Lq`",
        masked=triangle_as_bottom_right),
    row("causal-or-padding", "values",
        "A key is seen if one of two masks allows it, not only if both do.",
        "`causal | valid`; a key is seen if both allow it: `causal & valid`",
        joined=lambda right, parts: reduce(np.logical_or, parts)),
    row("last-mask-alone", "values", "Of two masks the second replaces the first.",
        "`mask = second` overwrites the first; both apply: `first & second`",
        joined=lambda right, parts: parts[-1]),
    row("lengths-one-short", "flag_equals_dense", "The last valid key of every sample is hidden.",
        "`j < length - 1`; a length counts the keys: `j < length`",
        within=lambda right, lengths, call: right.within(np.maximum(lengths - 1, 0), call)),
    row("lengths-of-first-sample", "batch_independence",
        "Every sample gets the key length of the first.",
        "`j < lengths[0]`; sample b has `lengths[b]`: `j < lengths[:, None, None, None]`",
        within=lambda right, lengths, call:
            right.within(np.broadcast_to(lengths[:1], lengths.shape), call)),
    row("length-zero-means-all", "values", "A key length of 0 is taken for no limit.",
        "`length or Lk`, `if length:`; a sample of length 0 has no key",
        within=lambda right, lengths, call:
            right.within(np.where(lengths == 0, call.sizes.Lk, lengths), call)),
    row("lengths-hide-queries", "values",
        "Key lengths hide the queries beyond them, too, whose answers become zero.",
        "`(i < length) & (j < length)`; key lengths limit keys alone: `j < length`",
        within=mask_of_queries_and_keys),
    row("samples-sorted-and-not-restored", "values",
        "Samples are sorted by key length, and come back in a wrong order.",
        "`out[order]` to undo `x[order]`; the inverse is `out[order.argsort()]`", family="heads",
        when=lambda call: call.lengths is not None, compute=output_of_sorted_samples),
    row("causal-restarts-every-block", "values",
        "Rows are computed in blocks of 64, and the causal flag counts the rows of every block "
        "from 0.", "`i = arange(64)` in every row block; the row is `64 * block + arange(64)`",
        family="tiles", last_causal_key=lambda right, row, call: row % 64),
    row("lengths-tiled", "values",
        "Key lengths are tiled over the heads, not repeated: heads get the length of another "
        "sample.", "`lengths.repeat(H)` for B * H rows; use `lengths.repeat_interleave(H)`",
        within=lambda right, lengths, call: np.arange(call.sizes.Lk)
            < np.tile(lengths, call.sizes.H).reshape(call.sizes.B, call.sizes.H, 1, 1)),
    row("empty-together-ignores-the-mask", "values",
        "A row that flag and mask empty together attends what the flag allows.",
        "`torch.where(mask.any(-1), mask, causal)`; join both, then treat empty rows",
        when=has_mask_and_flag, allowed=lambda right, call:
            np.where(rows_masked_together(right, call), right.causal(call), right.allowed(call))),
    row("empty-together-is-nan", "values",
        "A row that flag and mask empty together divides by its sum of weights, which is zero.",
        "`mask.any(-1)` says which rows are empty; the flag must be joined before",
        when=has_mask_and_flag_alone, compute=lambda right, call:
            np.where(rows_masked_together(right, call), np.nan, right.compute(call))),
    row("empty-together-has-gradients", "gradients",
        "The gradient of a row that flag and mask empty together reaches the values.",
        "the backward pass finds empty rows by the mask alone; join the flag before",
        right=Differentiable, when=has_mask_and_flag,
        value_gradient=lambda right, weights, cotangent, call: right.value_gradient(
            np.where(rows_masked_together(right, call), call.work(1 / max(call.sizes.Lk, 1)), weights),
            cotangent, call)),
]  # fmt: skip

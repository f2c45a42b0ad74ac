"""Faults of sizes, axis orders and strides, and at certain sizes only."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel


def heads_merged_without_permute(right: Kernel, call: Call) -> np.ndarray:
    out = np.ascontiguousarray(right.compute(call))
    s = call.sizes
    return out.reshape(s.B, s.Lq, s.H, s.Dv).swapaxes(1, 2)


def axes_exchanged_when_equal(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded, s = right.load(array, call), call.sizes
    operand = array is call.query or array is call.key or array is call.value
    return loaded.swapaxes(1, 2) if operand and s.H == s.Hkv == s.Lq == s.Lk else loaded


def query_axes_exchanged_when_equal(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    square = array is call.query and call.sizes.H == call.sizes.Lq
    return loaded.swapaxes(1, 2) if square else loaded


def batch_and_heads_exchanged_when_equal(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    square = array is call.query and call.sizes.B == call.sizes.H
    return loaded.swapaxes(0, 1) if square else loaded


def in_memory_order(array: Rounded) -> np.ndarray:
    """The values as they lie in memory, taken for a C-contiguous array of the same shape."""
    return array.values.ravel(order="K").reshape(array.shape)


def value_strides_ignored(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    plain = right.load(array, call)
    return in_memory_order(array).astype(call.work) if array is call.value else plain


def strides_ignored_with_mask(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    plain = right.load(array, call)
    blind = array is call.key and call.mask is not None
    return in_memory_order(array).astype(call.work) if blind else plain


def value_size_assumed(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    missing = max(0, call.sizes.D - call.sizes.Dv)
    return np.pad(out, ((0, 0),) * 3 + ((0, missing),))[..., : call.sizes.D]


def odd_size_truncated(right: Kernel, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    even = max(1, call.sizes.D // 2 * 2)
    return right.scores(query[..., :even], key[..., :even], call)


def size_above64_truncated(
    right: Kernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    return right.scores(query[..., :64], key[..., :64], call)


def last_row_block_not_written(right: Kernel, call: Call) -> np.ndarray:
    out, Lq = right.compute(call), call.sizes.Lq
    if Lq > 64:
        out[:, :, Lq // 64 * 64 :] = 0
    return out


def wrong_at32_keys(right: Kernel, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    scores = right.scores(query, key, call)
    if call.sizes.Lk == 32:
        scores[..., [30, 31]] = scores[..., [31, 30]]
    return scores


def zero_query_is_padding(right: Kernel, call: Call) -> np.ndarray:
    padding = (call.query.values == 0).all(-1, keepdims=True)
    return np.where(padding, 0, right.compute(call))


def empty_batch_raises(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    return np.concatenate([out[b : b + 1] for b in range(call.sizes.B)])


def empty_queries_one_row(right: Kernel, call: Call) -> np.ndarray:
    out, s = right.compute(call), call.sizes
    return out if s.Lq else np.zeros((s.B, s.H, 1, s.Dv), out.dtype)


def no_keys_nan(right: Kernel, out: np.ndarray, call: Call) -> Any:
    return right.deliver(out if call.sizes.Lk else np.full_like(out, np.nan), call)


def value_size_refused(right: Kernel, call: Call) -> None:
    right.validate_operands(call)
    if call.sizes.D != call.sizes.Dv:
        raise ValueError(f"values must have the size of keys, got {call.sizes}")


def rows_beyond_keys_zero(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    out[:, :, max(call.sizes.Lk, 1) :] = 0
    return out


def inner_stride_assumed(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    x = array.values
    if x.ndim != 4 or x.size == 0 or x.strides[-1] == x.itemsize:
        return right.load(array, call)
    base = x.base if x.base is not None else x
    offsets = sum(
        np.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]) * step
        for axis, (n, step) in enumerate(zip(x.shape, (*x.strides[:-1], x.itemsize), strict=True))
    )
    flat = base.ravel(order="K")
    return flat[(offsets // x.itemsize) % flat.size].astype(call.work)


def wide_heads_cut(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    x = right.load(array, call)
    return x if array is call.value else x[..., :128]


row = partial(deviation, family="shapes", right=Kernel)

DEVIATIONS = [
    row("heads-merged-without-permute", "values",
        "The answer (B, H, Lq, Dv) is reshaped to (B, Lq, H, Dv), not transposed.",
        "`out.reshape(B, Lq, H, Dv)` of (B, H, Lq, Dv); use `out.transpose(1, 2)`", family="layout",
        compute=heads_merged_without_permute),
    row("axes-exchanged-when-equal", "values",
        "With H == Lq == Lk the operands are taken for (B, L, H, D).",
        "axis order guessed from equal sizes; it is (B, H, L, D), whatever the sizes",
        family="layout", load=axes_exchanged_when_equal),
    row("query-axes-exchanged-when-equal", "values",
        "With H == Lq the query is taken for (B, Lq, H, D).",
        "axis order guessed from `q.shape[1] == Lq`; a query is (B, H, Lq, D), whatever the sizes",
        family="layout", load=query_axes_exchanged_when_equal),
    row("batch-and-heads-exchanged-when-equal", "values",
        "With B == H the query is taken for (H, B, Lq, D).",
        "axis order guessed from `q.shape[0] == H`; a query is (B, H, Lq, D), whatever the sizes",
        family="layout", load=batch_and_heads_exchanged_when_equal),
    row("strides-ignored", "values",
        "Queries, keys and values are read in memory order, whatever their strides.",
        "`x.data_ptr()` read as if contiguous; pass `x.stride()`, or call `.contiguous()`",
        family="layout", load=lambda right, array, call: in_memory_order(array).astype(call.work)),
    row("value-strides-ignored", "values",
        "Values are read in memory order, whatever their strides.",
        "v read with the strides of k, or as if contiguous; pass `v.stride()`", family="layout",
        load=value_strides_ignored),
    row("strides-ignored-with-mask", "values",
        "Beside a mask the keys are read in memory order, whatever their strides.",
        "the masked path reads k as if contiguous; pass `k.stride()`, or call `.contiguous()`",
        family="layout", load=strides_ignored_with_mask),
    row("value-size-assumed", "values",
        "The answer has the size of a key, whatever the size of a value.",
        "`torch.empty_like(q)` for the output; its last axis is `Dv = v.shape[-1]`",
        compute=value_size_assumed),
    row("odd-size-truncated", "values",
        "With an odd D above 1 the last component of queries and keys is not read.",
        "`D // 2` loads of two components; an odd D leaves one more", family="tiles",
        scores=odd_size_truncated),
    row("size-above64-truncated", "values",
        "Components of queries and keys beyond the 64th are not read.",
        "one tile of 64 components without a loop over D", family="tiles",
        scores=size_above64_truncated),
    row("last-row-block-not-written", "values",
        "With more than 64 queries those beyond a multiple of 64 stay zero.",
        "a grid of `Lq // 64` row blocks; use `cdiv(Lq, 64)`, and mask rows beyond Lq",
        family="tiles", compute=last_row_block_not_written),
    row("wrong-at32-keys", "values",
        "With exactly 32 keys the scores of the last two are exchanged.",
        "a path for one tile of 32 keys with two lanes exchanged, in q @ k.mT alone",
        family="tiles", scores=wrong_at32_keys),
    row("zero-query-is-padding", "dyadic_mean",
        "A query of zeros is taken for padding, and its answer is zero.",
        "`out[(q == 0).all(-1)] = 0`; padding is told by a mask, not by zeros", family="mask",
        compute=zero_query_is_padding),
    row("empty-batch-raises", "empty", "With no samples (B = 0) the call raises.",
        "`torch.cat([f(q[b]) for b in range(B)])` has nothing to join; return an empty array",
        compute=empty_batch_raises),
    row("empty-queries-one-row", "empty", "With no queries (Lq = 0) one row comes back.",
        "`max(Lq, 1)` rows, for a grid that is not empty; return (B, H, 0, Dv)",
        compute=empty_queries_one_row),
    row("no-keys-nan", "election",
        "With no keys (Lk = 0) the answer is NaN, though zeros are declared.",
        "a softmax over no keys is 0 / 0; return zeros if `Lk == 0`", deliver=no_keys_nan),
    row("value-size-refused", "election",
        "Values of another size than keys are refused, though they are declared to be accepted.",
        "`assert v.shape[-1] == q.shape[-1]`; values may have another size Dv",
        validate_operands=value_size_refused),
    row("rows-beyond-keys-zero", "values",
        "With more queries than keys the rows beyond the number of keys stay zero.",
        "output written for `i in range(Lk)`; it has Lq rows", family="tiles",
        compute=rows_beyond_keys_zero),
    row("inner-stride-assumed", "values",
        "The components of a query, key or value are taken to lie side by side in memory.",
        "`x.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
        family="layout", load=inner_stride_assumed),
    row("wide-heads-cut", "values", "Components of queries and keys beyond the 128th are not read.",
        "one tile of 128 components without a loop over D", family="tiles", load=wide_heads_cut),
    row("two-rows-one-mask", "values", "With two queries every sample gets the mask of the first.",
        "a path for `Lq == 2` loads `mask[0]`; sample b has `mask[b]`", family="mask",
        masked=lambda right, mask, call: mask[:1] if call.sizes.Lq == 2 else mask),
]  # fmt: skip

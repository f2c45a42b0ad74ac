"""Faults that depend on the memory layout of operands, masks and biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.invariance import hide_last_key
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel


def memory_extent(values: np.ndarray) -> int:
    """Returns the number of elements of memory from the first element of an array to its last."""
    return (
        sum((n - 1) * step for n, step in zip(values.shape, element_strides(values), strict=True))
        + 1
    )


def in_memory_order(values: np.ndarray) -> np.ndarray:
    """Returns an array of the same shape, read from memory as if `values` were contiguous."""
    flat = np.lib.stride_tricks.as_strided(values, (memory_extent(values),), (values.itemsize,))
    return np.resize(flat, values.shape)


def has_gaps(values: np.ndarray) -> bool:
    """Returns True if the array is no contiguous block of memory."""
    return memory_extent(values) > values.size


def from_array_start(values: np.ndarray) -> np.ndarray:
    """Returns an array with the shape and strides of `values`, read from the start of the array that owns
    the memory of `values`."""
    owner, base = values, values.base
    while base is not None:
        # Between a view of other strides and its array stands an object of NumPy's own.
        owner = base if isinstance(base, np.ndarray) else owner
        base = getattr(base, "base", None)
    return np.lib.stride_tricks.as_strided(owner.reshape(-1), values.shape, values.strides)


def with_strides(values: np.ndarray, **steps: int) -> np.ndarray:
    """Returns `values` read with other strides, in elements, along the axes `batch`, `heads` or
    `rows`."""
    strides = list(element_strides(values))
    for axis, step in steps.items():
        strides[("batch", "heads", "rows").index(axis)] = step
    byte_strides = [step * values.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(values, values.shape, byte_strides)


def element_strides(values: np.ndarray) -> tuple[int, ...]:
    """Returns the strides of an array in elements."""
    return tuple(step // values.itemsize for step in values.strides)


def has_contiguous_rows(values: np.ndarray) -> bool:
    """Returns True if the rows of an array (B, H, L, D) are contiguous, one after the other."""
    return values.ndim == 4 and element_strides(values)[2:] == (values.shape[3], 1)


def is_slice_of_rows(values: np.ndarray) -> bool:
    """Returns True for a slice of a longer cache: heads are farther apart than the array's rows need."""
    return (
        has_contiguous_rows(values)
        and element_strides(values)[1] > values.shape[2] * values.shape[3]
    )


def is_slice_of_heads(values: np.ndarray) -> bool:
    """Returns True for a slice of more heads: samples are farther apart than the array's heads need."""
    head = values.shape[2] * values.shape[3] if values.ndim == 4 else 0
    batch, heads = element_strides(values)[:2]
    return has_contiguous_rows(values) and heads == head and batch > values.shape[1] * head


def heads_without_gap(values: np.ndarray) -> np.ndarray:
    """Returns `values` read with a stride of heads of Lk * D, if they are a slice of a longer cache."""
    return (
        with_strides(values, heads=values.shape[2] * values.shape[3])
        if is_slice_of_rows(values)
        else values
    )


def samples_without_gap(values: np.ndarray) -> np.ndarray:
    """Returns `values` read with a stride of samples computed from the number of heads, if they are a
    slice of more heads."""
    if not is_slice_of_heads(values):
        return values
    return with_strides(values, batch=values.shape[1] * element_strides(values)[1])


def rows_without_gap(values: np.ndarray) -> np.ndarray:
    """Returns `values` read with a stride of rows of D, if a gap lies behind every row."""
    _, heads, rows, components = element_strides(values)
    gap = components == 1 and heads == values.shape[2] * rows and rows > values.shape[3]
    return with_strides(values, rows=values.shape[3]) if gap else values


def rows_without_other_heads(values: np.ndarray) -> np.ndarray:
    """Returns `values` read with a stride of rows of H * D, if heads lie within rows."""
    _, heads, _, components = element_strides(values)
    if (heads, components) != (values.shape[3], 1):
        return values
    return with_strides(values, rows=values.shape[1] * heads)


def is_unaligned(values: np.ndarray) -> bool:
    """Returns True if rows are contiguous, and the address is no multiple of 16 bytes."""
    return has_contiguous_rows(values) and values.ctypes.data % 16 != 0


def is_broadcast(values: np.ndarray, axis: int) -> bool:
    """Returns True if an axis is broadcast: its size is above 1, and its stride is 0."""
    return values.ndim > axis and values.shape[axis] > 1 and values.strides[axis] == 0


def is_first(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns a boolean that broadcasts to `values`: True at the first index of an axis."""
    first_index = np.arange(values.shape[axis]) == 0
    return first_index.reshape(-1, *(1,) * (values.ndim - axis - 1))


def reading(operand: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Returns a step `load` that reads one operand as `change(values)`."""

    def load(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
        if array is getattr(call, operand):
            return change(array.values).astype(call.work)
        return right.load(array, call)

    return load


def components_contiguous(values: np.ndarray) -> np.ndarray:
    if values.strides[-1] != 2 * values.itemsize or values.shape[-1] == 1:
        return values
    strides = (*values.strides[:-1], values.itemsize)
    return np.lib.stride_tricks.as_strided(values, values.shape, strides)


def rows_forwards(values: np.ndarray) -> np.ndarray:
    """Returns the rows in the order of memory if their stride is negative, else `values`."""
    return values[..., ::-1, :] if values.strides[-2] < 0 else values


def in_order_if_transposed(values: np.ndarray) -> np.ndarray:
    transposed = values.strides[-2] == values.itemsize < values.strides[-1]
    return in_memory_order(values) if transposed else values


def from_aligned_address(values: np.ndarray) -> np.ndarray:
    return np.roll(values, 1, -1) if is_unaligned(values) else values


def one_row_late(values: np.ndarray) -> np.ndarray:
    """Returns the rows shifted by one if an axis of size 1 has a stride of 7 elements, else `values`."""
    unit_strides = [s for n, s in zip(values.shape, values.strides, strict=True) if n == 1]
    is_odd = 7 * values.itemsize in unit_strides and values.shape[-2] > 1
    return np.roll(values, 1, -2) if is_odd else values


def rows_beyond_expanded(values: np.ndarray, strided: np.ndarray) -> np.ndarray:
    """Returns values (B, H, Lq, Lk) in which each next row is the row of the next head, if the rows of
    `strided` have the stride 0; else `values`. `strided`: the caller's array with its strides."""
    B, H, Lq, Lk = values.shape
    if strided.ndim < 2 or strided.strides[-2] != 0 or Lq < 2:
        return values
    heads = (np.arange(B * H)[:, None] + np.arange(Lq)) % (B * H)
    return values[:, :, 0].reshape(B * H, Lk)[heads].reshape(values.shape)


row = partial(deviation, family="layout", right=Kernel)

DEVIATIONS = [
    row("value-read-in-order", "inner_layouts",
        "Values are read in memory order, whatever their strides.",
        "`v.data_ptr()` read as if contiguous; pass `v.stride()`, or call `.contiguous()`",
        load=reading("value", in_memory_order)),
    row("inner-stride-ignored", "inner_layouts",
        "The components of a query are read side by side, though their stride is 2.",
        "`q.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
        load=reading("query", components_contiguous)),
    row("transposed-key-taken-twice", "inner_layouts",
        "Keys that are a transposed view are read in memory order.",
        "a view like `kt.mT` read as if contiguous; pass `k.stride()`, or call `.contiguous()`",
        load=reading("key", in_order_if_transposed)),
    row("offset-ignored", "layouts",
        "Values that are a slice of a larger array are read from the start of that array.",
        "`v.untyped_storage().data_ptr()`; use `v.data_ptr()`, which begins at the slice",
        load=reading("value", from_array_start)),
    row("heads-of-cache-from-shape", "layouts",
        "The stride of key heads is computed as Lk * D, also for a slice of a longer cache.",
        "`h * Lk * D`; a slice of a cache has rows between its heads: `h * k.stride(1)`",
        load=reading("key", heads_without_gap)),
    row("samples-from-shape", "layouts",
        "The stride of the samples of values is computed from Hkv, also for a slice of more heads.",
        "`b * Hkv * v.stride(1)`; a slice of heads has others between its samples: `b * "
        "v.stride(0)`", load=reading("value", samples_without_gap)),
    row("rows-of-fused-from-shape", "layouts",
        "The stride of query rows is computed as H * D, also for a slice of a fused projection.",
        "`i * H * D`; a slice of a fused projection has wider rows: `i * q.stride(2)`",
        load=reading("query", rows_without_other_heads)),
    row("rows-from-shape", "layouts",
        "The stride of value rows is computed as Dv, though a gap lies behind every row.",
        "`j * Dv`; a slice `x[..., :Dv]` leaves a gap behind every row: `j * v.stride(2)`",
        load=reading("value", rows_without_gap)),
    row("keys-read-from-aligned-address", "layouts",
        "Keys are read from the multiple of 16 bytes before their first element.",
        "loads of 16 bytes; if `k.data_ptr() % 16` is not 0, load element by element",
        load=reading("key", from_aligned_address)),
    row("keys-read-forwards", "negative_layouts",
        "Keys whose rows have a negative stride are read forwards.",
        "unsigned strides, or `abs(stride)`; a flipped view has a negative one",
        load=reading("key", rows_forwards)),
    row("negative-stride-is-zero", "negative_layouts",
        "A negative stride of query rows counts as 0.",
        "`max(stride, 0)`; a flipped view has a negative stride",
        load=reading("query", lambda x: with_strides(x, rows=0) if x.strides[-2] < 0 else x)),
    row("shared-sample-read-once", "layouts",
        "Of keys expanded along the batch only the first sample's are read; others are zero.",
        "stride 0, as after `k.expand(B, -1, -1, -1)`, read as size 1; use the stride as it is",
        load=reading("key", lambda x: x * is_first(x, 0) if is_broadcast(x, 0) else x)),
    row("shared-head-tail-lost", "layouts",
        "If values are expanded along the heads, a single key after the last block of 32 is lost.",
        "a path for stride 0 (`v.expand`) with `Lk // 32` blocks; use `cdiv(Lk, 32)`",
        family="tiles",
        when=lambda call:
            is_broadcast(call.value.values, 1) and call.sizes.Lk % 32 == 1 and call.sizes.Lk > 1,
        hide=hide_last_key),
    row("odd-strides-used", "layouts",
        "The stride of an axis of size 1 is used, so that keys are read one row off.",
        "the stride of an axis of size 1 may be anything; leave it out of addresses and tests",
        load=reading("key", one_row_late)),
    row("shared-mask-read-once", "mask_layouts",
        "A mask expanded along the batch hides nothing from samples after the first.",
        "stride 0, as after `mask.expand(B, ...)`, read as size 1; use the stride as it is",
        masked=lambda right, mask, call: mask | ~is_first(mask, 0),
        when=lambda call: is_broadcast(call.mask.values, 0)),
    row("mask-of-cache-from-shape", "mask_layouts",
        "The stride of the heads of a mask is computed from Lq, also for a slice of more rows.",
        "`h * Lq * Lk`; a slice of a mask has rows between its heads: `h * mask.stride(1)`",
        masked=lambda right, mask, call: heads_without_gap(mask)),
    row("mask-samples-from-shape", "mask_layouts",
        "The stride of the samples of a mask is computed from H, also for a slice of more heads.",
        "`b * H * mask.stride(1)`; a slice has heads between its samples: `b * mask.stride(0)`",
        masked=lambda right, mask, call: samples_without_gap(mask)),
    row("bias-rows-from-shape", "mask_layouts",
        "The stride of the rows of a bias is computed as Lk, though a gap lies behind every row.",
        "`i * Lk`; a slice `x[..., :Lk]` leaves a gap behind every row: `i * bias.stride(-2)`",
        load=reading("bias", rows_without_gap)),
    row("expanded-rows-from-shape", "mask_layouts",
        "A bias expanded along rows is read with the number of keys as the stride of rows.",
        "`stride(-2)` of 0 taken for `Lk`; after `expand` every row is the same memory",
        bias=lambda right, call: rows_beyond_expanded(right.bias(call), call.bias.values)),
    row("bias-read-from-aligned-address", "mask_layouts",
        "A bias is read from the multiple of 16 bytes before its first element.",
        "loads of 16 bytes; if `bias.data_ptr() % 16` is not 0, load element by element",
        load=reading("bias", from_aligned_address)),
    row("mask-read-forwards", "mask_layouts",
        "A mask whose rows have a negative stride is read forwards.",
        "unsigned strides, or `abs(stride)`; a flipped view has a negative one",
        masked=lambda right, mask, call: mask[..., ::-1, :] if mask.strides[-2] < 0 else mask),
    row("mask-offset-ignored", "mask_layouts",
        "A mask that is a slice of a larger array is read from the start of that array.",
        "`mask.untyped_storage().data_ptr()`; use `mask.data_ptr()`, which begins at the slice",
        masked=lambda right, mask, call: from_array_start(mask)),
    row("bias-heads-not-shared", "mask_layouts",
        "Of a bias expanded along the heads only the first head gets any.",
        "stride 0, as after `bias.expand(-1, H, -1, -1)`, read as size 1; use it as it is",
        load=reading("bias", lambda x: x * is_first(x, 1) if is_broadcast(x, 1) else x)),
    row("mask-read-in-order", "inner_mask_layouts",
        "A mask is read in memory order, whatever its strides.",
        "`mask.data_ptr()` read as if contiguous; pass `mask.stride()`, or call `.contiguous()`",
        masked=lambda right, mask, call: in_memory_order(mask)),
    row("transposed-bias-read-in-order", "inner_mask_layouts",
        "A bias that is a transposed view is read in memory order.",
        "a view like `bias.mT` read as if contiguous; pass `bias.stride()`",
        load=reading("bias", in_order_if_transposed)),
]  # fmt: skip

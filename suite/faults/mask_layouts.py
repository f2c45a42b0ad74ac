"""Faults for which it matters where a mask or a bias lies in memory."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.layouts import (
    Misread,
    from_start,
    in_order,
    shared,
    unaligned,
    with_heads_of_rows,
    with_rows_side_by_side,
    with_samples_of_heads,
)


def shared_mask_read_once(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    if not shared(mask, 0):
        return mask
    return np.where(np.arange(len(mask))[:, None, None, None] == 0, mask, True)


def shared_row_read_once(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    return mask | (np.arange(mask.shape[-2]) > 0)[:, None] if shared(mask, 2) else mask


def bias_read_from_aligned_address(right: Misread, values: np.ndarray, call: Call) -> np.ndarray:
    return np.roll(values, 1, -1) if unaligned(values) else values


def bias_heads_not_shared(right: Misread, values: np.ndarray, call: Call) -> np.ndarray:
    if values.ndim < 4 or not shared(values, 1):
        return values
    return np.where(np.arange(values.shape[1])[:, None, None] == 0, values, 0.0)


def transposed_bias_read_in_order(right: Misread, values: np.ndarray, call: Call) -> np.ndarray:
    transposed = values.strides[-2] == values.itemsize < values.strides[-1]
    return in_order(values) if transposed else values


row = partial(deviation, family="layout", right=Kernel)

DEVIATIONS = [
    row("shared-mask-read-once", "mask_layouts",
        "A mask expanded along the batch hides nothing from samples after the first.",
        "stride 0, as after `mask.expand(B, ...)`, read as size 1; use the stride as it is",
        masked=shared_mask_read_once),
    row("shared-row-read-once", "mask_layouts",
        "A mask expanded along the rows hides nothing from rows after the first.",
        "stride 0, as after `mask.expand(..., Lq, Lk)`, read as size 1; use the stride as it is",
        masked=shared_row_read_once),
    row("mask-of-cache-from-shape", "mask_layouts",
        "The stride of the heads of a mask is computed from Lq, also for a slice of more rows.",
        "`h * Lq * Lk`; a slice of a mask has rows between its heads: `h * mask.stride(1)`",
        masked=lambda right, mask, call: with_heads_of_rows(mask)),
    row("mask-samples-from-shape", "mask_layouts",
        "The stride of the samples of a mask is computed from H, also for a slice of more heads.",
        "`b * H * mask.stride(1)`; a slice has heads between its samples: `b * mask.stride(0)`",
        masked=lambda right, mask, call: with_samples_of_heads(mask)),
    row("bias-rows-from-shape", "mask_layouts",
        "The stride of the rows of a bias is computed as Lk, though a gap lies behind every row.",
        "`i * Lk`; a slice `x[..., :Lk]` leaves a gap behind every row: `i * bias.stride(-2)`",
        right=Misread, facts={"operand": "bias"},
        misread=lambda right, values, call: with_rows_side_by_side(values)),
    row("bias-read-from-aligned-address", "mask_layouts",
        "A bias is read from the multiple of 16 bytes before its first element.",
        "loads of 16 bytes; if `bias.data_ptr() % 16` is not 0, load element by element",
        right=Misread, facts={"operand": "bias"}, misread=bias_read_from_aligned_address),
    row("mask-read-forwards", "mask_layouts",
        "A mask whose rows have a negative stride is read forwards.",
        "unsigned strides, or `abs(stride)`; a flipped view has a negative one",
        masked=lambda right, mask, call: mask[..., ::-1, :] if mask.strides[-2] < 0 else mask),
    row("mask-offset-ignored", "mask_layouts",
        "A mask that is a slice of a larger array is read from the start of that array.",
        "`mask.untyped_storage().data_ptr()`; use `mask.data_ptr()`, which begins at the slice",
        masked=lambda right, mask, call: from_start(mask)),
    row("bias-heads-not-shared", "mask_layouts",
        "Of a bias expanded along the heads only the first head gets any.",
        "stride 0, as after `bias.expand(-1, H, -1, -1)`, read as size 1; use it as it is",
        right=Misread, facts={"operand": "bias"}, misread=bias_heads_not_shared),
    row("mask-read-in-order", "inner_mask_layouts",
        "A mask is read in memory order, whatever its strides.",
        "`mask.data_ptr()` read as if contiguous; pass `mask.stride()`, or call `.contiguous()`",
        masked=lambda right, mask, call: in_order(mask)),
    row("transposed-bias-read-in-order", "inner_mask_layouts",
        "A bias that is a transposed view is read in memory order.",
        "a view like `bias.mT` read as if contiguous; pass `bias.stride()`", right=Misread,
        facts={"operand": "bias"}, misread=transposed_bias_read_in_order),
]  # fmt: skip

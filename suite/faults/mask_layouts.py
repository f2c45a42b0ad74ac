"""Faults for which it matters where a mask or a bias lies in memory."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
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

FAMILY = "layout"


@fault(
    "mask_layouts",
    "stride 0, as after `mask.expand(B, ...)`, read as size 1; use the stride as it is",
)
class SharedMaskReadOnce(Kernel):
    """A mask expanded along the batch hides nothing from samples after the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if not shared(mask, 0):
            return mask
        return np.where(np.arange(len(mask))[:, None, None, None] == 0, mask, True)


@fault(
    "mask_layouts",
    "stride 0, as after `mask.expand(..., Lq, Lk)`, read as size 1; use the stride as it is",
)
class SharedRowReadOnce(Kernel):
    """A mask expanded along the rows hides nothing from rows after the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask | (np.arange(mask.shape[-2]) > 0)[:, None] if shared(mask, 2) else mask


@fault(
    "mask_layouts",
    "`h * Lq * Lk`; a slice of a mask has rows between its heads: `h * mask.stride(1)`",
)
class MaskOfCacheFromShape(Kernel):
    """The stride of the heads of a mask is computed from Lq, also for a slice of more rows."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return with_heads_of_rows(mask)


@fault(
    "mask_layouts",
    "`b * H * mask.stride(1)`; a slice has heads between its samples: `b * mask.stride(0)`",
)
class MaskSamplesFromShape(Kernel):
    """The stride of the samples of a mask is computed from H, also for a slice of more heads."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return with_samples_of_heads(mask)


@fault(
    "mask_layouts",
    "`i * Lk`; a slice `x[..., :Lk]` leaves a gap behind every row: `i * bias.stride(-2)`",
)
class BiasRowsFromShape(Misread):
    """The stride of the rows of a bias is computed as Lk, though a gap lies behind every row."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_rows_side_by_side(values)


@fault(
    "mask_layouts", "loads of 16 bytes; if `bias.data_ptr() % 16` is not 0, load element by element"
)
class BiasReadFromAlignedAddress(Misread):
    """A bias is read from the multiple of 16 bytes before its first element."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return np.roll(values, 1, -1) if unaligned(values) else values


@fault("mask_layouts", "unsigned strides, or `abs(stride)`; a flipped view has a negative one")
class MaskReadForwards(Kernel):
    """A mask whose rows have a negative stride is read forwards."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[..., ::-1, :] if mask.strides[-2] < 0 else mask


@fault(
    "mask_layouts",
    "`mask.untyped_storage().data_ptr()`; use `mask.data_ptr()`, which begins at the slice",
)
class MaskOffsetIgnored(Kernel):
    """A mask that is a slice of a larger array is read from the start of that array."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return from_start(mask)


@fault(
    "mask_layouts",
    "stride 0, as after `bias.expand(-1, H, -1, -1)`, read as size 1; use it as it is",
)
class BiasHeadsNotShared(Misread):
    """Of a bias expanded along the heads only the first head gets any."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        if values.ndim < 4 or not shared(values, 1):
            return values
        return np.where(np.arange(values.shape[1])[:, None, None] == 0, values, 0.0)


@fault(
    "inner_mask_layouts",
    "`mask.data_ptr()` read as if contiguous; pass `mask.stride()`, or call `.contiguous()`",
)
class MaskReadInOrder(Kernel):
    """A mask is read in memory order, whatever its strides."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return in_order(mask)


@fault("inner_mask_layouts", "a view like `bias.mT` read as if contiguous; pass `bias.stride()`")
class TransposedBiasReadInOrder(Misread):
    """A bias that is a transposed view is read in memory order."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        transposed = values.strides[-2] == values.itemsize < values.strides[-1]
        return in_order(values) if transposed else values

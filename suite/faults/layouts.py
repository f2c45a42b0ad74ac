"""Faults for which it matters where operands lie in memory."""

from __future__ import annotations

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel


def in_order(values: np.ndarray) -> np.ndarray:
    """The memory from the first element on, read as if the array were contiguous."""
    steps = zip(values.shape, values.strides, strict=True)
    extent = sum((n - 1) * step for n, step in steps) // values.itemsize + 1
    memory = np.lib.stride_tricks.as_strided(values, (extent,), (values.itemsize,))
    return np.resize(memory, values.shape)


def from_start(values: np.ndarray) -> np.ndarray:
    """What lies at the start of the array that `values` is a window of, under the same strides."""
    owner = values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return np.lib.stride_tricks.as_strided(owner.reshape(-1), values.shape, values.strides)


def strided(values: np.ndarray, **steps: int) -> np.ndarray:
    """What lies under other strides, in elements, of the axes `batch`, `heads` or `rows`."""
    strides = list(elements(values))
    for axis, step in steps.items():
        strides[("batch", "heads", "rows").index(axis)] = step
    memory = [step * values.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(values, values.shape, memory)


def elements(values: np.ndarray) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(step // values.itemsize for step in values.strides)


def packed_rows(values: np.ndarray) -> bool:
    """True if rows and their components lie side by side."""
    return values.ndim == 4 and elements(values)[2:] == (values.shape[3], 1)


def of_cache(values: np.ndarray) -> bool:
    """True if more rows lie between the heads than the array has."""
    return packed_rows(values) and elements(values)[1] > values.shape[2] * values.shape[3]


def of_more_heads(values: np.ndarray) -> bool:
    """True if more heads lie between the samples than the array has."""
    head = values.shape[2] * values.shape[3] if values.ndim == 4 else 0
    batch, heads = elements(values)[:2]
    return packed_rows(values) and heads == head and batch > values.shape[1] * head


def with_heads_of_rows(values: np.ndarray) -> np.ndarray:
    """What lies where heads would be if nothing lay between the rows of two heads."""
    return strided(values, heads=values.shape[2] * values.shape[3]) if of_cache(values) else values


def with_samples_of_heads(values: np.ndarray) -> np.ndarray:
    """What lies where samples would be if nothing lay between the heads of two samples."""
    if not of_more_heads(values):
        return values
    return strided(values, batch=values.shape[1] * elements(values)[1])


def with_rows_side_by_side(values: np.ndarray) -> np.ndarray:
    """What lies where rows would be if nothing lay between two rows."""
    _, heads, rows, components = elements(values)
    gap = components == 1 and heads == values.shape[2] * rows and rows > values.shape[3]
    return strided(values, rows=values.shape[3]) if gap else values


def with_rows_of_heads(values: np.ndarray) -> np.ndarray:
    """What lies where rows would be if nothing lay between the heads of two rows."""
    _, heads, _, components = elements(values)
    if (heads, components) != (values.shape[3], 1):
        return values
    return strided(values, rows=values.shape[1] * heads)


def unaligned(values: np.ndarray) -> bool:
    """True if rows lie side by side, and the first element at no multiple of 16 bytes."""
    return packed_rows(values) and values.ctypes.data % 16 != 0


def shared(values: np.ndarray, axis: int) -> bool:
    """Whether slices along the axis lie in one place."""
    return values.shape[axis] > 1 and values.strides[axis] == 0


class Misread(Kernel):
    """One operand is read from memory in another way."""

    operand = "value"

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        if array is getattr(call, self.operand):
            return self.misread(array.values, call).astype(call.work)
        return super().load(array, call)

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        raise NotImplementedError


@fault("inner_layouts", like="J5")
class ValueReadInOrder(Misread):
    """The values' memory is read in order, whatever their strides."""

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return in_order(values)


@fault("inner_layouts", like="J1")
class InnerStrideIgnored(Misread):
    """Components of a query that lie apart are read from side by side."""

    operand = "query"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        if values.strides[-1] != 2 * values.itemsize or values.shape[-1] == 1:
            return values
        strides = (*values.strides[:-1], values.itemsize)
        return np.lib.stride_tricks.as_strided(values, values.shape, strides)


@fault("inner_layouts", like="J2")
class TransposedKeyTakenTwice(Misread):
    """Keys whose last two axes are exchanged in memory are exchanged once more."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        transposed = values.strides[-2] == values.itemsize < values.strides[-1]
        return in_order(values) if transposed else values


@fault("layouts")
class OffsetIgnored(Misread):
    """Values out of a larger array are read from its start."""

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return from_start(values)


@fault("layouts")
class HeadsOfCacheFromShape(Misread):
    """The stride of the heads of keys is worked out from their length, though rows lie between them."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_heads_of_rows(values)


@fault("layouts")
class SamplesFromShape(Misread):
    """The stride of the samples of values is worked out from the number of heads."""

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_samples_of_heads(values)


@fault("layouts")
class RowsOfFusedFromShape(Misread):
    """The stride of the rows of queries is worked out from the number of heads side by side."""

    operand = "query"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_rows_of_heads(values)


@fault("layouts")
class HeadsOfFusedFromShape(Misread):
    """The heads of keys are looked for side by side where the rows of all heads are."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        _, heads, rows, components = elements(values)
        apart = components == 1 and rows == values.shape[1] * heads and heads > values.shape[3]
        return strided(values, heads=values.shape[3]) if apart and values.shape[2] > 1 else values


@fault("layouts")
class RowsFromShape(Misread):
    """The stride of the rows of values is the size of a row, though a gap lies behind every row."""

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_rows_side_by_side(values)


@fault("layouts")
class KeysReadFromAlignedAddress(Misread):
    """Keys are read from the multiple of 16 bytes before their first element."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return np.roll(values, 1, -1) if unaligned(values) else values


class RowsForwards(Misread):
    """The rows of one operand are read forwards where their stride is negative."""

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return values[..., ::-1, :] if values.strides[-2] < 0 else values


@fault("negative_layouts")
class ValuesReadForwards(RowsForwards):
    """Values with a negative stride of rows are read forwards."""


@fault("negative_layouts")
class KeysReadForwards(RowsForwards):
    """Keys with a negative stride of rows are read forwards."""

    operand = "key"


@fault("negative_layouts")
class NegativeStrideIsZero(Misread):
    """A negative stride of the rows of queries counts as 0."""

    operand = "query"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return strided(values, rows=0) if values.strides[-2] < 0 else values


@fault("layouts", like="J4")
class SharedSampleReadOnce(Misread):
    """Of keys with stride 0 along the batch only the first sample's are read, the others are zero."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        if not shared(values, 0):
            return values
        return np.where(np.arange(len(values))[:, None, None, None] == 0, values, 0.0)


@fault("layouts", like="J4")
class SharedHeadTailLost(Kernel):
    """Where values have stride 0 along the heads, the key after the last block of 32 is not seen."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        hidden_scores = super().hide(scores, allowed, call)
        if shared(call.value.values, 1) and hidden_scores.shape[-1] % 32 == 1:
            hidden_scores[..., -1] = -np.inf
        return hidden_scores


@fault("layouts", like="J10")
class OddStridesUsed(Misread):
    """The stride of an axis of size 1 is where the next key is looked for."""

    operand = "key"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        ones = [s for n, s in zip(values.shape, values.strides, strict=True) if n == 1]
        odd = 7 * values.itemsize in ones and values.shape[-2] > 1
        return np.roll(values, 1, -2) if odd else values


@fault("mask_layouts")
class SharedMaskReadOnce(Kernel):
    """A mask with stride 0 along the batch hides nothing from samples after the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if not shared(mask, 0):
            return mask
        return np.where(np.arange(len(mask))[:, None, None, None] == 0, mask, True)


@fault("mask_layouts")
class SharedRowReadOnce(Kernel):
    """A mask with stride 0 along the rows hides nothing from rows after the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask | (np.arange(mask.shape[-2]) > 0)[:, None] if shared(mask, 2) else mask


@fault("mask_layouts")
class MaskOfCacheFromShape(Kernel):
    """The stride of the heads of a mask is worked out from its number of rows."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return with_heads_of_rows(mask)


@fault("mask_layouts")
class MaskSamplesFromShape(Kernel):
    """The stride of the samples of a mask is worked out from the number of heads."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return with_samples_of_heads(mask)


@fault("mask_layouts")
class BiasRowsFromShape(Misread):
    """The stride of the rows of a bias is the number of keys, though a gap lies behind every row."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return with_rows_side_by_side(values)


@fault("mask_layouts")
class BiasReadFromAlignedAddress(Misread):
    """A bias is read from the multiple of 16 bytes before its first element."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        return np.roll(values, 1, -1) if unaligned(values) else values


@fault("mask_layouts")
class MaskReadForwards(Kernel):
    """A mask with a negative stride of rows is read forwards."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[..., ::-1, :] if mask.strides[-2] < 0 else mask


@fault("mask_layouts")
class MaskOffsetIgnored(Kernel):
    """A mask out of a larger array is read from its start."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return from_start(mask)


@fault("mask_layouts")
class BiasHeadsNotShared(Misread):
    """Of a bias with stride 0 along the heads only the first head takes any."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        if values.ndim < 4 or not shared(values, 1):
            return values
        return np.where(np.arange(values.shape[1])[:, None, None] == 0, values, 0.0)


@fault("inner_mask_layouts")
class MaskReadInOrder(Kernel):
    """The mask's memory is read in order, whatever its strides."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return in_order(mask)


@fault("inner_mask_layouts")
class TransposedBiasReadInOrder(Misread):
    """A bias whose last two axes are exchanged in memory is read in order."""

    operand = "bias"

    def misread(self, values: np.ndarray, call: Call) -> np.ndarray:
        transposed = values.strides[-2] == values.itemsize < values.strides[-1]
        return in_order(values) if transposed else values

"""Faults of sizes, axis orders and strides, and at certain sizes only."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "shapes"


@fault(
    "values",
    "`out.reshape(B, Lq, H, Dv)` of (B, H, Lq, Dv); use `out.transpose(1, 2)`",
    family="layout",
)
class HeadsMergedWithoutPermute(Kernel):
    """The answer (B, H, Lq, Dv) is reshaped to (B, Lq, H, Dv), not transposed."""

    def compute(self, call: Call) -> np.ndarray:
        out = np.ascontiguousarray(super().compute(call))
        s = call.sizes
        return out.reshape(s.B, s.Lq, s.H, s.Dv).swapaxes(1, 2)


@fault(
    "values",
    "axis order guessed from equal sizes; it is (B, H, L, D), whatever the sizes",
    family="layout",
)
class AxesExchangedWhenEqual(Kernel):
    """With H == Lq == Lk the operands are taken for (B, L, H, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        operand = array is call.query or array is call.key or array is call.value
        return loaded.swapaxes(1, 2) if operand and s.H == s.Hkv == s.Lq == s.Lk else loaded


@fault(
    "values",
    "axis order guessed from `q.shape[1] == Lq`; a query is (B, H, Lq, D), whatever the sizes",
    family="layout",
)
class QueryAxesExchangedWhenEqual(Kernel):
    """With H == Lq the query is taken for (B, Lq, H, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.query and call.sizes.H == call.sizes.Lq
        return loaded.swapaxes(1, 2) if square else loaded


@fault(
    "values",
    "axis order guessed from `q.shape[0] == H`; a query is (B, H, Lq, D), whatever the sizes",
    family="layout",
)
class BatchAndHeadsExchangedWhenEqual(Kernel):
    """With B == H the query is taken for (H, B, Lq, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.query and call.sizes.B == call.sizes.H
        return loaded.swapaxes(0, 1) if square else loaded


def in_memory_order(array: Rounded) -> np.ndarray:
    """The values as they lie in memory, taken for a C-contiguous array of the same shape."""
    return array.values.ravel(order="K").reshape(array.shape)


@fault(
    "values",
    "`x.data_ptr()` read as if contiguous; pass `x.stride()`, or call `.contiguous()`",
    family="layout",
)
class StridesIgnored(Kernel):
    """Queries, keys and values are read in memory order, whatever their strides."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return in_memory_order(array).astype(call.work)


@fault(
    "values",
    "v read with the strides of k, or as if contiguous; pass `v.stride()`",
    family="layout",
)
class ValueStridesIgnored(Kernel):
    """Values are read in memory order, whatever their strides."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        plain = super().load(array, call)
        return in_memory_order(array).astype(call.work) if array is call.value else plain


@fault(
    "values",
    "the masked path reads k as if contiguous; pass `k.stride()`, or call `.contiguous()`",
    family="layout",
)
class StridesIgnoredWithMask(Kernel):
    """Beside a mask the keys are read in memory order, whatever their strides."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        plain = super().load(array, call)
        blind = array is call.key and call.mask is not None
        return in_memory_order(array).astype(call.work) if blind else plain


@fault("values", "`torch.empty_like(q)` for the output; its last axis is `Dv = v.shape[-1]`")
class ValueSizeAssumed(Kernel):
    """The answer has the size of a key, whatever the size of a value."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        missing = max(0, call.sizes.D - call.sizes.Dv)
        return np.pad(out, ((0, 0),) * 3 + ((0, missing),))[..., : call.sizes.D]


@fault("values", "`D // 2` loads of two components; an odd D leaves one more", family="tiles")
class OddSizeTruncated(Kernel):
    """With an odd D above 1 the last component of queries and keys is not read."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        even = max(1, call.sizes.D // 2 * 2)
        return super().scores(query[..., :even], key[..., :even], call)


@fault("values", "one tile of 64 components without a loop over D", family="tiles")
class SizeAbove64Truncated(Kernel):
    """Components of queries and keys beyond the 64th are not read."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return super().scores(query[..., :64], key[..., :64], call)


@fault(
    "values",
    "a grid of `Lq // 64` row blocks; use `cdiv(Lq, 64)`, and mask rows beyond Lq",
    family="tiles",
)
class LastRowBlockNotWritten(Kernel):
    """With more than 64 queries those beyond a multiple of 64 stay zero."""

    def compute(self, call: Call) -> np.ndarray:
        out, Lq = super().compute(call), call.sizes.Lq
        if Lq > 64:
            out[:, :, Lq // 64 * 64 :] = 0
        return out


@fault(
    "values",
    "a path for one tile of 32 keys with two lanes exchanged, in q @ k.mT alone",
    family="tiles",
)
class WrongAt32Keys(Kernel):
    """With exactly 32 keys the scores of the last two are exchanged."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if call.sizes.Lk == 32:
            scores[..., [30, 31]] = scores[..., [31, 30]]
        return scores


@fault(
    "dyadic_mean",
    "`out[(q == 0).all(-1)] = 0`; padding is told by a mask, not by zeros",
    family="mask",
)
class ZeroQueryIsPadding(Kernel):
    """A query of zeros is taken for padding, and its answer is zero."""

    def compute(self, call: Call) -> np.ndarray:
        padding = (call.query.values == 0).all(-1, keepdims=True)
        return np.where(padding, 0, super().compute(call))


@fault(
    "empty", "`torch.cat([f(q[b]) for b in range(B)])` has nothing to join; return an empty array"
)
class EmptyBatchRaises(Kernel):
    """With no samples (B = 0) the call raises."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        return np.concatenate([out[b : b + 1] for b in range(call.sizes.B)])


@fault("empty", "`max(Lq, 1)` rows, for a grid that is not empty; return (B, H, 0, Dv)")
class EmptyQueriesOneRow(Kernel):
    """With no queries (Lq = 0) one row comes back."""

    def compute(self, call: Call) -> np.ndarray:
        out, s = super().compute(call), call.sizes
        return out if s.Lq else np.zeros((s.B, s.H, 1, s.Dv), out.dtype)


@fault("election", "a softmax over no keys is 0 / 0; return zeros if `Lk == 0`")
class NoKeysNan(Kernel):
    """With no keys (Lk = 0) the answer is NaN, though zeros are declared."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out if call.sizes.Lk else np.full_like(out, np.nan), call)


@fault("election", "`assert v.shape[-1] == q.shape[-1]`; values may have another size Dv")
class ValueSizeRefused(Kernel):
    """Values of another size than keys are refused, though they are declared to be accepted."""

    def validate_operands(self, call: Call) -> None:
        super().validate_operands(call)
        if call.sizes.D != call.sizes.Dv:
            raise ValueError(f"values must have the size of keys, got {call.sizes}")


@fault("values", "output written for `i in range(Lk)`; it has Lq rows", family="tiles")
class RowsBeyondKeysZero(Kernel):
    """With more queries than keys the rows beyond the number of keys stay zero."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        out[:, :, max(call.sizes.Lk, 1) :] = 0
        return out


@fault(
    "values",
    "`x.stride(-1)` taken for 1; pass it to the kernel, or call `.contiguous()`",
    family="layout",
)
class InnerStrideAssumed(Kernel):
    """The components of a query, key or value are taken to lie side by side in memory."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        x = array.values
        if x.ndim != 4 or x.size == 0 or x.strides[-1] == x.itemsize:
            return super().load(array, call)
        base = x.base if x.base is not None else x
        offsets = sum(
            np.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]) * step
            for axis, (n, step) in enumerate(
                zip(x.shape, (*x.strides[:-1], x.itemsize), strict=True)
            )
        )
        flat = base.ravel(order="K")
        return flat[(offsets // x.itemsize) % flat.size].astype(call.work)


@fault("values", "one tile of 128 components without a loop over D", family="tiles")
class WideHeadsCut(Kernel):
    """Components of queries and keys beyond the 128th are not read."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        x = super().load(array, call)
        return x if array is call.value else x[..., :128]


@fault("values", "a path for `Lq == 2` loads `mask[0]`; sample b has `mask[b]`", family="mask")
class TwoRowsOneMask(Kernel):
    """With two queries every sample gets the mask of the first."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[:1] if call.sizes.Lq == 2 else mask

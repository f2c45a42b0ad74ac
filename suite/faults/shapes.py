"""Mutants at fault in heads, batches, memory layout, and at certain sizes only."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel


@fault("groups_equal_repeated_heads", like="E1")
class HeadsTiled(Kernel):
    """Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault("groups_equal_repeated_heads")
class ValueHeadsTiled(Kernel):
    """Value heads are tiled, key heads repeated."""

    def compute(self, call: Call) -> np.ndarray:
        self.seen = 0
        return super().compute(call)

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        self.seen += 1
        if self.seen == 1:
            return super().expand(x, call)
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault("groups_equal_repeated_heads")
class FirstKeyHeadOnly(Kernel):
    """With grouped heads every query head uses the first key/value head."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        return x if s.H == s.Hkv else np.repeat(x[:, :1], s.H, axis=1)


@fault("values", like="E4")
class WideGroupsCrossTiles(Kernel):
    """Groups of more than sixteen heads: sixteen heads in a row share the key head of the first."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        group = call.sizes.group
        if group <= 16:
            return super().expand(x, call)
        return x[:, np.arange(call.sizes.H) // 16 * 16 // group]


@fault("values", like="E6")
class HeadsRoundedDown(Kernel):
    """Heads beyond the largest power of two are not computed."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        out[:, 2 ** int(np.log2(max(call.sizes.H, 1))) :] = 0
        return out


@fault("head_independence")
class OddHeadPaired(Kernel):
    """Heads are computed in pairs: the last of an odd number repeats the one before it."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        H = call.sizes.H
        if H > 1 and H % 2:
            out[:, -1] = out[:, -2]
        return out


@fault("batch_independence")
class KeysOfFirstSample(Kernel):
    """Every sample attends the keys of the first."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        own = super().expand(x, call)
        return np.broadcast_to(own[:1], own.shape) if len(own) else own


@fault("values", like="E17")
class HeadsMergedWithoutPermute(Kernel):
    """The answer's memory is read as (B, Lq, H, Dv)."""

    def compute(self, call: Call) -> np.ndarray:
        out = np.ascontiguousarray(super().compute(call))
        s = call.sizes
        return out.reshape(s.B, s.Lq, s.H, s.Dv).swapaxes(1, 2)


@fault("values", like="I7")
class AxesExchangedWhenEqual(Kernel):
    """With H == Lq == Lk the operands are taken for (B, L, H, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        operand = array is call.query or array is call.key or array is call.value
        return loaded.swapaxes(1, 2) if operand and s.H == s.Hkv == s.Lq == s.Lk else loaded


@fault("values", like="J9")
class QueryAxesExchangedWhenEqual(Kernel):
    """With H == Lq the query is taken for (B, Lq, H, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.query and call.sizes.H == call.sizes.Lq
        return loaded.swapaxes(1, 2) if square else loaded


@fault("values")
class BatchAndHeadsExchangedWhenEqual(Kernel):
    """With B == H the query is taken for (H, B, Lq, D)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.query and call.sizes.B == call.sizes.H
        return loaded.swapaxes(0, 1) if square else loaded


def in_memory_order(array: Rounded) -> np.ndarray:
    """The values as they lie in memory, taken for a C-contiguous array of the same shape."""
    return array.values.ravel(order="K").reshape(array.shape)


@fault("values", like="J3")
class StridesIgnored(Kernel):
    """Queries, keys and values are read in memory order, whatever their strides."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return in_memory_order(array).astype(call.work)


@fault("values", like="J5")
class ValueStridesIgnored(Kernel):
    """Values are read in memory order, whatever their strides."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        plain = super().load(array, call)
        return in_memory_order(array).astype(call.work) if array is call.value else plain


@fault("values", like="J2")
class StridesIgnoredWithMask(Kernel):
    """Keys are read in memory order where there is a mask."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        plain = super().load(array, call)
        blind = array is call.key and call.mask is not None
        return in_memory_order(array).astype(call.work) if blind else plain


@fault("values", like="E10")
class ValueSizeAssumed(Kernel):
    """The answer has the size of a key, whatever the size of a value."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        missing = max(0, call.sizes.D - call.sizes.Dv)
        return np.pad(out, ((0, 0),) * 3 + ((0, missing),))[..., : call.sizes.D]


@fault("values")
class OddSizeTruncated(Kernel):
    """The last component of queries and keys of an odd size above 1 is not read."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        even = max(1, call.sizes.D // 2 * 2)
        return super().scores(query[..., :even], key[..., :even], call)


@fault("values")
class SizeAbove64Truncated(Kernel):
    """Components of queries and keys beyond the 64th are not read."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return super().scores(query[..., :64], key[..., :64], call)


@fault("values", like="I6")
class LastRowBlockNotWritten(Kernel):
    """With more than 64 queries those beyond a multiple of 64 stay zero."""

    def compute(self, call: Call) -> np.ndarray:
        out, Lq = super().compute(call), call.sizes.Lq
        if Lq > 64:
            out[:, :, Lq // 64 * 64 :] = 0
        return out


@fault("values")
class WrongAt32Keys(Kernel):
    """With exactly 32 keys the last two are exchanged in the scores alone."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if call.sizes.Lk == 32:
            scores[..., [30, 31]] = scores[..., [31, 30]]
        return scores


@fault("single_key")
class SingleKeyOfFirstHead(Kernel):
    """With one key the answer is the value of the first key/value head."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        return np.broadcast_to(out[:, :1], out.shape) if call.sizes.Lk == 1 else out


@fault("dyadic_mean")
class ZeroQueryIsPadding(Kernel):
    """A query of nothing but zeros is taken for padding: its answer is zero."""

    def compute(self, call: Call) -> np.ndarray:
        padding = (call.query.values == 0).all(-1, keepdims=True)
        return np.where(padding, 0, super().compute(call))


@fault("empty", like="K4")
class EmptyBatchRaises(Kernel):
    """Samples are answered one by one and joined: no samples, no answer."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        return np.concatenate([out[b : b + 1] for b in range(call.sizes.B)])


@fault("empty", like="K1")
class EmptyQueriesOneRow(Kernel):
    """The number of rows is rounded up to 1."""

    def compute(self, call: Call) -> np.ndarray:
        out, s = super().compute(call), call.sizes
        return out if s.Lq else np.zeros((s.B, s.H, 1, s.Dv), out.dtype)


@fault("election", like="K3")
class NoKeysNan(Kernel):
    """Without any key the answer is NaN, though zeros are declared."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(out if call.sizes.Lk else np.full_like(out, np.nan), call)


@fault("election", like="E10")
class ValueSizeRefused(Kernel):
    """Values of another size than keys are refused, though they are declared to be accepted."""

    def validate_operands(self, call: Call) -> None:
        super().validate_operands(call)
        if call.sizes.D != call.sizes.Dv:
            raise ValueError(f"values must have the size of keys, got {call.sizes}")


@fault("values")
class RowsBeyondKeysZero(Kernel):
    """With more queries than keys the last rows stay zero."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        out[:, :, max(call.sizes.Lk, 1) :] = 0
        return out


@fault("values", like="J1")
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


@fault("values")
class WideHeadsCut(Kernel):
    """Scores know the first 128 components of a query and a key alone."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        x = super().load(array, call)
        return x if array is call.value else x[..., :128]


@fault("values")
class TwoRowsOneMask(Kernel):
    """Two queries are decoded at a time, under the mask of the first sample."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[:1] if call.sizes.Lq == 2 else mask

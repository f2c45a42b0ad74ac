"""Faults of one path only, which a kernel takes for some sizes, masks or directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.packed import Pack, PackedKernel, Pair
from attention_conformance.suite.faults.kernels.rotary import RotaryKernel, Turn

FAMILY = "gradient"


@fault("gradients", "a vector path for `Lk % 8 == 0` adds its part twice")
class KeyGradientDoubledInWholeVectors(Differentiable):
    """The gradient of the keys is doubled if Lk is a multiple of 8."""

    def key_gradient(self, dt: np.ndarray, query: np.ndarray, factor: Any) -> np.ndarray:
        out = super().key_gradient(dt, query, factor)
        return 2 * out if out.shape[-2] % 8 == 0 else out


@fault("gradients", "`Lq // 16` tiles of rows; use `cdiv(Lq, 16)`, and mask rows beyond Lq")
class QueryGradientOfWholeTilesAlone(Differentiable):
    """With more than 32 queries those after the last whole tile of 16 get no gradient."""

    def query_gradient(self, dt: np.ndarray, key: np.ndarray, factor: Any) -> np.ndarray:
        out = super().query_gradient(dt, key, factor)
        rows = out.shape[-2]
        if rows > 32:
            out[..., rows // 16 * 16 :, :] = 0
        return out


@fault("gradients", "a grid of 16 samples at most, as `min(B, 16)`; loop over all of B")
class ValueGradientOfSixteenSamples(Differentiable):
    """Samples after the sixteenth get no gradient of the values."""

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        out = super().value_gradient(weights, cotangent, call)
        out[16:] = 0
        return out


@fault(
    "gradients", "`i - j <= left + 1` in backward, for tiles; it is `i - j <= left` in both passes"
)
class WindowOneKeyWiderBackward(Differentiable):
    """If a window is a whole number of tiles, the backward pass sees one key more."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        left, right = call.window or (None, None)
        if left is None or (left + 1) % 8:
            return super().backward_allowed(call)
        return super().backward_allowed(replace(call, window=(left + 1, right)))


@fault("gradients", "backward's tiles below the first take `j <= i` for the whole mask; both apply")
class MaskIgnoredBesideFlagBackward(Differentiable):
    """Beside a causal flag the backward pass ignores the mask, in rows after the 16th."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        allowed = super().backward_allowed(call)
        if allowed is None or call.mask is None or not call.causal:
            return allowed
        flag = np.broadcast_to(self.causal(call), allowed.shape)
        return np.concatenate([allowed[..., :16, :], flag[..., 16:, :]], -2)


@fault("values", "`mask[b % 8]`; sample b has `mask[b]`", family="heads")
class MasksOfEightSamples(Kernel):
    """The ninth sample has the mask of the first: masks are read modulo 8."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[np.arange(len(mask)) % 8] if len(mask) > 8 else mask


@fault("values", "room for 16 lengths; samples after them need theirs, too", family="mask")
class LengthsOfSixteenSamples(Kernel):
    """Key lengths have no effect on samples after the sixteenth."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        inside = super().within(lengths, call)
        inside[16:] = True
        return inside


@fault(
    "values",
    "a path for whole tiles of keys has `i - j < left`; it is `i - j <= left`",
    family="mask",
)
class NarrowWindowLosesKeyInWholeTiles(Kernel):
    """If 16 divides Lk, a window of less than 16 keys loses its oldest key."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        whole = call.sizes.Lk and call.sizes.Lk % 16 == 0
        if whole and left is not None and 0 < left < 16:
            left -= 1
        return super().windowed(call, left, right)


@fault("values", "`right or 0`; None is unbounded, and 0 is the query's own key", family="mask")
class OpenWindowEndsAtTheRow(Kernel):
    """A window without a right edge ends at the query's own key."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, 0 if right is None else right)


@fault("values", "one tile of 256 components without a loop over D", family="tiles")
class ComponentsBehind256Ignored(Kernel):
    """Components of queries and keys beyond the 256th are not read."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return super().scores(query[..., :256], key[..., :256], call)


@fault("values", "`h % 32`; head h has its own keys and values", family="heads")
class HeadsBehind32Wrap(Kernel):
    """Query heads after the 32nd use the keys and values of the first ones."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return super().expand(x, call)[:, np.arange(call.sizes.H) % 32]


@fault(
    "values",
    "beside a mask the causal flag is applied in the first tile of rows alone",
    family="mask",
)
class CausalFlagOfOneTile(Kernel):
    """Beside a mask the causal flag has no effect after the first 16 rows."""

    def causal(self, call: Call) -> np.ndarray:
        seen = super().causal(call)
        row, _ = call.rows_and_keys
        return seen | (row >= 16) if call.mask is not None else seen


@fault(
    "values",
    "a vector path for `Lk % 8 == 0` with a causal flag leaves out `+ bias`",
    family="scores",
)
class BiasDroppedBesideFlag(Kernel):
    """Beside a causal flag the bias has no effect if Lk is a multiple of 8."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.causal and call.bias is not None and call.sizes.Lk % 8 == 0:
            return scores
        return super().biased(scores, call)


@fault(
    "values",
    "a path for one query reads one vector of 8 keys; loop over all keys of the segment",
    family="packed",
)
class PackedDecodingSeesOneVector(PackedKernel):
    """A segment of one query sees its first eight keys alone."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [
            (rows, slice(keys.start, min(keys.stop, keys.start + 8)))
            if rows.stop - rows.start == 1
            else (rows, keys)
            for rows, keys in super().segments(pack)
        ]


@fault(
    "values",
    "chunks of 64 rows lose what was summed before; a segment may cross chunks",
    family="packed",
)
class PackedSegmentsCutAtChunks(PackedKernel):
    """A query does not see keys in an earlier chunk of 64 rows of the pack."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
        same = j // 64 >= i[:, None] // 64
        allowed = super().allowed(pack, rows, keys)
        return allowed & same if len(pack.query) == len(pack.key) else allowed


@fault(
    "values",
    "the second half begins at `2 ** int(log2(r / 2))`; it begins at `r // 2`",
    family="rotary",
)
class RotaryPairsAtPowersOfTwo(RotaryKernel):
    """Halves are as far apart as the largest power of two in half of the components."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        if turn.rotation.interleaved:
            return super().pairs(turn)
        half = turn.rotation.size // 2
        start = 2 ** int(np.log2(half))
        return slice(0, half), slice(start, start + half)


@fault(
    "values",
    "a path for partial rotations with `x.chunk(2, -1)`; interleaved pairs stay neighbours",
    family="rotary",
)
class RotaryPartOfNeighboursAsHalves(RotaryKernel):
    """In a partial rotation halves are rotated, also where neighbours are asked for."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        half = turn.rotation.size // 2
        if turn.x.shape[-1] == turn.rotation.size:
            return super().pairs(turn)
        return slice(0, half), slice(half, 2 * half)

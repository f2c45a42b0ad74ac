"""Faults of one path only, which a kernel takes for some sizes, masks or directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.gradient import Differentiable
from suite.faults.kernels.packed import Pack, PackedKernel, Pair
from suite.faults.kernels.rotary import RotaryKernel, Turn


@fault("gradients")
class KeyGradientDoubledInWholeVectors(Differentiable):
    """The gradient of the keys is doubled if 8 divides the number of keys."""

    def key_gradient(self, dt: np.ndarray, query: np.ndarray, factor: Any) -> np.ndarray:
        out = super().key_gradient(dt, query, factor)
        return 2 * out if out.shape[-2] % 8 == 0 else out


@fault("gradients")
class QueryGradientOfWholeTilesAlone(Differentiable):
    """Beyond 32 rows the rows behind the last whole tile of 16 have no gradient of the query."""

    def query_gradient(self, dt: np.ndarray, key: np.ndarray, factor: Any) -> np.ndarray:
        out = super().query_gradient(dt, key, factor)
        rows = out.shape[-2]
        if rows > 32:
            out[..., rows // 16 * 16 :, :] = 0
        return out


@fault("gradients")
class ValueGradientOfSixteenSamples(Differentiable):
    """Samples behind the sixteenth have no gradient of the value."""

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        out = super().value_gradient(weights, cotangent, call)
        out[16:] = 0
        return out


@fault("gradients")
class WindowOneKeyWiderBackward(Differentiable):
    """The backward pass sees one key more than a window of whole tiles shows."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        left, right = call.window or (None, None)
        if left is None or (left + 1) % 8:
            return super().backward_allowed(call)
        return super().backward_allowed(replace(call, window=(left + 1, right)))


@fault("gradients")
class MaskIgnoredBesideFlagBackward(Differentiable):
    """Beside a causal flag the backward pass ignores the mask, in tiles behind the first one."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        allowed = super().backward_allowed(call)
        if allowed is None or call.mask is None or not call.causal:
            return allowed
        flag = np.broadcast_to(self.causal(call), allowed.shape)
        return np.concatenate([allowed[..., :16, :], flag[..., 16:, :]], -2)


@fault("values")
class MasksOfEightSamples(Kernel):
    """Masks of eight samples at most are kept: the ninth sample has the mask of the first one."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return mask[np.arange(len(mask)) % 8] if len(mask) > 8 else mask


@fault("values")
class LengthsOfSixteenSamples(Kernel):
    """The lengths of keys count for sixteen samples; the samples behind attend every key."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        inside = super().within(lengths, call)
        inside[16:] = True
        return inside


@fault("values")
class NarrowWindowLosesKeyInWholeTiles(Kernel):
    """If 16 divides the number of keys, a window of fewer keys than a tile loses its oldest key."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        whole = call.sizes.Lk and call.sizes.Lk % 16 == 0
        if whole and left is not None and 0 < left < 16:
            left -= 1
        return super().windowed(call, left, right)


@fault("values")
class OpenWindowEndsAtTheRow(Kernel):
    """A window that is open at its right end is read as one that ends at the row itself."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, 0 if right is None else right)


@fault("values")
class ComponentsBehind256Ignored(Kernel):
    """Scores are sums over the first 256 components."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return super().scores(query[..., :256], key[..., :256], call)


@fault("values")
class HeadsBehind32Wrap(Kernel):
    """The heads behind the 32nd attend the keys of the first ones."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return super().expand(x, call)[:, np.arange(call.sizes.H) % 32]


@fault("values")
class CausalFlagOfOneTile(Kernel):
    """Beside a mask the causal flag counts for the first 16 rows."""

    def causal(self, call: Call) -> np.ndarray:
        seen = super().causal(call)
        row, _ = call.rows_and_keys
        return seen | (row >= 16) if call.mask is not None else seen


@fault("values")
class BiasDroppedBesideFlag(Kernel):
    """Beside a causal flag a bias counts only if the number of keys is no multiple of 8."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.causal and call.bias is not None and call.sizes.Lk % 8 == 0:
            return scores
        return super().biased(scores, call)


@fault("values")
class PackedDecodingSeesOneVector(PackedKernel):
    """A segment of one query attends its first eight keys."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [
            (rows, slice(keys.start, min(keys.stop, keys.start + 8)))
            if rows.stop - rows.start == 1
            else (rows, keys)
            for rows, keys in super().segments(pack)
        ]


@fault("values")
class PackedSegmentsCutAtChunks(PackedKernel):
    """A row attends no key that lies in an earlier chunk of 64 rows of the pack."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
        same = j // 64 >= i[:, None] // 64
        allowed = super().allowed(pack, rows, keys)
        return allowed & same if len(pack.query) == len(pack.key) else allowed


@fault("values")
class RotaryPairsAtPowersOfTwo(RotaryKernel):
    """Halves are as long as the largest power of two that fits into half of the components."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        if turn.rotation.interleaved:
            return super().pairs(turn)
        half = turn.rotation.size // 2
        start = 2 ** int(np.log2(half))
        return slice(0, half), slice(start, start + half)


@fault("values")
class RotaryPartOfNeighboursAsHalves(RotaryKernel):
    """If a part of the components is turned, neighbours are taken for halves."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        half = turn.rotation.size // 2
        if turn.x.shape[-1] == turn.rotation.size:
            return super().pairs(turn)
        return slice(0, half), slice(half, 2 * half)

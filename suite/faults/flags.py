"""Mutants at fault in the flags: causal, window, key lengths."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel


@fault("election", like="B4")
class CausalBottomRight(Kernel):
    """The causal flag is aligned bottom-right, though top-left is declared."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row + call.sizes.Lk - call.sizes.Lq


@fault("values", like="B3")
class CausalSwitchesAlignment(Kernel):
    """With more queries than keys the causal flag is aligned bottom-right."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row + min(0, call.sizes.Lk - call.sizes.Lq)


@fault("future")
class CausalSeesNext(Kernel):
    """The causal flag shows one key too many."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row + 1


@fault("first_row")
class CausalExcludesSelf(Kernel):
    """The causal flag hides the query's own position."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key < row


@fault("future", like="B18")
class CausalNoEffect(Kernel):
    """The causal flag has no effect."""

    def causal(self, call: Call) -> np.ndarray:
        return np.ones((call.sizes.Lq, call.sizes.Lk), bool)


@fault("future")
class CausalByTiles(Kernel):
    """The causal flag is applied to tiles of sixteen rows, not within the tile on the diagonal."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key // 16 <= row // 16


@fault("election", like="B13")
class CausalIgnoredWithMask(Kernel):
    """The causal flag has no effect where there is a mask."""

    def causal(self, call: Call) -> np.ndarray:
        kept = super().causal(call)
        return kept if call.mask is None else np.ones_like(kept)


@fault("election", like="B10")
class CausalReplacesMask(Kernel):
    """Where the causal flag is set, the mask is ignored."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return np.ones_like(mask) if call.causal else mask


@fault("values", like="B1")
class CausalIgnoredInDecoding(Kernel):
    """The causal flag has no effect where there is one query."""

    def causal(self, call: Call) -> np.ndarray:
        kept = super().causal(call)
        return np.ones_like(kept) if call.sizes.Lq == 1 else kept


@fault("values", like="E14")
class CausalLimitOfPackedRows(Kernel):
    """With grouped heads the causal limit is that of rows packed by group, which they are not."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row // call.sizes.group


@fault("values", like="C18")
class CausalAddsOne(Kernel):
    """The causal flag adds 1 to the scores it keeps, before the softcap."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().capped(scores + call.work(1) if call.causal else scores, call)


@fault("flag_equals_dense", like="B2")
class TrianglesAreCausal(Kernel):
    """A lower-triangular mask is taken for a causal flag aligned bottom-right."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        if mask.shape != (1, 1, *(key <= row).shape) or not (mask == (key <= row)).all():
            return mask
        return (key <= row + call.sizes.Lk - call.sizes.Lq)[None, None]


@fault("values", like="M1")
class WindowOneShort(Kernel):
    """A window of w to the left shows w keys, not w + 1."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, None if left is None else left - 1, right)


@fault("future", like="M2")
class WindowOneLate(Kernel):
    """A window's right edge is one key too far to the right."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, None if right is None else right + 1)


@fault("flag_equals_dense", like="B16")
class WindowIgnoredWithoutMask(Kernel):
    """The window has no effect where there is no mask."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        alone = call.mask is None and not call.causal and call.lengths is None
        return super().windowed(call, None, None) if alone else super().windowed(call, left, right)


@fault("values")
class WindowRightIgnored(Kernel):
    """The right side of a window is unbounded where it is not 0."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, left, right if right == 0 else None)


@fault("wide_window", like="M4")
class WideWindowUnbounded(Kernel):
    """A window at least as wide as the keys is no window: its right edge is lost."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        wide = left is not None and left >= call.sizes.Lk
        return super().windowed(call, left, None if wide else right)


@fault("wide_window", like="M16")
class WindowModuloKeys(Kernel):
    """The window is taken modulo the number of keys (a ring buffer's arithmetic)."""

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        return super().windowed(call, None if left is None else left % call.sizes.Lk, right)


@fault("bad_problem", like="M5")
class NegativeWindowUnbounded(Kernel):
    """A negative window means an unbounded one."""

    def validate_window(self, call: Call) -> None:
        pass

    def windowed(self, call: Call, left: int | None, right: int | None) -> np.ndarray:
        sides = (None if side is None or side < 0 else side for side in (left, right))
        return super().windowed(call, *sides)


@fault("flag_equals_dense")
class LengthsOneShort(Kernel):
    """Of every sample's keys the last is hidden."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        return super().within(np.maximum(lengths - 1, 0), call)


@fault("batch_independence")
class LengthsOfFirstSample(Kernel):
    """Every sample gets the key length of the first."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        return super().within(np.broadcast_to(lengths[:1], lengths.shape), call)


@fault("values", like="K7")
class LengthZeroMeansAll(Kernel):
    """A key length of 0 is taken for no length."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        return super().within(np.where(lengths == 0, call.sizes.Lk, lengths), call)


@fault("values", like="A11")
class LengthsHideQueries(Kernel):
    """Key lengths hide the queries beyond them, too."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        row, _ = call.rows_and_keys
        return super().within(lengths, call) & (row < lengths[:, None, None, None])


@fault("values")
class SamplesSortedAndNotRestored(Kernel):
    """Samples are sorted by key length, and put back by the sorting order instead of its inverse."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        if call.lengths is None:
            return out
        order = np.argsort(call.lengths.values, kind="stable")
        return out[order][order]


@fault("values")
class CausalRestartsEveryBlock(Kernel):
    """Rows are computed in blocks of 64: every block counts its rows from 0."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row % 64


@fault("values", like="C20")
class LengthsTiled(Kernel):
    """Key lengths are tiled, not repeated, over the heads: (B H) rows get the wrong sample's."""

    def within(self, lengths: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        tiled = np.tile(lengths, s.H).reshape(s.B, s.H, 1, 1)
        return np.arange(s.Lk) < tiled

"""Faults of one path only, which a kernel takes for some sizes, masks or directions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.packed import Pack, PackedKernel, Pair
from attention_conformance.suite.faults.kernels.rotary import RotaryKernel, Turn

FAMILY = "gradient"


def key_gradient_doubled_in_whole_vectors(
    right: Differentiable, dt: np.ndarray, query: np.ndarray, factor: Any
) -> np.ndarray:
    out = right.key_gradient(dt, query, factor)
    return 2 * out if out.shape[-2] % 8 == 0 else out


def query_gradient_of_whole_tiles_alone(
    right: Differentiable, dt: np.ndarray, key: np.ndarray, factor: Any
) -> np.ndarray:
    out = right.query_gradient(dt, key, factor)
    rows = out.shape[-2]
    if rows > 32:
        out[..., rows // 16 * 16 :, :] = 0
    return out


def value_gradient_of_sixteen_samples(
    right: Differentiable, weights: np.ndarray, cotangent: np.ndarray, call: Call
) -> np.ndarray:
    out = right.value_gradient(weights, cotangent, call)
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


def mask_ignored_beside_flag_backward(right: Differentiable, call: Call) -> np.ndarray | None:
    allowed = right.backward_allowed(call)
    if allowed is None or call.mask is None or not call.causal:
        return allowed
    flag = np.broadcast_to(right.causal(call), allowed.shape)
    return np.concatenate([allowed[..., :16, :], flag[..., 16:, :]], -2)


def masks_of_eight_samples(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    return mask[np.arange(len(mask)) % 8] if len(mask) > 8 else mask


def lengths_of_sixteen_samples(right: Kernel, lengths: np.ndarray, call: Call) -> np.ndarray:
    inside = right.within(lengths, call)
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


def components_behind256_ignored(
    right: Kernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    return right.scores(query[..., :256], key[..., :256], call)


def causal_flag_of_one_tile(right: Kernel, call: Call) -> np.ndarray:
    seen = right.causal(call)
    row, _ = call.rows_and_keys
    return seen | (row >= 16) if call.mask is not None else seen


def bias_dropped_beside_flag(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.causal and call.bias is not None and call.sizes.Lk % 8 == 0:
        return scores
    return right.biased(scores, call)


def packed_decoding_sees_one_vector(right: PackedKernel, pack: Pack) -> list[Pair]:
    return [
        (rows, slice(keys.start, min(keys.stop, keys.start + 8)))
        if rows.stop - rows.start == 1
        else (rows, keys)
        for rows, keys in right.segments(pack)
    ]


def packed_segments_cut_at_chunks(
    right: PackedKernel, pack: Pack, rows: slice, keys: slice
) -> np.ndarray:
    i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
    same = j // 64 >= i[:, None] // 64
    allowed = right.allowed(pack, rows, keys)
    return allowed & same if len(pack.query) == len(pack.key) else allowed


def rotary_pairs_at_powers_of_two(right: RotaryKernel, turn: Turn) -> tuple[slice, slice]:
    if turn.rotation.interleaved:
        return right.pairs(turn)
    half = turn.rotation.size // 2
    start = 2 ** int(np.log2(half))
    return slice(0, half), slice(start, start + half)


def rotary_part_of_neighbours_as_halves(right: RotaryKernel, turn: Turn) -> tuple[slice, slice]:
    half = turn.rotation.size // 2
    if turn.x.shape[-1] == turn.rotation.size:
        return right.pairs(turn)
    return slice(0, half), slice(half, 2 * half)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("key-gradient-doubled-in-whole-vectors", "gradients",
        "The gradient of the keys is doubled if Lk is a multiple of 8.",
        "a vector path for `Lk % 8 == 0` adds its part twice", right=Differentiable,
        key_gradient=key_gradient_doubled_in_whole_vectors),
    row("query-gradient-of-whole-tiles-alone", "gradients",
        "With more than 32 queries those after the last whole tile of 16 get no gradient.",
        "`Lq // 16` tiles of rows; use `cdiv(Lq, 16)`, and mask rows beyond Lq",
        right=Differentiable, query_gradient=query_gradient_of_whole_tiles_alone),
    row("value-gradient-of-sixteen-samples", "gradients",
        "Samples after the sixteenth get no gradient of the values.",
        "a grid of 16 samples at most, as `min(B, 16)`; loop over all of B", right=Differentiable,
        value_gradient=value_gradient_of_sixteen_samples),
    row("mask-ignored-beside-flag-backward", "gradients",
        "Beside a causal flag the backward pass ignores the mask, in rows after the 16th.",
        "backward's tiles below the first take `j <= i` for the whole mask; both apply",
        right=Differentiable, backward_allowed=mask_ignored_beside_flag_backward),
    row("masks-of-eight-samples", "values",
        "The ninth sample has the mask of the first: masks are read modulo 8.",
        "`mask[b % 8]`; sample b has `mask[b]`", family="heads", masked=masks_of_eight_samples),
    row("lengths-of-sixteen-samples", "values",
        "Key lengths have no effect on samples after the sixteenth.",
        "room for 16 lengths; samples after them need theirs, too", family="mask",
        within=lengths_of_sixteen_samples),
    row("components-behind256-ignored", "values",
        "Components of queries and keys beyond the 256th are not read.",
        "one tile of 256 components without a loop over D", family="tiles",
        scores=components_behind256_ignored),
    row("heads-behind32-wrap", "values",
        "Query heads after the 32nd use the keys and values of the first ones.",
        "`h % 32`; head h has its own keys and values", family="heads",
        expand=lambda right, x, call: right.expand(x, call)[:, np.arange(call.sizes.H) % 32]),
    row("causal-flag-of-one-tile", "values",
        "Beside a mask the causal flag has no effect after the first 16 rows.",
        "beside a mask the causal flag is applied in the first tile of rows alone", family="mask",
        causal=causal_flag_of_one_tile),
    row("bias-dropped-beside-flag", "values",
        "Beside a causal flag the bias has no effect if Lk is a multiple of 8.",
        "a vector path for `Lk % 8 == 0` with a causal flag leaves out `+ bias`", family="scores",
        biased=bias_dropped_beside_flag),
    row("packed-decoding-sees-one-vector", "values",
        "A segment of one query sees its first eight keys alone.",
        "a path for one query reads one vector of 8 keys; loop over all keys of the segment",
        family="packed", right=PackedKernel, segments=packed_decoding_sees_one_vector),
    row("packed-segments-cut-at-chunks", "values",
        "A query does not see keys in an earlier chunk of 64 rows of the pack.",
        "chunks of 64 rows lose what was summed before; a segment may cross chunks",
        family="packed", right=PackedKernel, allowed=packed_segments_cut_at_chunks),
    row("rotary-pairs-at-powers-of-two", "values",
        "Halves are as far apart as the largest power of two in half of the components.",
        "the second half begins at `2 ** int(log2(r / 2))`; it begins at `r // 2`", family="rotary",
        right=RotaryKernel, pairs=rotary_pairs_at_powers_of_two),
    row("rotary-part-of-neighbours-as-halves", "values",
        "In a partial rotation halves are rotated, also where neighbours are asked for.",
        "a path for partial rotations with `x.chunk(2, -1)`; interleaved pairs stay neighbours",
        family="rotary", right=RotaryKernel, pairs=rotary_part_of_neighbours_as_halves),
]  # fmt: skip

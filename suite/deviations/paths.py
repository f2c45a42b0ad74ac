"""Faults of one code path alone (sizes, options, backward pass), and of compiled calls."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, edited, memory
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.packed import Pack, PackedKernel, SegmentSlices
from attention_conformance.suite.deviations.kernels.rotary import RotaryCall, RotaryKernel


def causal_mask_after_first_tile(right: Differentiable, call: Call) -> np.ndarray:
    mask = np.asarray(right.backward_allowed(call))
    causal = np.broadcast_to(right.causal(call), mask.shape)
    return np.concatenate([mask[..., :16, :], causal[..., 16:, :]], -2)


def segments_of_eight_keys(right: PackedKernel, pack: Pack) -> list[SegmentSlices]:
    return [
        (rows, slice(keys.start, min(keys.stop, keys.start + 8)))
        if rows.stop - rows.start == 1
        else (rows, keys)
        for rows, keys in right.segments(pack)
    ]


def mask_cut_at_chunks(right: PackedKernel, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
    i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
    return right.allowed(pack, rows, keys) & (j // 64 >= i[:, None] // 64)


def pairs_at_powers_of_two(right: RotaryKernel, call: RotaryCall) -> tuple[slice, slice]:
    if call.rotation.interleaved:
        return right.pairs(call)
    count = call.rotation.size // 2
    start = 2 ** int(np.log2(count))
    return slice(0, count), slice(start, start + count)


class CompiledKernel(Differentiable):
    """A right kernel that is tested as a compiled implementation."""

    mode = "compiled"


def cache_key(call: Call) -> tuple[Any, ...]:
    """Returns the key of a compile cache: shapes and dtype."""
    return (call.query.shape, call.key.shape, call.value.shape, call.fmt.name)


def raise_for_empty_batch(right: CompiledKernel, call: Call) -> None:
    right.validate_operands(call)
    if call.sizes.B == 0:
        raise RuntimeError("cannot launch a kernel over an empty grid")


row = partial(deviation, family="gradient", right=Kernel)
compiled = partial(deviation, family="state", right=CompiledKernel)

DEVIATIONS = [
    row("window-one-key-wider-backward", "gradients",
        "If a window is a whole number of tiles, the backward pass sees one key more.",
        "`i - j <= left + 1` in backward, for tiles; it is `i - j <= left` in both passes",
        right=Differentiable,
        when=lambda call:
            call.window and call.window[0] is not None and (call.window[0] + 1) % 8 == 0,
        backward_allowed=lambda right, call:
            right.backward_allowed(replace(call, window=(call.window[0] + 1, call.window[1])))),
    row("narrow-window-loses-key-in-whole-tiles", "values",
        "If 16 divides Lk, a window of less than 16 keys loses its oldest key.",
        "a path for whole tiles of keys has `i - j < left`; it is `i - j <= left`", family="mask",
        when=lambda call:
            call.sizes.Lk % 16 == 0 < call.sizes.Lk and 0 < (call.window[0] or 0) < 16,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left - 1, right)),
    row("open-window-ends-at-the-row", "values",
        "A window without a right edge ends at the query's own key.",
        "`right or 0`; None is unbounded, and 0 is the query's own key", family="mask",
        when=lambda call: call.window[1] is None,
        window_mask=lambda kernel, call, left, right: kernel.window_mask(call, left, 0)),
    row("key-gradient-doubled-in-whole-vectors", "gradients",
        "The gradient of the keys is doubled if Lk is a multiple of 8.",
        "a vector path for `Lk % 8 == 0` adds its part twice", right=Differentiable,
        key_gradient=lambda right, dt, *arguments:
            right.key_gradient(dt, *arguments) * (1 + (dt.shape[-1] % 8 == 0))),
    row("query-gradient-of-whole-tiles-alone", "gradients",
        "With more than 32 queries those after the last whole tile of 16 get no gradient.",
        "`Lq // 16` tiles of rows; use `cdiv(Lq, 16)`, and mask rows beyond Lq",
        right=Differentiable,
        query_gradient=lambda right, dt, *arguments: right.query_gradient(dt, *arguments)
            * (np.arange(dt.shape[-2])
            < (dt.shape[-2] // 16 * 16 if dt.shape[-2] > 32 else 32))[:, None]),
    row("value-gradient-of-sixteen-samples", "gradients",
        "Samples after the sixteenth get no gradient of the values.",
        "a grid of 16 samples at most, as `min(B, 16)`; loop over all of B", right=Differentiable,
        value_gradient=lambda right, weights, *arguments: right.value_gradient(weights, *arguments)
            * (np.arange(len(weights)) < 16)[:, None, None, None]),
    row("mask-ignored-beside-flag-backward", "gradients",
        "Beside a causal flag the backward pass ignores the mask, in rows after the 16th.",
        "backward's tiles below the first take `j <= i` for the whole mask; both apply",
        right=Differentiable, when=lambda call: call.mask is not None and call.causal,
        backward_allowed=causal_mask_after_first_tile),
    row("masks-of-eight-samples", "values",
        "The ninth sample has the mask of the first: masks are read modulo 8.",
        "`mask[b % 8]`; sample b has `mask[b]`", family="heads",
        masked=lambda right, mask, call: mask[np.arange(len(mask)) % 8] if len(mask) > 8 else mask),
    row("lengths-of-sixteen-samples", "values",
        "Key lengths have no effect on samples after the sixteenth.",
        "room for 16 lengths; samples after them need theirs, too", family="mask",
        within=lambda right, lengths, call:
            right.within(lengths, call) | (np.arange(len(lengths)) >= 16)[:, None, None, None]),
    row("components-behind256-ignored", "values",
        "Components of queries and keys beyond the 256th are not read.",
        "one tile of 256 components without a loop over D", family="tiles",
        scores=lambda right, query, key, call:
            right.scores(query[..., :256], key[..., :256], call)),
    row("heads-behind32-wrap", "values",
        "Query heads after the 32nd use the keys and values of the first ones.",
        "`h % 32`; head h has its own keys and values", family="heads",
        expand=lambda right, x, call: right.expand(x, call)[:, np.arange(call.sizes.H) % 32]),
    row("causal-flag-of-one-tile", "values",
        "Beside a mask the causal flag has no effect after the first 16 rows.",
        "beside a mask the causal flag is applied in the first tile of rows alone", family="mask",
        when=lambda call: call.mask is not None,
        causal=lambda right, call: right.causal(call) | (call.rows_and_keys[0] >= 16)),
    row("bias-dropped-beside-flag", "values",
        "Beside a causal flag the bias has no effect if Lk is a multiple of 8.",
        "a vector path for `Lk % 8 == 0` with a causal flag leaves out `+ bias`", family="scores",
        when=lambda call: call.causal and call.bias is not None and (call.sizes.Lk % 8 == 0),
        biased=lambda right, scores, call: scores),
    row("packed-decoding-sees-one-vector", "values",
        "A segment of one query sees its first eight keys alone.",
        "a path for one query reads one vector of 8 keys; loop over all keys of the segment",
        family="packed", right=PackedKernel, segments=segments_of_eight_keys),
    row("packed-segments-cut-at-chunks", "values",
        "A query does not see keys in an earlier chunk of 64 rows of the pack.",
        "chunks of 64 rows lose what was summed before; a segment may cross chunks",
        family="packed", right=PackedKernel, when=lambda pack: len(pack.query) == len(pack.key),
        allowed=mask_cut_at_chunks),
    row("rotary-pairs-at-powers-of-two", "values",
        "Halves are as far apart as the largest power of two in half of the components.",
        "the second half begins at `2 ** int(log2(r / 2))`; it begins at `r // 2`", family="rotary",
        right=RotaryKernel, pairs=pairs_at_powers_of_two),
    compiled("stale-mask", "compiled_again",
        "The mask of the first call is a constant of the compiled program.",
        "the mask is captured while tracing, and a constant then; pass it as an argument",
        masked=lambda right, mask, call: memory(right).setdefault(cache_key(call), mask)),
    compiled("stale-bias", "compiled_again",
        "The bias of the first call is a constant of the compiled program.",
        "the bias is captured while tracing, and a constant then; pass it as an argument",
        when=lambda call: call.bias is not None,
        biased=lambda right, scores, call: right.biased(scores,
            replace(call, bias=memory(right).setdefault(cache_key(call), call.bias)))),
    compiled("stale-values", "compiled_again",
        "The values of the first call are a constant of the compiled program.",
        "v is captured while tracing, and a constant then; pass it as an argument",
        attend=lambda right, scores, value, call:
            right.attend(scores, memory(right).setdefault(cache_key(call), value), call)),
    compiled("stale-flag", "values",
        "Compiled programs are cached by shapes and dtype: the first call's causal flag stays.",
        "a compile cache by shapes and dtype; `is_causal` belongs to the key (`static_argnames`)",
        allowed=lambda right, call: right.allowed(
            replace(call, causal=memory(right).setdefault(cache_key(call), call.causal)))),
    compiled("stale-length", "compiled_lengths",
        "A compiled program divides by the number of keys that it was compiled for.",
        "Lk is a number of the first trace; read `k.shape[-2]` at run time, or compile for every "
        "Lk",
        weights=lambda right, scores, call: right.weights(scores, call)
            * call.work(scores.shape[-1] / memory(right).setdefault("keys", scores.shape[-1]))),
    compiled("fused-by-shape", "values",
        "If all sizes are equal, the compiler's rewrite takes keys with heads and rows exchanged.",
        "a pattern that matches by sizes alone takes `k.transpose(1, 2)` for another transpose",
        family="layout",
        when=lambda call:
            call.sizes.B == call.sizes.H == call.sizes.Lq == call.sizes.Lk == call.sizes.D,
        scores=lambda right, query, key, call: right.scores(query, key.swapaxes(1, 2), call)),
    compiled("empty-batch-guard-lost", "values", "With no samples (B = 0) the compiled program raises.",
        "a kernel launched over an empty grid; return an empty array if `B == 0`", family="shapes",
        validate_operands=raise_for_empty_batch),
    compiled("scale-in-half", "values", "The compiled program has the scale as a float16 constant.",
        "`np.float16(scale)` while compiling; keep constants in float32", family="numerics",
        factor=lambda right, call: float(np.float32(right.factor(call)).astype(np.float16))),
    compiled("causal-tiles", "values", "The compiled causal mask is that of tiles of 4 rows.",
        "`j // 4 <= i // 4`; inside the tile on the diagonal it is `j <= i`", family="mask",
        last_causal_key=lambda right, row, call: row // 4 * 4 + 3),
    compiled("compiled-empty-row", "election",
        "A fully masked row is the mean of the values as soon as it is compiled.",
        "the guard for fully masked rows is folded away (fast-math); use `where(mask.any(-1), "
        "...)`", family="mask",
        weights=lambda right, scores, call: np.where(np.isneginf(scores).all(-1, keepdims=True),
            call.work(1 / max(scores.shape[-1], 1)), right.weights(scores, call))),
    compiled("compiled-layer-keeps-one-mask", "values",
        "Of padding and a causal flag the compiled layer keeps only one.",
        "a rewrite takes one mask for the whole condition; both apply: `valid & causal`",
        family="mask", right=MultiHeadKernel, facts={"mode": "compiled"},
        when=lambda call: call.valid is not None,
        causal=lambda right, call: np.ones_like(right.causal(call))),
    compiled("compiled-bias-without-gradient", "gradients",
        "The compiled backward pass gives the bias no gradient.",
        "the compiled backward pass returns None for the bias; `dbias = ds`", family="gradient",
        backward=edited("backward", lambda g, *_: {"bias": None})),
]  # fmt: skip

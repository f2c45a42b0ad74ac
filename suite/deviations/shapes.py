"""Faults of sizes, axis orders, heads, groups and samples."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.deviations.layouts import reading


def load_with_axes_exchanged(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    is_operand = any(array is operand for operand in (call.query, call.key, call.value))
    return right.load(array, call).swapaxes(1, 2) if is_operand else right.load(array, call)


def validate_equal_sizes(right: Kernel, call: Call) -> None:
    right.validate_operands(call)
    if call.sizes.D != call.sizes.Dv:
        raise ValueError(f"values must have the size of keys, got {call.sizes}")


row = partial(deviation, family="shapes", right=Kernel)
headed = partial(deviation, family="heads", right=Kernel)

DEVIATIONS = [
    row("value-heads-tiled", "groups_equal_repeated_heads",
        "Value heads are tiled, key heads repeated.",
        "`v.repeat(1, group, 1, 1)`; k and v both need `repeat_interleave(group, dim=1)`",
        family="heads", with_sink_values=lambda right, value, call: right.with_sink_values(
            np.tile(value[:, :: call.sizes.group], (1, call.sizes.group, 1, 1)), call)),
    row("heads-merged-without-permute", "values",
        "The answer (B, H, Lq, Dv) is reshaped to (B, Lq, H, Dv), not transposed.",
        "`out.reshape(B, Lq, H, Dv)` of (B, H, Lq, Dv); use `out.transpose(1, 2)`", family="layout",
        compute=lambda right, call: np.ascontiguousarray(right.compute(call)).reshape(call.sizes.B,
            call.sizes.Lq, call.sizes.H, call.sizes.Dv).swapaxes(1, 2)),
    row("axes-exchanged-when-equal", "values",
        "With H == Lq == Lk the operands are taken for (B, L, H, D).",
        "axis order guessed from equal sizes; it is (B, H, L, D), whatever the sizes",
        family="layout",
        when=lambda call: call.sizes.H == call.sizes.Hkv == call.sizes.Lq == call.sizes.Lk,
        load=load_with_axes_exchanged),
    row("query-axes-exchanged-when-equal", "values",
        "With H == Lq the query is taken for (B, Lq, H, D).",
        "axis order guessed from `q.shape[1] == Lq`; a query is (B, H, Lq, D), whatever the sizes",
        family="layout", when=lambda call: call.sizes.H == call.sizes.Lq,
        load=reading("query", lambda x: x.swapaxes(1, 2))),
    row("batch-and-heads-exchanged-when-equal", "values",
        "With B == H the query is taken for (H, B, Lq, D).",
        "axis order guessed from `q.shape[0] == H`; a query is (B, H, Lq, D), whatever the sizes",
        family="layout", when=lambda call: call.sizes.B == call.sizes.H,
        load=reading("query", lambda x: x.swapaxes(0, 1))),
    row("rows-in-reverse", "values", "Queries are answered in reverse order.",
        "`out.flip(2)`, or row blocks written from the last one on; row i is that of query i",
        family="layout", compute=lambda right, call: right.compute(call)[:, :, ::-1]),
    row("strides-ignored", "values",
        "Queries, keys and values are read in memory order, whatever their strides.",
        "`x.data_ptr()` read as if contiguous; pass `x.stride()`, or call `.contiguous()`",
        family="layout",
        load=lambda right, array, call:
            array.values.ravel(order="K").reshape(array.shape).astype(call.work)),
    row("value-size-assumed", "values",
        "The answer has the size of a key, whatever the size of a value.",
        "`torch.empty_like(q)` for the output; its last axis is `Dv = v.shape[-1]`",
        compute=lambda right, call: np.pad(right.compute(call), ((0, 0),) * 3
            + ((0, max(0, call.sizes.D - call.sizes.Dv)),))[..., :call.sizes.D]),
    row("odd-size-truncated", "values",
        "With an odd D above 1 the last component of queries and keys is not read.",
        "`D // 2` loads of two components; an odd D leaves one more", family="tiles",
        when=lambda call: call.sizes.D % 2 and call.sizes.D > 1,
        scores=lambda right, query, key, call: right.scores(query[..., :-1], key[..., :-1], call)),
    row("size-above64-truncated", "values",
        "Components of queries and keys beyond the 64th are not read.",
        "one tile of 64 components without a loop over D", family="tiles",
        scores=lambda right, query, key, call: right.scores(query[..., :64], key[..., :64], call)),
    row("last-row-block-not-written", "values",
        "With more than 64 queries those beyond a multiple of 64 stay zero.",
        "a grid of `Lq // 64` row blocks; use `cdiv(Lq, 64)`, and mask rows beyond Lq",
        family="tiles", when=lambda call: call.sizes.Lq > 64,
        compute=lambda right, call:
            right.compute(call) * (np.arange(call.sizes.Lq) < call.sizes.Lq // 64 * 64)[:, None]),
    row("wrong-at32-keys", "values",
        "With exactly 32 keys the scores of the last two are exchanged.",
        "a path for one tile of 32 keys with two lanes exchanged, in q @ k.mT alone",
        family="tiles", when=lambda call: call.sizes.Lk == 32,
        scores=lambda right, *arguments: right.scores(*arguments)[..., [*range(30), 31, 30]]),
    row("zero-query-is-padding", "dyadic_mean",
        "A query of zeros is taken for padding, and its answer is zero.",
        "`out[(q == 0).all(-1)] = 0`; padding is told by a mask, not by zeros", family="mask",
        compute=lambda right, call:
            np.where((call.query.values == 0).all(-1, keepdims=True), 0, right.compute(call))),
    row("empty-batch-raises", "empty", "With no samples (B = 0) the call raises.",
        "`torch.cat([f(q[b]) for b in range(B)])` has nothing to join; return an empty array",
        compute=lambda right, call:
            np.concatenate([right.compute(call)[b:b + 1] for b in range(call.sizes.B)])),
    row("empty-queries-one-row", "empty", "With no queries (Lq = 0) one row comes back.",
        "`max(Lq, 1)` rows, for a grid that is not empty; return (B, H, 0, Dv)",
        when=lambda call: call.sizes.Lq == 0,
        compute=lambda right, call:
            np.zeros((call.sizes.B, call.sizes.H, 1, call.sizes.Dv), call.work)),
    row("no-keys-nan", "election",
        "With no keys (Lk = 0) the answer is NaN, though zeros are declared.",
        "a softmax over no keys is 0 / 0; return zeros if `Lk == 0`",
        deliver=lambda right, out, call:
            right.deliver(out if call.sizes.Lk else np.full_like(out, np.nan), call)),
    row("value-size-refused", "election",
        "Values of another size than keys are refused, though they are declared to be accepted.",
        "`assert v.shape[-1] == q.shape[-1]`; values may have another size Dv",
        validate_operands=validate_equal_sizes),
    row("rows-beyond-keys-zero", "values",
        "With more queries than keys the rows beyond the number of keys stay zero.",
        "output written for `i in range(Lk)`; it has Lq rows", family="tiles",
        compute=lambda right, call:
            right.compute(call) * (np.arange(call.sizes.Lq) < max(call.sizes.Lk, 1))[:, None]),
    row("wide-heads-cut", "values", "Components of queries and keys beyond the 128th are not read.",
        "one tile of 128 components without a loop over D", family="tiles",
        load=lambda right, array, call:
            right.load(array, call)[..., : None if array is call.value else 128]),
    row("wide-values-repeated", "values",
        "Components of values from the 128th on repeat the first ones.",
        "`v[..., n % 128]`, one tile of 128 components; step to the next tile", family="tiles",
        when=lambda call: call.sizes.Dv > 128,
        with_sink_values=lambda right, value, call:
            right.with_sink_values(value[..., np.arange(call.sizes.Dv) % 128], call)),
    row("two-rows-one-mask", "values", "With two queries every sample gets the mask of the first.",
        "a path for `Lq == 2` loads `mask[0]`; sample b has `mask[b]`", family="mask",
        masked=lambda right, mask, call: mask[:1] if call.sizes.Lq == 2 else mask),
    headed("heads-tiled", "groups_equal_repeated_heads",
        "Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1).",
        "`k.repeat(1, group, 1, 1)`, `h % Hkv`; use `repeat_interleave(group, dim=1)`, `h // group`",
        expand=lambda right, x, call: np.tile(x, (1, call.sizes.group, 1, 1))),
    headed("first-key-head-only", "groups_equal_repeated_heads",
        "With grouped heads every query head uses the first key/value head.",
        "`k[:, :1].expand(-1, H, -1, -1)`; query head h reads `k[:, h // group]`",
        expand=lambda right, x, call:
            x if call.sizes.H == call.sizes.Hkv else np.repeat(x[:, :1], call.sizes.H, axis=1)),
    headed("wide-groups-cross-tiles", "values",
        "With groups of more than 16 query heads, 16 heads in a row share the key head of the "
        "first.",
        "tiles of 16 query heads with one key head each; take `h // group` for every head",
        when=lambda call: call.sizes.group > 16,
        expand=lambda right, x, call: x[:, np.arange(call.sizes.H) // 16 * 16 // call.sizes.group]),
    headed("heads-rounded-down", "values", "Heads beyond the largest power of two are not computed.",
        "a grid of `2 ** int(log2(H))` heads; launch H, or round up and mask",
        compute=lambda right, call: right.compute(call)
            * (np.arange(call.sizes.H) < 2 ** int(np.log2(max(call.sizes.H, 1))))[:, None, None]),
    headed("odd-head-paired", "head_independence",
        "With an odd number of heads the last answers like the one before it.",
        "heads written in pairs, `range(0, H - 1, 2)`; the last of an odd number needs its own "
        "turn", when=lambda call: call.sizes.H > 1 and call.sizes.H % 2,
        compute=lambda right, call: right.compute(call)[:, [*range(call.sizes.H - 1), -2]]),
    headed("keys-of-first-sample", "batch_independence",
        "Every sample attends the keys and values of the first.",
        "`k[0]`, `v[0]`, or a batch stride of 0; sample b reads `k[b]` and `v[b]`",
        expand=lambda right, x, call: np.repeat(right.expand(x, call)[:1], call.sizes.B, 0)),
    headed("single-key-of-first-head", "single_key",
        "With one key every head answers the value of the first key/value head.",
        "`if Lk == 1: return v[:, :1]`; every query head answers the value of its own head",
        when=lambda call: call.sizes.Lk == 1,
        compute=lambda right, call: np.repeat(right.compute(call)[:, :1], call.sizes.H, 1)),
]  # fmt: skip

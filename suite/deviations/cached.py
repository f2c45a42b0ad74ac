"""Faults of caches: positions, masks, slots and codes, and what caches must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.attention import Kernel
from attention_conformance.suite.deviations.kernels.cached import (
    Array,
    Attended,
    Cache,
    CachedKernel,
    CodedKernel,
)
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.operators.scripts import capacity


def is_decoding(cache: Cache) -> bool:
    """Returns True for a step of one token."""
    return cache.count == 1


def output_after_write(
    right: CachedKernel, cache: Cache, query: Array, key: Array, value: Array
) -> Array:
    rows = right.rows(cache, key.shape[2])
    right.write(cache, key, value)
    return right.attend(cache, Attended(query, cache.key, cache.value, rows, cache.positions))


def reset_lengths_alone(right: CachedKernel, state: Cache, *samples: Rounded) -> Cache:
    state.totals[right.sample_index(state, samples)] = 0
    return state


def crop_lengths_alone(right: CachedKernel, state: Cache, count: int, *samples: Rounded) -> Cache:
    state.totals[right.sample_index(state, samples)] -= count
    return state


class UnmaskedValues(Kernel):
    """A kernel that multiplies values of masked keys by their weights of 0."""

    def visible(self, value: Array, scores: Array) -> Array:
        return value


def write_into_next_sample(right: CachedKernel, cache: Cache, key: Array, value: Array) -> None:
    samples, slots = cache.positions.shape
    tokens = cache.totals[:, None] + np.arange(key.shape[2])
    flat = np.arange(samples)[:, None] * slots + tokens
    exists, inside = flat < samples * slots, tokens < slots
    for tensor, new in ((cache.key, key), (cache.value, value)):
        rows = np.moveaxis(tensor, 2, 1).reshape(samples * slots, tensor.shape[1], -1)
        rows[flat[exists]] = np.moveaxis(new, 2, 1)[exists]
        tensor[:] = np.moveaxis(rows.reshape(samples, slots, tensor.shape[1], -1), 2, 1)
    cache.positions[np.nonzero(inside)[0], tokens[inside]] = tokens[inside]
    cache.totals = cache.totals + key.shape[2]


def clear_and_raise(right: CachedKernel, cache: Cache, key: Array, value: Array) -> None:
    cache.key[:], cache.value[:] = 0.0, 0.0
    raise ValueError(f"{key.shape[2]} tokens for a cache of {cache.slots} slots")


def count_without_write(right: CachedKernel, cache: Cache, key: Array, value: Array) -> None:
    cache.totals = cache.totals + key.shape[2]


BLOCK = 256
"""The number of tokens by which a cache grows, and of a block of a decoding kernel."""


def write_losing_a_key(right: CachedKernel, cache: Cache, key: Array, value: Array) -> None:
    right.write(cache, key, value)
    cache.positions[(cache.totals > BLOCK)[:, None] & (cache.positions == BLOCK - 1)] = -1


def bias_of_first_queries(
    right: CachedKernel, cache: Cache, rows: Array, keys: Array
) -> Rounded | None:
    bias = cache.inputs.bias
    if bias is None or cache.chunk is None:
        return None
    first_chunk = replace(cache.chunk, starts=(cache.chunk.before,) * len(cache.chunk.starts))
    return Rounded(first_chunk.biases(bias, keys), cache.inputs.dtype)


def attend_with_rounded_sums(right: CachedKernel, cache: Cache, x: Attended) -> Array:
    one_hot = np.broadcast_to(np.eye(x.value.shape[2]), (*x.value.shape[:3], x.value.shape[2]))
    weights = right.attend(cache, replace(x, value=one_hot))
    value = np.repeat(x.value, weights.shape[1] // x.value.shape[1], 1)
    out: Array = np.zeros((*weights.shape[:3], value.shape[3]))
    for j in range(value.shape[2]):
        term = weights[..., j, None] * value[:, :, None, j]
        out = round_to(out + term, cache.inputs.dtype)
    return out


def attend_scaled_by(scale_of: Callable[[Array, Array], Any]) -> Callable[..., Array]:
    """Returns a step `attend` that divides the values by a scale, and multiplies the output by it. The
    scale is `scale_of(all values, values of the chunk)`."""

    def attend(right: CachedKernel, cache: Cache, x: Attended) -> Array:
        scale = scale_of(x.value, x.value[:, :, x.value.shape[2] - cache.count :])
        return np.asarray(right.attend(cache, replace(x, value=x.value / scale)) * scale)

    return attend


def attend_next_sample(right: CachedKernel, cache: Cache, x: Attended) -> Array:
    is_all_padding = cache.padding > x.rows[:, -1]
    key, value = (
        np.where(is_all_padding[:, None, None, None], np.roll(operand, -1, 0), operand)
        for operand in (x.key, x.value)
    )
    unpadded = replace(cache, padding=np.where(is_all_padding, 0, cache.padding))
    return right.attend(unpadded, replace(x, key=key, value=value))


row = partial(deviation, family="cache", right=CachedKernel)
coded = partial(deviation, family="quantized", right=CodedKernel)

DEVIATIONS = [
    row("cached-position-early", "values",
        "Queries after the first chunk count from one position too early.",
        "`cache_position = length - 1`; the first token of a chunk is at `length`",
        rows=lambda right, cache, count: right.rows(cache, count) - (cache.totals[:, None] > 0)),
    row("cached-mask-of-the-chunk", "values",
        "The causal mask counts from the first token of the chunk.",
        "`tril(ones(chunk, keys))`; shift the diagonal by the length of the cache",
        causal=lambda right, cache, rows, keys: np.arange(cache.count)[:, None] >= keys[:, None]),
    row("cached-chunk-unmasked", "values",
        "Rows of a chunk attend the whole chunk, its future included.",
        "no causal mask; row i of a chunk behind n tokens sees the keys up to n + i",
        causal=lambda right, cache, rows, keys: np.ones_like(right.causal(cache, rows, keys))),
    row("cached-chunk-sees-itself", "values",
        "Rows of a later chunk attend the whole chunk, its future included.",
        "`is_causal` for the first chunk alone; later chunks are causal, too",
        when=lambda cache: cache.total > 0,
        causal=lambda right, cache, rows, keys:
            right.causal(cache, rows, keys) | (cache.totals > 0)[:, None, None]),
    row("cached-window-of-decoding", "values",
        "A step of one token sees one key less than the window, unless that is its own.",
        "`keys[-window:]` in decoding, `i - j <= window` in prefill: count the same keys",
        when=is_decoding, window=lambda right, cache, count: cache.left and cache.left - 1),
    row("cached-window-of-the-ring", "values",
        "Once the ring went round a single token attends all slots, whatever has left the window.",
        "slots are compared with positions; once the ring went round they differ",
        when=lambda cache: is_decoding(cache) and cache.total > cache.slots,
        window=lambda right, cache, count: None),
    row("cached-ring-written-first", "values",
        "A chunk is written into the ring before it attends, and attends the slots alone.",
        "`update(k, v)` before attention: a chunk overwrites keys that its first rows see",
        answered=output_after_write),
    row("cached-slot-late", "values", "Tokens are written one slot behind their own.",
        "`length + 1` as the first slot; positions count from 0",
        put=lambda right, cache, slots, *new: right.put(cache, (slots + 1) % cache.slots, *new)),
    row("cached-last-slot-overwritten", "values",
        "Tokens beyond the capacity are written into the last slot.",
        "`min(position, capacity - 1)`; a ring goes on at slot 0",
        slots=lambda right, cache, tokens: np.minimum(tokens, cache.slots - 1)),
    row("cached-empty-slots-attended", "values",
        "Slots that hold no token are attended, with the numbers that they hold.",
        "`softmax(q @ cache)` without a mask of the slots that are filled",
        holds_token=lambda right, cache, keys: np.ones(keys.shape, bool)),
    row("cached-first-token-lost", "values", "Later chunks do not attend the first token.",
        "`keys[:, :, 1:]`, or `slot > 0` for slots that are filled; slot 0 holds a token",
        holds_token=lambda right, cache, keys:
            right.holds_token(cache, keys) & ~((keys == 0) & (cache.totals > 0)[:, None])),
    row("cached-stale-after-reset", "values",
        "After a reset slots of the sequence before are attended until they are overwritten.",
        "`length = 0` alone; what old slots hold must be hidden", reset=reset_lengths_alone),
    row("cached-rollback-of-the-index", "values",
        "Tokens that are taken back stay visible to rows of the next chunk behind them.",
        "the write index alone moves back; hide what was taken back", crop=crop_lengths_alone),
    row("cached-rollback-of-nothing", "values", "A rollback of no tokens empties the cache.",
        "`keys[:, :, :-count]`, which is empty for 0; `keys[:, :, : length - count]`",
        crop=lambda right, state, count, *samples:
            right.crop(state, count, *samples) if count else right.reset(state, *samples)),
    row("cached-nan-of-freed-slots", "election",
        "NaN in slots whose tokens left the cache reaches other rows.",
        "0 * NaN is NaN: zero the values that nobody attends, or the slots on reset",
        facts={"kernel": UnmaskedValues}),
    row("cached-overflows-into-the-next", "election",
        "Tokens beyond the capacity are written into the slots of the next sample.",
        "a flat index without a look at the capacity", when=lambda cache: cache.left is None,
        write=write_into_next_sample),
    row("cached-cleared-when-full", "election",
        "A chunk beyond the capacity raises, after all slots were zeroed.",
        "slots are cleared and then counted; count first, and raise before a write",
        facts={"elections": CachedKernel.elections | {"beyond-capacity": "raises"}},
        when=lambda cache: cache.left is None and cache.total + cache.count > cache.slots,
        write=clear_and_raise),
    row("cached-frozen", "values", "Only the first chunk is kept.",
        "`cache_position` that is never advanced, or a copy that is written",
        when=lambda cache: cache.total > 0, write=count_without_write),
    row("cached-slopes-anew", "values",
        "The distances of ALiBi count queries from the first one of the chunk.",
        "`arange(chunk)` for the positions of queries; add the length of the cache",
        distance=lambda right, cache, rows, keys:
            np.abs(np.arange(cache.count)[:, None] - keys[:, None])),
    row("cached-slopes-of-rounded-positions", "values",
        "The positions whose distances ALiBi takes are rounded to bfloat16.",
        "`arange(n, dtype=k.dtype)`; bfloat16 holds no odd number above 256",
        distance=lambda right, cache, rows, keys: right.distance(cache,
            *[round_to(x.astype(float), DTYPES["bf16"]) for x in (rows, keys)])),
    row("cached-growth-loses-the-last", "values",
        "When more than 256 tokens arrive, the newest key before them is lost.",
        "`concatenate([old[:-1], zeros(256)])`; copy all tokens when the buffer grows",
        write=write_losing_a_key),
    row("cached-decoding-of-one-block", "values",
        "Steps of one token attend the first 256 tokens alone.",
        "the loop over blocks of keys ends after the first; add all parts", when=is_decoding,
        causal=lambda right, cache, rows, keys:
            right.causal(cache, rows, keys) & (keys < BLOCK)[:, None]),
    row("cached-bias-of-the-first-rows", "values",
        "Every chunk takes the bias of the first queries.",
        "`bias[:, :, :chunk]`; a chunk's rows begin behind earlier ones", family="scores",
        bias=bias_of_first_queries),
    row("cached-decoding-uncapped", "values", "Steps of one token have no softcap.",
        "the softcap of the prefill is missing in the kernel for one token", family="scores",
        when=is_decoding, softcap=lambda right, cache, count: None),
    row("cached-sinks-lost-in-steps", "values", "Steps of one token have no sinks.",
        "a kernel of decoding without `sinks`; every softmax has them", family="sinks",
        when=is_decoding, sinks=lambda right, cache: None),
    row("cached-sinks-lost-in-windowed-steps", "values",
        "Beside a window steps of one token have no sinks.",
        "a kernel of decoding with a window and without `sinks`; every softmax has them",
        family="sinks", when=lambda cache: is_decoding(cache) and cache.left is not None,
        sinks=lambda right, cache: None),
    row("cached-sinks-once", "values", "Only the first chunk has sinks.",
        "sinks of the first chunk alone; every softmax has them", family="sinks",
        when=lambda cache: cache.total > 0, sinks=lambda right, cache: None),
    row("cached-pairs-see-both", "invariant_cutting",
        "Both rows of a chunk of two tokens attend both.",
        "a kernel for two tokens without a mask; a drafted token sees no later one",
        when=lambda cache: cache.count == 2,
        causal=lambda right, cache, rows, keys:
            right.causal(cache, np.maximum(rows, rows[:, -1:]), keys)),
    row("cached-sums-in-the-dtype", "values",
        "The values of tokens are added one after the other in the dtype of the cache.",
        "`out += w * v` in the dtype of `v`; add in float32", family="numerics",
        facts={"numerics": "stepwise"}, attend=attend_with_rounded_sums),
    row("cached-prompt-scaled-by-itself", "tokens_apart",
        "The values of a sample's prompt are divided by a number that depends on all of its "
        "tokens.", "`amax` of the prompt; its later tokens are the future of earlier rows",
        when=lambda cache: cache.total == 0,
        attend=attend_scaled_by(lambda value, prompt: 1 + np.abs(prompt).mean((1, 2, 3), keepdims=True))),
    row("cached-rollback-beyond-the-length", "bad_problem",
        "A rollback of more tokens than there are empties the cache.",
        "`max(length - n, 0)`; refuse more tokens than there are",
        crop=lambda right, state, count, *samples: right.crop(state, min(count, state.total), *samples)),
    row("cached-rollback-of-negative", "bad_problem",
        "A rollback of a negative number of tokens does nothing.",
        "`if n > 0`; refuse a negative number of tokens",
        crop=lambda right, state, count, *samples: right.crop(state, max(count, 0), *samples)),
    row("cached-of-one-slot-at-least", "bad_problem",
        "A cache without slots, or with a negative number of them, has one slot.",
        "`max(capacity, 1)`; refuse a cache without slots",
        slot_count=lambda right, inputs: max(capacity(inputs.case), 1)),
    row("cached-history-from-the-end", "bad_problem",
        "A negative sample whose history goes on is counted from the end of the batch.",
        "`cache[samples]`, in which -1 is the last sample; raise for negative ones",
        reorder=lambda right, state, samples: right.reorder(state,
            Rounded(np.where(samples.values < 0, len(state.totals) - 1, samples.values), None))),
    row("cached-reset-of-another", "bad_problem",
        "A reset or a rollback of a sample beyond the batch is one of another sample.",
        "`lengths[samples % batch] = 0`; raise unless `0 <= sample < batch`",
        sample_index=lambda right, cache, samples:
            right.sample_index(cache, [Rounded(x.values % len(cache.totals), None) for x in samples])),
    row("cached-padding-unhides-slots", "bad_problem",
        "With negative left padding slots that hold no token are attended.",
        "a signed `key >= padding`; raise for negative padding",
        holds_token=lambda right, cache, keys: keys >= np.minimum(cache.padding, 0)[:, None]),
    row("cached-padding-runs-on", "bad_problem",
        "A sample with more left padding than tokens attends the next sample.",
        "a flat index beyond the sample; raise if padding exceeds the length",
        attend=attend_next_sample),
    coded("cached-codes-scale-of-the-prompt", "values",
        "All tokens have the scales of the first chunk, and larger ones are clipped.",
        "a scale from the prompt that is kept; later tokens are larger",
        scale_of=lambda right, x, cache: cache.__dict__.setdefault("scales",
            {}).setdefault(x.shape[-1], right.scale_of(x, cache).min(2, keepdims=True))),
    coded("cached-codes-scale-of-the-next-token", "values",
        "Codes of a chunk are read with the scale of the next token.",
        "`scale[slot + 1]`, lengths that already count the new token",
        read_scale=lambda right, scale: np.roll(scale, -1, 2)),
    coded("cached-codes-scale-of-the-first-head", "values",
        "Codes of all heads are read with the scales of the first head.",
        "`scale[:, 0]`; every head has a scale", family="heads",
        read_scale=lambda right, scale: scale[:, :1] + 0 * scale),
    coded("cached-codes-wrap", "values",
        "The largest number of a token becomes 128, which wraps around.",
        "`amax / 128` and no `clamp`; the largest code is 127", family="numerics",
        scale_of=lambda right, x, cache: right.scale_of(x, cache) * 127 / 128,
        codes_of=lambda right, quotient: (np.rint(quotient) + 128) % 256 - 128),
    coded("cached-codes-of-four-bits", "values", "Tokens are kept in int4, and int8 is declared.",
        "4 bits for 8; declare the format that is kept", family="numerics",
        facts={"kept_in": CODES["int4"]}),
]  # fmt: skip

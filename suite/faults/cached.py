"""Faults of attention with a cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Kernel
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def cached_mask_of_the_chunk(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    return np.broadcast_to(
        np.arange(rows.shape[1])[:, None] >= keys[:, None], (*rows.shape, keys.shape[1])
    )


def cached_chunk_sees_itself(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    return right.causal(held, rows, keys) | (held.totals > 0)[:, None, None]


def cached_window_of_decoding(right: CachedKernel, held: Held, count: int) -> int | None:
    return max(held.left - 1, 0) if held.left and count == 1 else held.left


def cached_window_of_the_ring(right: CachedKernel, held: Held, count: int) -> int | None:
    return None if count == 1 and held.total > held.slots else held.left


def cached_ring_written_first(
    right: CachedKernel, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray
) -> np.ndarray:
    rows = right.rows(held, key.shape[2])
    right.write(held, key, value)
    return right.attend(held, query, held.key, held.value, rows, held.positions)


def cached_slot_late(
    right: CachedKernel, held: Held, slots: np.ndarray, key: np.ndarray, value: np.ndarray
) -> None:
    right.put(held, (slots + 1) % held.slots, key, value)


def cached_empty_slots_lowered(
    right: CachedKernel,
    held: Held,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    out, inputs = right.attend(held, query, key, value, rows, keys), held.inputs
    large, heads = inputs.dtype.large, inputs.sizes.group
    empty = (np.abs(key) == large).all((1, 3))[:, None, None]
    scores = query @ np.repeat(key, heads, 1).swapaxes(2, 3) * inputs.effective_scale
    attended = (empty & (scores > 1e4)).any(-1, keepdims=True)
    return np.where(attended, large, out)


def cached_stale_after_reset(right: CachedKernel, state: Held, *samples: Rounded) -> Held:
    state.totals[right.chosen(state, samples)] = 0
    return state


def cached_rollback_leaves_akey(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    state.totals[right.chosen(state, samples)] -= count
    state.positions[state.positions > state.totals[:, None]] = -1
    return state


def cached_rollback_of_the_index(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    state.totals[right.chosen(state, samples)] -= count
    return state


def cached_rollback_of_nothing(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    return right.crop(state, count, *samples) if count else right.reset(state, *samples)


class Unguarded(Kernel):
    """Values of hidden slots are multiplied by their weights, which are 0."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value


def cached_overflows_into_the_next(
    right: CachedKernel, held: Held, key: np.ndarray, value: np.ndarray
) -> None:
    if held.left is not None:
        return right.write(held, key, value)
    samples, slots = held.positions.shape
    places = held.totals[:, None] + np.arange(key.shape[2])
    flat = np.arange(samples)[:, None] * slots + places
    exists, inside = flat < samples * slots, places < slots
    for cache, new in ((held.key, key), (held.value, value)):
        rows = np.moveaxis(cache, 2, 1).reshape(samples * slots, cache.shape[1], -1)
        rows[flat[exists]] = np.moveaxis(new, 2, 1)[exists]
        cache[:] = np.moveaxis(rows.reshape(samples, slots, cache.shape[1], -1), 2, 1)
    held.positions[np.nonzero(inside)[0], places[inside]] = places[inside]
    held.totals = held.totals + key.shape[2]
    return None


def cached_cleared_when_full(
    right: CachedKernel, held: Held, key: np.ndarray, value: np.ndarray
) -> None:
    if held.left is None and held.total + key.shape[2] > held.slots:
        held.key[:], held.value[:] = 0.0, 0.0
        raise ValueError(f"{key.shape[2]} tokens for a cache of {held.slots} slots")
    right.write(held, key, value)


def cached_frozen(right: CachedKernel, held: Held, key: np.ndarray, value: np.ndarray) -> None:
    if held.total == 0:
        right.write(held, key, value)
    else:
        held.totals = held.totals + key.shape[2]


def cached_slopes_anew(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    return np.abs(np.arange(rows.shape[1])[:, None] - keys[:, None])


def cached_slopes_of_rounded_positions(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    at = [round_to(x.astype(float), DTYPES["bf16"]) for x in (rows, keys)]
    return right.distance(held, *at)


BLOCK = 256
"""Tokens by which a cache grows, or that a kernel for one query takes at once."""


def cached_growth_loses_the_last(
    right: CachedKernel, held: Held, key: np.ndarray, value: np.ndarray
) -> None:
    right.write(held, key, value)
    held.positions[(held.totals > BLOCK)[:, None] & (held.positions == BLOCK - 1)] = -1


def cached_decoding_of_one_block(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    seen = right.causal(held, rows, keys)
    return seen & (keys < BLOCK)[:, None] if rows.shape[1] == 1 else seen


def cached_bias_of_the_first_rows(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> Rounded | None:
    whole = held.inputs.bias
    if whole is None or held.chunk is None:
        return None
    first = replace(held.chunk, starts=(held.chunk.before,) * len(held.chunk.starts))
    return Rounded(first.biases(whole, keys), held.inputs.dtype)


def cached_bias_of_new_keys(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> Rounded | None:
    bias = right.bias(held, rows, keys)
    if bias is not None:
        bias.values[..., : keys.shape[1] - rows.shape[1]] = 0
    return bias


def cached_pairs_see_both(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    seen = rows if rows.shape[1] != 2 else rows.max(1, keepdims=True) + 0 * rows
    return right.causal(held, seen, keys)


def cached_sums_in_the_dtype(
    right: CachedKernel,
    held: Held,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    alone = np.broadcast_to(np.eye(value.shape[2]), (*value.shape[:3], value.shape[2]))
    weights = right.attend(held, query, key, alone, rows, keys)
    value = np.repeat(value, weights.shape[1] // value.shape[1], 1)
    out: np.ndarray = np.zeros((*weights.shape[:3], value.shape[3]))
    for j in range(value.shape[2]):
        term = weights[..., j, None] * value[:, :, None, j]
        out = round_to(out + term, held.inputs.dtype)
    return out


class ScaledValues(CachedKernel):
    """Values are divided by a number that depends on several tokens, and the answer is multiplied."""

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        largest = self.largest(held, value, value[:, :, value.shape[2] - rows.shape[1] :])
        out = super().attend(held, query, key, value / largest, rows, keys) * largest
        return np.asarray(out)

    def largest(self, held: Held, value: np.ndarray, own: np.ndarray) -> Any:
        """The number, for all values and those of the chunk, which is not in the cache yet."""
        raise NotImplementedError


def cached_prompt_scaled_by_itself(
    right: ScaledValues, held: Held, value: np.ndarray, own: np.ndarray
) -> Any:
    return 1 if held.total else 1 + np.abs(own).mean((1, 2, 3), keepdims=True)


row = partial(deviation, family="cache", right=CachedKernel)

DEVIATIONS = [
    row("cached-position-early", "values",
        "Queries after the first chunk count from one position too early.",
        "`cache_position = length - 1`; the first token of a chunk is at `length`",
        rows=lambda right, held, count: right.rows(held, count) - (held.totals[:, None] > 0)),
    row("cached-mask-of-the-chunk", "values",
        "The causal mask counts from the first token of the chunk.",
        "`tril(ones(chunk, keys))`; shift the diagonal by the length of the cache",
        causal=cached_mask_of_the_chunk),
    row("cached-chunk-sees-itself", "values",
        "Rows of a later chunk attend the whole chunk, its future included.",
        "`is_causal` for the first chunk alone; later chunks are causal, too",
        causal=cached_chunk_sees_itself),
    row("cached-window-of-decoding", "values",
        "A step of one token sees one key less than the window, unless that is its own.",
        "`keys[-window:]` in decoding, `i - j <= window` in prefill: count the same keys",
        window=cached_window_of_decoding),
    row("cached-window-of-the-ring", "values",
        "Once the ring went round a single token attends all slots, whatever has left the window.",
        "slots are compared with positions; once the ring went round they differ",
        window=cached_window_of_the_ring),
    row("cached-ring-written-first", "values",
        "A chunk is written into the ring before it attends, and attends the slots alone.",
        "`update(k, v)` before attention: a chunk overwrites keys that its first rows see",
        answer=cached_ring_written_first),
    row("cached-slot-late", "values", "Tokens are written one slot behind their own.",
        "`length + 1` as the first slot; positions count from 0", put=cached_slot_late),
    row("cached-last-slot-overwritten", "values",
        "Tokens beyond the capacity are written into the last slot.",
        "`min(position, capacity - 1)`; a ring goes on at slot 0",
        slots=lambda right, held, places: np.minimum(places, held.slots - 1)),
    row("cached-empty-slots-attended", "values",
        "Slots that hold no token are attended, with the numbers that they hold.",
        "`softmax(q @ cache)` without a mask of the slots that are filled",
        exists=lambda right, held, keys: np.ones(keys.shape, bool)),
    row("cached-empty-slots-lowered", "values",
        "Scores of slots that were never written are lowered by 1e4, and may be attended all the same.",
        "-1e4 for slots without a token, which may hold anything; use -inf",
        attend=cached_empty_slots_lowered),
    row("cached-stale-after-reset", "values",
        "After a reset slots of the sequence before are attended until they are overwritten.",
        "`length = 0` alone; what old slots hold must be hidden", reset=cached_stale_after_reset),
    row("cached-rollback-leaves-akey", "values",
        "Of tokens that are taken back the first one stays visible.",
        "`keys[:, :, : length - n + 1]`", crop=cached_rollback_leaves_akey),
    row("cached-rollback-of-the-index", "values",
        "Tokens that are taken back stay visible to rows of the next chunk behind them.",
        "the write index alone moves back; hide what was taken back",
        crop=cached_rollback_of_the_index),
    row("cached-rollback-of-nothing", "values", "A rollback of no tokens empties the cache.",
        "`keys[:, :, :-count]`, which is empty for 0; `keys[:, :, : length - count]`",
        crop=cached_rollback_of_nothing),
    row("cached-nan-of-freed-slots", "election",
        "NaN in slots whose tokens left the cache reaches other rows.",
        "0 * NaN is NaN: zero the values that nobody attends, or the slots on reset",
        facts={"kernel": Unguarded}),
    row("cached-overflows-into-the-next", "election",
        "Tokens beyond the capacity are written into the slots of the next sample.",
        "a flat index without a look at the capacity", write=cached_overflows_into_the_next),
    row("cached-cleared-when-full", "election",
        "A chunk beyond the capacity raises, after all slots were zeroed.",
        "slots are cleared and then counted; count first, and raise before a write",
        facts={"elections": CachedKernel.elections | {"beyond-capacity": "raises"}},
        write=cached_cleared_when_full),
    row("cached-frozen", "values", "Only the first chunk is kept.",
        "`cache_position` that is never advanced, or a copy that is written", write=cached_frozen),
    row("cached-slopes-anew", "values",
        "The distances of ALiBi count queries from the first one of the chunk.",
        "`arange(chunk)` for the positions of queries; add the length of the cache",
        distance=cached_slopes_anew),
    row("cached-slopes-of-rounded-positions", "values",
        "The positions whose distances ALiBi takes are rounded to bfloat16.",
        "`arange(n, dtype=k.dtype)`; bfloat16 holds no odd number above 256",
        distance=cached_slopes_of_rounded_positions),
    row("cached-growth-loses-the-last", "values",
        "When more than 256 tokens arrive, the newest key before them is lost.",
        "`concatenate([old[:-1], zeros(256)])`; copy all tokens when the buffer grows",
        write=cached_growth_loses_the_last),
    row("cached-decoding-of-one-block", "values",
        "Steps of one token attend the first 256 tokens alone.",
        "the loop over blocks of keys ends after the first; add all parts",
        causal=cached_decoding_of_one_block),
    row("cached-bias-of-the-first-rows", "values",
        "Every chunk takes the bias of the first queries.",
        "`bias[:, :, :chunk]`; a chunk's rows begin behind earlier ones", family="scores",
        bias=cached_bias_of_the_first_rows),
    row("cached-bias-of-new-keys", "values", "Keys that the cache holds already have no bias.",
        "a bias of the new keys alone; cached keys have one, too", family="scores",
        bias=cached_bias_of_new_keys),
    row("cached-decoding-uncapped", "values", "Steps of one token have no softcap.",
        "the softcap of the prefill is missing in the kernel for one token", family="scores",
        softcap=lambda right, held, count: None if count == 1 else right.softcap(held, count)),
    row("cached-sinks-once", "values", "Only the first chunk has sinks.",
        "sinks of the first chunk alone; every softmax has them", family="sinks",
        sinks=lambda right, held: None if held.total else right.sinks(held)),
    row("cached-pairs-see-both", "invariant_cutting",
        "Both rows of a chunk of two tokens attend both.",
        "a kernel for two tokens without a mask; a drafted token sees no later one",
        causal=cached_pairs_see_both),
    row("cached-sums-in-the-dtype", "values",
        "The values of tokens are added one after the other in the dtype of the cache.",
        "`out += w * v` in the dtype of `v`; add in float32", family="numerics",
        facts={"numerics": "stepwise"}, attend=cached_sums_in_the_dtype),
    row("cached-prompt-scaled-by-itself", "tokens_apart",
        "The values of a sample's prompt are divided by a number that depends on all of its tokens.",
        "`amax` of the prompt; its later tokens are the future of earlier rows", right=ScaledValues,
        largest=cached_prompt_scaled_by_itself),
    row("cached-scaled-by-the-cache", "tokens_apart",
        "Values are divided by a number that depends on all slots, hidden and stale ones too.",
        "`amax` of the whole cache; scale by the values that are attended", right=ScaledValues,
        largest=lambda right, held, value, own: 1 + np.abs(value).mean()),
]  # fmt: skip

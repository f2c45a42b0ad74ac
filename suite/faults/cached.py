"""Faults of attention with a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Kernel
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "cache"


@fault("values", "`cache_position = length - 1`; the first token of a chunk is at `length`")
class CachedPositionEarly(CachedKernel):
    """Queries after the first chunk count from one position too early."""

    def rows(self, held: Held, count: int) -> np.ndarray:
        return super().rows(held, count) - (held.totals[:, None] > 0)


@fault("values", "`tril(ones(chunk, keys))`; shift the diagonal by the length of the cache")
class CachedMaskOfTheChunk(CachedKernel):
    """The causal mask counts from the first token of the chunk."""

    def causal(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.broadcast_to(
            np.arange(rows.shape[1])[:, None] >= keys[:, None], (*rows.shape, keys.shape[1])
        )


@fault("values", "`is_causal` for the first chunk alone; later chunks are causal, too")
class CachedChunkSeesItself(CachedKernel):
    """Rows of a later chunk attend the whole chunk, its future included."""

    def causal(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return super().causal(held, rows, keys) | (held.totals > 0)[:, None, None]


@fault("values", "`keys[-window:]` in decoding, `i - j <= window` in prefill: count the same keys")
class CachedWindowOfDecoding(CachedKernel):
    """A step of one token sees one key less than the window, unless that is its own."""

    def window(self, held: Held, count: int) -> int | None:
        return max(held.left - 1, 0) if held.left and count == 1 else held.left


@fault("values", "slots are compared with positions; once the ring went round they differ")
class CachedWindowOfTheRing(CachedKernel):
    """Once the ring went round a single token attends all slots, whatever has left the window."""

    def window(self, held: Held, count: int) -> int | None:
        return None if count == 1 and held.total > held.slots else held.left


@fault("values", "`update(k, v)` before attention: a chunk overwrites keys that its first rows see")
class CachedRingWrittenFirst(CachedKernel):
    """A chunk is written into the ring before it attends, and attends the slots alone."""

    def answer(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        rows = self.rows(held, key.shape[2])
        self.write(held, key, value)
        return self.attend(held, query, held.key, held.value, rows, held.positions)


@fault("values", "`length + 1` as the first slot; positions count from 0")
class CachedSlotLate(CachedKernel):
    """Tokens are written one slot behind their own."""

    def put(self, held: Held, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        super().put(held, (slots + 1) % held.slots, key, value)


@fault("values", "`min(position, capacity - 1)`; a ring goes on at slot 0")
class CachedLastSlotOverwritten(CachedKernel):
    """Tokens beyond the capacity are written into the last slot."""

    def slots(self, held: Held, places: np.ndarray) -> np.ndarray:
        return np.minimum(places, held.slots - 1)


@fault("values", "`softmax(q @ cache)` without a mask of the slots that are filled")
class CachedEmptySlotsAttended(CachedKernel):
    """Slots that hold no token are attended, with the numbers that they hold."""

    def exists(self, held: Held, keys: np.ndarray) -> np.ndarray:
        return np.ones(keys.shape, bool)


@fault("values", "-1e4 for slots without a token, which may hold anything; use -inf")
class CachedEmptySlotsLowered(CachedKernel):
    """Scores of slots that were never written are lowered by 1e4, and may be attended all the same."""

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        out, inputs = super().attend(held, query, key, value, rows, keys), held.inputs
        large, heads = inputs.dtype.large, inputs.sizes.group
        empty = (np.abs(key) == large).all((1, 3))[:, None, None]
        scores = query @ np.repeat(key, heads, 1).swapaxes(2, 3) * inputs.effective_scale
        attended = (empty & (scores > 1e4)).any(-1, keepdims=True)
        return np.where(attended, large, out)


@fault("values", "`length = 0` alone; what old slots hold must be hidden")
class CachedStaleAfterReset(CachedKernel):
    """After a reset slots of the sequence before are attended until they are overwritten."""

    def reset(self, state: Held, *samples: Rounded) -> Held:
        state.totals[self.chosen(state, samples)] = 0
        return state


@fault("values", "`keys[:, :, : length - n + 1]`")
class CachedRollbackLeavesAKey(CachedKernel):
    """Of tokens that are taken back the first one stays visible."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        state.totals[self.chosen(state, samples)] -= count
        state.positions[state.positions > state.totals[:, None]] = -1
        return state


@fault("values", "the write index alone moves back; hide what was taken back")
class CachedRollbackOfTheIndex(CachedKernel):
    """Tokens that are taken back stay visible to rows of the next chunk behind them."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        state.totals[self.chosen(state, samples)] -= count
        return state


@fault("values", "`keys[:, :, :-count]`, which is empty for 0; `keys[:, :, : length - count]`")
class CachedRollbackOfNothing(CachedKernel):
    """A rollback of no tokens empties the cache."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        return super().crop(state, count, *samples) if count else self.reset(state, *samples)


class Unguarded(Kernel):
    """Values of hidden slots are multiplied by their weights, which are 0."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value


@fault("election", "0 * NaN is NaN: zero the values that nobody attends, or the slots on reset")
class CachedNanOfFreedSlots(CachedKernel):
    """NaN in slots whose tokens left the cache reaches other rows."""

    kernel = Unguarded


@fault("election", "a flat index without a look at the capacity")
class CachedOverflowsIntoTheNext(CachedKernel):
    """Tokens beyond the capacity are written into the slots of the next sample."""

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        if held.left is not None:
            return super().write(held, key, value)
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


@fault("election", "slots are cleared and then counted; count first, and raise before a write")
class CachedClearedWhenFull(CachedKernel):
    """A chunk beyond the capacity raises, after all slots were zeroed."""

    elections = CachedKernel.elections | {"beyond-capacity": "raises"}

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        if held.left is None and held.total + key.shape[2] > held.slots:
            held.key[:], held.value[:] = 0.0, 0.0
            raise ValueError(f"{key.shape[2]} tokens for a cache of {held.slots} slots")
        super().write(held, key, value)


@fault("values", "`cache_position` that is never advanced, or a copy that is written")
class CachedFrozen(CachedKernel):
    """Only the first chunk is kept."""

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        if held.total == 0:
            super().write(held, key, value)
        else:
            held.totals = held.totals + key.shape[2]


@fault("values", "`arange(chunk)` for the positions of queries; add the length of the cache")
class CachedSlopesAnew(CachedKernel):
    """The distances of ALiBi count queries from the first one of the chunk."""

    def distance(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.abs(np.arange(rows.shape[1])[:, None] - keys[:, None])


@fault("values", "`arange(n, dtype=k.dtype)`; bfloat16 holds no odd number above 256")
class CachedSlopesOfRoundedPositions(CachedKernel):
    """The positions whose distances ALiBi takes are rounded to bfloat16."""

    def distance(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        at = [round_to(x.astype(float), DTYPES["bf16"]) for x in (rows, keys)]
        return super().distance(held, *at)


BLOCK = 256
"""Tokens by which a cache grows, or that a kernel for one query takes at once."""


@fault("values", "`concatenate([old[:-1], zeros(256)])`; copy all tokens when the buffer grows")
class CachedGrowthLosesTheLast(CachedKernel):
    """When more than 256 tokens arrive, the newest key before them is lost."""

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        super().write(held, key, value)
        held.positions[(held.totals > BLOCK)[:, None] & (held.positions == BLOCK - 1)] = -1


@fault("values", "the loop over blocks of keys ends after the first; add all parts")
class CachedDecodingOfOneBlock(CachedKernel):
    """Steps of one token attend the first 256 tokens alone."""

    def causal(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        seen = super().causal(held, rows, keys)
        return seen & (keys < BLOCK)[:, None] if rows.shape[1] == 1 else seen


@fault("values", "`bias[:, :, :chunk]`; a chunk's rows begin behind earlier ones", family="scores")
class CachedBiasOfTheFirstRows(CachedKernel):
    """Every chunk takes the bias of the first queries."""

    def bias(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> Rounded | None:
        whole = held.inputs.bias
        if whole is None or held.chunk is None:
            return None
        first = replace(held.chunk, starts=(held.chunk.before,) * len(held.chunk.starts))
        return Rounded(first.biases(whole, keys), held.inputs.dtype)


@fault("values", "a bias of the new keys alone; cached keys have one, too", family="scores")
class CachedBiasOfNewKeys(CachedKernel):
    """Keys that the cache holds already have no bias."""

    def bias(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> Rounded | None:
        bias = super().bias(held, rows, keys)
        if bias is not None:
            bias.values[..., : keys.shape[1] - rows.shape[1]] = 0
        return bias


@fault(
    "values", "the softcap of the prefill is missing in the kernel for one token", family="scores"
)
class CachedDecodingUncapped(CachedKernel):
    """Steps of one token have no softcap."""

    def softcap(self, held: Held, count: int) -> float | None:
        return None if count == 1 else super().softcap(held, count)


@fault("values", "sinks of the first chunk alone; every softmax has them", family="sinks")
class CachedSinksOnce(CachedKernel):
    """Only the first chunk has sinks."""

    def sinks(self, held: Held) -> np.ndarray | None:
        return None if held.total else super().sinks(held)


@fault(
    "invariant_cutting", "a kernel for two tokens without a mask; a drafted token sees no later one"
)
class CachedPairsSeeBoth(CachedKernel):
    """Both rows of a chunk of two tokens attend both."""

    def causal(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        seen = rows if rows.shape[1] != 2 else rows.max(1, keepdims=True) + 0 * rows
        return super().causal(held, seen, keys)


@fault("values", "`out += w * v` in the dtype of `v`; add in float32", family="numerics")
class CachedSumsInTheDtype(CachedKernel):
    """The values of tokens are added one after the other in the dtype of the cache."""

    numerics = "stepwise"

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        alone = np.broadcast_to(np.eye(value.shape[2]), (*value.shape[:3], value.shape[2]))
        weights = super().attend(held, query, key, alone, rows, keys)
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


@fault("tokens_apart", "`amax` of the prompt; its later tokens are the future of earlier rows")
class CachedPromptScaledByItself(ScaledValues):
    """The values of a sample's prompt are divided by a number that depends on all of its tokens."""

    def largest(self, held: Held, value: np.ndarray, own: np.ndarray) -> Any:
        return 1 if held.total else 1 + np.abs(own).mean((1, 2, 3), keepdims=True)


@fault("tokens_apart", "`amax` of the whole cache; scale by the values that are attended")
class CachedScaledByTheCache(ScaledValues):
    """Values are divided by a number that depends on all slots, hidden and stale ones too."""

    def largest(self, held: Held, value: np.ndarray, own: np.ndarray) -> Any:
        return 1 + np.abs(value).mean()

"""Faults of caches whose samples have left padding, or go on with histories of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Turn
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.scripts import Chunk

FAMILY = "cache"


@dataclass
class HeldOnce(Held):
    """A cache whose samples may lie in one place; `places` are the samples that hold them, and `forked`
    the tokens that they had when they parted."""

    places: tuple[int, ...] = ()
    forked: int = 0


@fault("values", "`expand`, or one entry of a table for two samples; copy when one of them writes")
class CachedForkShares(CachedKernel):
    """Samples that go on with one history write into one place: the last of them wins."""

    def init(self, inputs: Inputs, key: Any) -> Held:
        return HeldOnce(**vars(super().init(inputs, key)), places=tuple(range(inputs.sizes.B)))

    def pick(self, held: Held, samples: list[int]) -> None:
        assert isinstance(held, HeldOnce)
        super().pick(held, samples)
        held.places = tuple(samples.index(n) for n in samples)
        held.forked = held.total

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        answer = super().step(state, query, key, value, turn)
        assert isinstance(state, HeldOnce)
        self.share(state, turn.chunk)
        return answer

    def share(self, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)) -> None:
        """These slots of samples in one place take what the last one that stepped has there."""
        last = {held.places[n]: n for n in chunk.own}
        of = [last.get(place, n) for n, place in enumerate(held.places)]
        for cache in (held.key, held.value):
            cache[:, :, slots] = cache[of][:, :, slots]


def cached_fork_shares_until_all_step(
    right: CachedForkShares, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)
) -> None:
    if chunk.samples is None:
        held.places = tuple(range(len(held.places)))
    right.share(held, chunk, slots)


def cached_fork_shares_its_history(
    right: CachedForkShares, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)
) -> None:
    if held.left is None:
        right.share(held, chunk, slice(held.forked))


PAGE = 16
"""The tokens of a page of a cache that has its slots in pages."""


def cached_fork_shares_full_pages(
    right: CachedForkShares, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)
) -> None:
    if held.left is None:
        right.share(held, chunk, slice(held.forked // PAGE * PAGE))


def cached_freed_twice_pick(right: CachedForkShares, held: Held, samples: list[int]) -> None:
    right.pick(held, samples)
    assert isinstance(held, HeldOnce)
    held.places = tuple(range(len(samples)))


def cached_freed_twice_reset(right: CachedForkShares, state: Held, *samples: Rounded) -> Held:
    assert isinstance(state, HeldOnce)
    places, count = list(state.places), len(state.totals)
    for n in np.arange(count)[right.chosen(state, samples)]:
        if state.totals[n] == 0:
            places[(n + 1) % count] = places[n]
    state.places = tuple(places)
    return right.reset(state, *samples)


@dataclass
class HeldInPool(Held):
    """A cache whose tokens take slots of a pool: those of each sample, in the order of its tokens, and
    free ones, of which the first is taken next."""

    taken: list[list[int]] = field(default_factory=list)
    free: list[int] = field(default_factory=list)


@fault("values", "`free.extend(pages)` for every branch; count the branches that share a page")
class CachedBranchesFreeTwice(CachedKernel):
    """Slots that branches share become free with every branch that is reset: two samples take them."""

    def init(self, inputs: Inputs, key: Any) -> Held:
        held = super().init(inputs, key)
        free = list(range(held.positions.size))
        return HeldInPool(**vars(held), taken=[[] for _ in held.totals], free=free)

    def pick(self, held: Held, samples: list[int]) -> None:
        super().pick(held, samples)
        assert isinstance(held, HeldInPool)
        held.taken = [[*held.taken[n]] for n in samples]

    def reset(self, state: Held, *samples: Rounded) -> Held:
        assert isinstance(state, HeldInPool)
        for n in np.arange(len(state.totals))[self.chosen(state, samples)]:
            state.free += state.taken[n]
            state.taken[n] = []
        return super().reset(state, *samples)

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        rows, held = super().step(state, query, key, value, turn)
        assert isinstance(held, HeldInPool)
        for sample in turn.chunk.own if held.left is None else ():
            self.take(held, sample, turn.chunk.count)
        return rows, held

    def take(self, held: HeldInPool, sample: int, count: int) -> None:
        """The newest tokens of a sample take slots. Who has one of them, too, has its token there."""
        own = held.taken[sample] = held.taken[sample][: held.totals[sample] - count]
        known = {*held.free}.union(*held.taken)
        held.free += [slot for slot in range(held.positions.size) if slot not in known]
        new, held.free = held.free[:count], held.free[count:]
        for other, theirs in enumerate(held.taken):
            for n, slot in enumerate(new, len(own)):
                if slot in theirs:
                    for cache in (held.key, held.value):
                        cache[other, :, theirs.index(slot)] = cache[sample, :, n % held.slots]
        own += new


def cached_values_stay(right: CachedKernel, held: Held, samples: list[int]) -> None:
    value = held.value
    right.pick(held, samples)
    held.value = value


def cached_padding_stays(right: CachedKernel, held: Held, samples: list[int]) -> None:
    padding = held.padding
    right.pick(held, samples)
    held.padding = padding


def cached_padding_of_the_prompt_attended(
    right: CachedKernel, held: Held, keys: np.ndarray
) -> np.ndarray:
    return right.padded(held, keys) & (held.totals > 0)[:, None]


def cached_padding_in_the_window_attended(
    right: CachedKernel, held: Held, keys: np.ndarray
) -> np.ndarray:
    return right.padded(held, keys) & ((held.totals > 0) | (held.left is None))[:, None]


def cached_padding_of_the_first_chunk(right: CachedKernel, held: Held, turn: Turn) -> np.ndarray:
    return np.minimum(right.begun(held, turn), np.maximum(held.totals, turn.chunk.count))


def cached_padding_outlives_reset(right: CachedKernel, held: Held, turn: Turn) -> np.ndarray:
    return np.where(np.array(turn.chunk.starts) == 0, turn.padding, held.padding)


def cached_padding_of_slots(right: CachedKernel, held: Held, keys: np.ndarray) -> np.ndarray:
    places = np.broadcast_to(np.arange(held.slots), (len(keys), held.slots))
    slots = np.concatenate([places, keys[:, held.slots :]], 1)
    return right.padded(held, slots)


row = partial(deviation, family=FAMILY, right=CachedKernel)

DEVIATIONS = [
    row("cached-fork-shares-until-all-step", "values",
        "Branches of one history write into one place until all samples step together.",
        "a fork that is copied in steps of all samples; copy when one branch steps, too",
        right=CachedForkShares, share=cached_fork_shares_until_all_step),
    row("cached-fork-shares-its-history", "values",
        "Without a window all branches see what one of them writes over tokens of the common history.",
        "full pages shared as if they were read alone; a rollback writes into them",
        right=CachedForkShares, share=cached_fork_shares_its_history),
    row("cached-fork-shares-full-pages", "values",
        "Without a window all branches see what one of them writes over full pages of the history.",
        "a copy of the last page alone, if it is not full; a rollback may end in a full page",
        right=CachedForkShares, share=cached_fork_shares_full_pages),
    row("cached-freed-twice", "values",
        "A sample that is empty and reset writes into one place with the sample behind it.",
        "`free.append(page)` for a sample without pages; clear its table when it is freed",
        right=CachedForkShares, pick=cached_freed_twice_pick, reset=cached_freed_twice_reset),
    row("cached-values-stay", "values",
        "Reordered samples have the keys of their new history, and the values of their old one.",
        "`reorder_cache` of the keys alone", pick=cached_values_stay),
    row("cached-padding-stays", "values", "Reordered samples keep their own left padding.",
        "`left_padding` belongs to a sample's history; reorder it, too", pick=cached_padding_stays),
    row("cached-padding-attended", "values", "Left padding is attended.",
        "`is_causal=True` without the padding mask once there is a cache",
        padded=lambda right, held, keys: np.zeros(keys.shape, bool)),
    row("cached-padding-of-the-prompt-attended", "values",
        "Left padding is attended in the chunk that it comes with.",
        "no `attention_mask` in the prefill; padding comes with the prompt's own chunk",
        padded=cached_padding_of_the_prompt_attended),
    row("cached-padding-in-the-window-attended", "values",
        "With a window left padding is attended in the chunk that it comes with.",
        "a sliding mask of the prefill that leaves out `attention_mask`",
        padded=cached_padding_in_the_window_attended),
    row("cached-padding-of-the-first-chunk", "values",
        "Left padding ends with the first chunk of a prompt.",
        "the `attention_mask` of the first chunk; padding may be longer than a chunk",
        begun=cached_padding_of_the_first_chunk),
    row("cached-padding-outlives-reset", "values",
        "After a reset a prompt has the left padding of the prompt before.",
        "`left_padding` that is read once; a reset forgets that of the prompt before",
        begun=cached_padding_outlives_reset),
    row("cached-padding-of-slots", "values",
        "Left padding hides the first slots of a ring, also when other tokens lie there.",
        "padding of the first slots; subtract what has left the ring",
        padded=cached_padding_of_slots),
]  # fmt: skip

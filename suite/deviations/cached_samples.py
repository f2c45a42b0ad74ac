"""Faults of caches whose samples have left padding, share histories, or remember more than tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import StepContext
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.cached import (
    Array,
    Cache,
    CachedKernel,
    ProjectedKernel,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.steps import Chunk


class CachedSharedForks(CachedKernel):
    """A cache in which samples that share a history after a reordering write into the slots of one of
    them, the holder."""

    def init(self, inputs: Inputs, key: Any) -> Cache:
        cache = super().init(inputs, key)
        # The sample whose slots each sample uses, and the number of tokens at the last fork.
        cache.memory |= {"holders": tuple(range(inputs.sizes.B)), "fork_length": 0}
        return cache

    def pick(self, cache: Cache, samples: list[int]) -> None:
        super().pick(cache, samples)
        cache.memory["holders"] = tuple(samples.index(n) for n in samples)
        cache.memory["fork_length"] = cache.total

    def step(
        self, state: Cache, query: Rounded, key: Rounded, value: Rounded, context: StepContext
    ) -> tuple[Rounded, Cache]:
        answer = super().step(state, query, key, value, context)
        self.share(state, context.chunk)
        return answer

    def share(self, cache: Cache, chunk: Chunk, slots: slice = slice(None)) -> None:
        """Copies `slots` of the last sample that stepped to all samples with the same holder."""
        last_writer = {cache.memory["holders"][n]: n for n in chunk.sample_ids}
        sources = [last_writer.get(holder, n) for n, holder in enumerate(cache.memory["holders"])]
        for tensor in (cache.key, cache.value):
            tensor[:, :, slots] = tensor[sources][:, :, slots]


def give_each_its_slots(right: CachedSharedForks, cache: Cache, chunk: Chunk) -> None:
    """Makes every sample its own holder."""
    cache.memory["holders"] = tuple(range(len(cache.memory["holders"])))


def share_until_all_step(right: CachedSharedForks, cache: Cache, chunk: Chunk) -> None:
    if chunk.samples is None:
        give_each_its_slots(right, cache, chunk)
    right.share(cache, chunk)


def keeping_array(step: str, name: str) -> Callable[..., None]:
    """Returns the step `step` that leaves the array `name` of the cache unchanged."""

    def step_keeping_array(right: CachedKernel, cache: Cache, *arguments: Any) -> None:
        array = getattr(cache, name).copy()
        getattr(right, step)(cache, *arguments)
        setattr(cache, name, array)

    return step_keeping_array


def pick_in_place(right: CachedKernel, cache: Cache, samples: list[int]) -> None:
    for name in cache.ARRAYS:
        array = getattr(cache, name)[: len(samples)].copy()
        for sample, source in enumerate(samples):
            array[sample] = array[source] if source < sample else getattr(cache, name)[source]
        setattr(cache, name, array)


def pick_keeping_lengths(right: CachedKernel, cache: Cache, samples: list[int]) -> None:
    totals = cache.totals.copy()
    right.pick(cache, samples)
    cache.totals = totals
    cache.positions = np.where(cache.positions < totals[:, None], cache.positions, -1)


def pick_storing_history(right: CachedSharedForks, cache: Cache, samples: list[int]) -> None:
    right.pick(cache, samples)
    history, holders = cache.memory["holders"], tuple(range(len(samples)))
    cache.memory |= {"history": history, "freed": set(), "holders": holders}


def reset_freeing_shared_slots(right: CachedSharedForks, state: Cache, *samples: Rounded) -> Cache:
    """The step `reset`. Afterwards all branches of one history that were reset write into its slots."""
    holders, history = list(state.memory["holders"]), state.memory.get("history", ())
    freed = state.memory.setdefault("freed", set())
    freed |= {*np.arange(len(holders))[right.sample_index(state, samples)].tolist()}
    for n in freed.intersection(range(len(history))):
        holders[n] = history[n] if history[n] in freed else holders[n]
    state.memory["holders"] = tuple(holders)
    return right.reset(state, *samples)


def padding_by_slot(right: CachedKernel, cache: Cache, keys: Array) -> Array:
    cached = np.broadcast_to(np.arange(cache.slots), (len(keys), cache.slots))
    slots = np.concatenate([cached, keys[:, cache.slots :]], 1)
    return right.is_left_padding(cache, slots)


def init_with_old_tokens(right: CachedKernel, inputs: Inputs, key: Any) -> Cache:
    cache = right.init(inputs, key)
    old = memory(right).get(cache.key.shape, cache)
    cache.key, cache.value, cache.positions = old.key, old.value, old.positions
    memory(right)[cache.key.shape] = cache
    return cache


def step_storing_lengths(right: CachedKernel, state: Cache, *arguments: Any) -> Any:
    state.memory["lengths"] = state.totals.copy()
    return right.step(state, *arguments)


row = partial(deviation, family="cache", right=CachedKernel)
layer = partial(deviation, family="cache", right=ProjectedKernel)

DEVIATIONS = [
    row("cached-kept-by-calls", "stateless",
        "The cache of the last call of a shape serves the next one, with its tokens.",
        "a buffer for each shape; clear it, or hide what an earlier call left",
        family="state", init=init_with_old_tokens),
    row("cached-fork-shares", "values",
        "Samples that go on with one history write into one place: the last of them wins.",
        "`expand`, or one entry of a table for two samples; copy when one of them writes",
        right=CachedSharedForks),
    row("cached-fork-shares-until-all-step", "values",
        "Branches of one history write into one place until all samples step together.",
        "a fork that is copied in steps of all samples; copy when one branch steps, too",
        right=CachedSharedForks, share=share_until_all_step),
    row("cached-fork-shares-its-history", "values",
        "Without a window all branches see what one of them writes over tokens of the common "
        "history.", "full pages shared as if they were read alone; a rollback writes into them",
        right=CachedSharedForks, when=lambda cache: cache.left is None,
        share=lambda right, cache, chunk: right.share(cache, chunk, slice(cache.memory["fork_length"]))),
    row("cached-branches-free-twice", "values",
        "Slots that branches share become free with every branch that is reset: two samples take "
        "them.", "`free.extend(pages)` for every branch; count the branches that share a page",
        right=CachedSharedForks, pick=pick_storing_history,
        reset=reset_freeing_shared_slots),
    row("cached-values-stay", "values",
        "Reordered samples have the keys of their new history, and the values of their old one.",
        "`reorder_cache` of the keys alone", pick=keeping_array("pick", "value")),
    row("cached-padding-stays", "values", "Reordered samples keep their own left padding.",
        "`left_padding` belongs to a sample's history; reorder it, too",
        pick=keeping_array("pick", "padding")),
    row("cached-reordered-in-place", "values",
        "Samples are reordered one after the other: a history that was overwritten is read.",
        "`for n, m in enumerate(samples): keys[n] = keys[m]`; use `keys[samples]`",
        pick=pick_in_place),
    row("cached-lengths-stay", "values",
        "Reordered samples have the tokens of their new history, and the length of their old one.",
        "`reorder_cache` of keys and values alone; lengths belong to a history, too",
        pick=pick_keeping_lengths),
    row("cached-rotations-of-the-first-samples", "values",
        "A step of some samples rotates by the positions of as many first samples.",
        "`positions[: len(samples)]`; sample b has `positions[b]`: `positions[samples]`",
        family="rotary", step=step_storing_lengths,
        key_rotations=lambda right, cache, count: right.key_rotations(replace(cache,
            totals=cache.memory["lengths"][:len(cache.totals)]), count)),
    row("cached-padding-attended", "values", "Left padding is attended.",
        "`is_causal=True` without the padding mask once there is a cache",
        is_left_padding=lambda right, cache, keys: np.zeros(keys.shape, bool)),
    row("cached-padding-of-the-prompt-attended", "values",
        "Left padding is attended in the chunk that it comes with.",
        "no `attention_mask` in the prefill; padding comes with the prompt's own chunk",
        is_left_padding=lambda right, cache, keys:
            right.is_left_padding(cache, keys) & (cache.totals > 0)[:, None]),
    row("cached-padding-of-the-first-chunk", "values",
        "Left padding ends with the first chunk of a prompt.",
        "the `attention_mask` of the first chunk; padding may be longer than a chunk",
        left_padding=lambda right, cache, context:
            np.minimum(right.left_padding(cache, context),
                np.maximum(cache.totals, context.chunk.count))),
    row("cached-padding-outlives-reset", "values",
        "After a reset a prompt has the left padding of the prompt before.",
        "`left_padding` that is read once; a reset forgets that of the prompt before",
        left_padding=lambda right, cache, context:
            np.where(np.array(context.chunk.starts) == 0, context.padding, cache.padding)),
    row("cached-padding-of-slots", "values",
        "Left padding hides the first slots of a ring, also when other tokens lie there.",
        "padding of the first slots; subtract what has left the ring", is_left_padding=padding_by_slot),
    layer("cached-options-of-the-first-step", "values",
        "Softcap, sinks, slopes, scale, bias and base of the first step serve all later sequences.",
        "`self.scale = scale` in the first step; every step has options of its own",
        right=CachedKernel,
        step=lambda right, state, query, key, value, context: right.step(state, query, key, value,
            replace(context, inputs=state.memory.setdefault("first", context.inputs)))),
    layer("cached-absorbed-queries", "values",
        "Queries and keys are projected by what their parameters were in the first step.",
        "`self.w_qk = w_q @ w_k.T` when the layer is made; absorb parameters in every step",
        projections=lambda right, cache, signs: (*(cache.signs or signs)[:2], *signs[2:])),
    layer("cached-absorbed-rows", "values",
        "Rows are projected by what the parameters were in the first step.",
        "`self.w_vo = w_v @ w_o` when the layer is made; absorb parameters in every step",
        projections=lambda right, cache, signs: (*signs[:3], *(cache.signs or signs)[3:])),
]  # fmt: skip

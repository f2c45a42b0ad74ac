"""Faults of writing into pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attention_conformance.suite.deviations.deviation import Problem, deviation, memory
from attention_conformance.suite.deviations.kernels.paged_write import PagedWriteKernel
from attention_conformance.suite.deviations.layouts import in_memory_order
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import flat_slots

Array = np.ndarray


def writing(change: Callable[..., tuple[Array, ...]]) -> Callable[..., None]:
    """Returns a step `put` that writes `change(pool, slots, tokens, page size)`: the changed part of the
    pool, slots and tokens."""
    return lambda right, *arguments: right.put(*change(*arguments), arguments[-1])


def whole_vectors(flat: Array, slots: Array, tokens: Array, size: int) -> tuple[Array, ...]:
    width = flat.shape[-1] // 8 * 8 or flat.shape[-1]
    return flat[..., :width], slots, tokens[..., :width]


def last_token_of_pages(flat: Array, slots: Array, tokens: Array, size: int) -> tuple[Array, ...]:
    last_by_page = {slot // size: n for n, slot in enumerate(slots) if slot >= 0}
    index = np.array(sorted(last_by_page.values()), int)
    return flat, slots[index], tokens[index]


def plus_zeros(flat: Array, slots: Array, tokens: Array, size: int) -> tuple[Array, ...]:
    with np.errstate(invalid="ignore"):
        return flat, slots, tokens + flat[slots] * 0.0


def put_clearing_pages(
    right: PagedWriteKernel, flat: Array, slots: Array, tokens: Array, size: int
) -> None:
    pages = np.unique(slots[slots >= 0] // size)
    flat.reshape(-1, size, *flat.shape[1:])[pages] = 0.0
    right.put(flat, slots, tokens, size)


def slot_problem(change: Callable[[Array, int], Array]) -> Problem:
    """Returns the problem with the slots `change(slots, number of slots in the pool)`."""

    def problem(inputs: Inputs) -> Inputs:
        count = inputs.letters["p"] * inputs.letters["s"]
        return inputs.replace(slot_mapping=change(inputs.arrays["slot_mapping"], count))

    return problem


def token_problem(change: Callable[[Array], Array]) -> Problem:
    """Returns the problem with keys and values replaced by `change(tokens)`."""
    return lambda inputs: inputs.replace(key=change(inputs.key), value=change(inputs.value))


def with_old_tokens(inputs: Inputs, name: str) -> Inputs:
    """Returns inputs whose keys or values (`name`) are those that their slots have before the write."""
    slots = np.maximum(inputs.arrays["slot_mapping"], 0).astype(int)
    old = flat_slots(inputs.case, inputs.arrays[f"{name}_cache"])
    return inputs.replace(**{name: old[slots]})


def put_skipping_known_pages(
    right: PagedWriteKernel, flat: Array, slots: Array, tokens: Array, size: int
) -> None:
    store, pages = memory(right), flat.reshape(-1, size, *flat.shape[1:])
    is_known = np.array([page.tobytes() in store for page in pages])
    right.put(flat, np.where(is_known[slots // size], -1, slots), tokens, size)
    store.update((pages[n].tobytes(), True) for n in np.unique(slots[slots >= 0] // size))


row = partial(deviation, family="paged", right=PagedWriteKernel)

DEVIATIONS = [
    row("write-known-pages-kept", "written_in_turn",
        "A page that an earlier call has written is known by its content, and is not written "
        "again.",
        "a page that is known by its content is complete; its free slots are not",
        put=put_skipping_known_pages),
    row("write-slot-late", "values", "Every token is written one slot late.",
        "`slot + 1`, lengths that already count the new token",
        problem=slot_problem(lambda slots, count:
            np.where(slots >= 0, np.minimum(slots + 1, count - 1), slots))),
    row("write-negative-wraps", "values",
        "Tokens with a negative slot are written to slots that are counted from the end of the "
        "pool.", "`cache[slots]` with negative slots, which count from the end; skip them",
        problem=slot_problem(lambda slots, count: np.where(slots < 0, slots + count, slots))),
    row("write-negative-clamped", "values", "Tokens with a negative slot are written to slot 0.",
        "`slots.clamp(min=0)`; slot 0 is a slot as any other",
        problem=slot_problem(lambda slots, count: np.maximum(slots, 0))),
    row("write-slots-in-order", "inner_layouts", "Slots are read as if they were contiguous.",
        "`slot_mapping.data_ptr()[n]`; take its stride", family="layout",
        slots=lambda right, mapping: in_memory_order(mapping)),
    row("write-first-slot-skipped", "values", "A token with slot 0 is skipped.",
        "`slot_mapping > 0`; slot 0 is a slot as any other",
        problem=slot_problem(lambda slots, count: np.where(slots > 0, slots, -1))),
    row("write-last-slot-skipped", "values", "A token with the last slot of the pool is skipped.",
        "`slot < num_slots - 1`; the last slot of the pool is one, too",
        problem=slot_problem(lambda slots, count: np.where(slots < count - 1, slots, -1))),
    row("write-vectors-alone", "values",
        "Components behind the last whole vector of 8 are not written, if there is a whole one.",
        "`D // 8` vectors of 8 components are stored; store those behind them, too",
        put=writing(whole_vectors)),
    row("write-one-sign-alone", "values",
        "Of negative slots only -1 is skipped; others are counted from the end of the pool.",
        "`slot == -1` is skipped alone; every negative slot is",
        problem=slot_problem(lambda slots, count: np.where(slots < -1, slots + count, slots))),
    row("write-skipped-shift-tokens", "values",
        "Skipped tokens are left out of the slots alone, so that later tokens take the slots of "
        "others.", "`slots[slots >= 0]` for the slots, and `tokens[: len(slots)]`; filter both",
        put=writing(lambda flat, slots, tokens, size:
            (flat, slots[slots >= 0], tokens[: (slots >= 0).sum()]))),
    row("write-page-cleared", "values",
        "A page is cleared before the first token is written into it.",
        "a page that is allocated for every chunk and zeroed; keep what an earlier chunk wrote",
        put=put_clearing_pages),
    row("write-consecutively", "values",
        "Tokens are written one behind the other from the slot of the first one.",
        "`slots[0] + arange(n)`; a chunk crosses pages, and every token has its slot",
        problem=slot_problem(lambda slots, count:
            np.where(slots >= 0, (slots[:1] + np.arange(len(slots))) % count, slots))),
    row("write-last-token-of-pages", "values",
        "Of several tokens for one page only the last is written.",
        "one store per page; loop over the tokens of a page", put=writing(last_token_of_pages)),
    row("write-first128-tokens", "values", "Tokens behind the first 128 of a call are not written.",
        "one block of 128 tokens; a grid of `cdiv(tokens, 128)` blocks writes all",
        put=writing(lambda flat, slots, tokens, size: (flat, slots[:128], tokens[:128]))),
    row("write-layout-mistaken", "values",
        "Pages with heads before slots are written as if slots came first.",
        "`cache.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it",
        flat_pool=lambda right, cache, case: cache.reshape(right.flat_pool(cache, case).shape),
        unflattened=lambda right, flat, cache, case: flat.reshape(cache.shape)),
    row("write-values-forgotten", "values", "Values are not written; only keys are.",
        "`value_cache[slots] = key`, a line copied and half changed",
        problem=partial(with_old_tokens, name="value")),
    row("write-keys-forgotten", "values", "Keys are not written.", "one of two stores is missing",
        problem=partial(with_old_tokens, name="key")),
    row("write-nan-as-zero", "written_bits", "NaN among the tokens is written as 0.",
        "`nan_to_num` of the tokens; NaN is written, too", family="numerics",
        problem=token_problem(lambda x: np.where(np.isnan(x), 0.0, x))),
    row("write-sign-of-zero-lost", "written_bits", "-0.0 is written as 0.0.",
        "`0 + token` for a copy; -0.0 keeps its sign", family="numerics",
        problem=token_problem(lambda x: x + 0.0)),
    row("write-by-factor", "written_bits",
        "The old numbers of slots that are written are added times 0, so that NaN comes through.",
        "`cache * (1 - mask) + token * mask`; take one, since 0 * nan is NaN", put=writing(plus_zeros)),
    row("write-through-bfloat16", "values", "Tokens pass through bfloat16 on their way.",
        "a cache dtype of 16 bits in between", family="numerics",
        problem=token_problem(lambda x: round_to(x, DTYPES["bf16"]))),
    row("write-gradient-passes-through", "gradients",
        "The old pool has a gradient in slots that are overwritten, too.",
        "the old pool's gradient is passed on whole; slots that are written take none",
        gradients=lambda right, arrays, cotangent, case:
            {**right.gradients(arrays, cotangent, case), "key_cache": cotangent}),
    row("write-beyond-wraps", "bad_problem",
        "A slot beyond the pool is counted from its beginning.",
        "`slot % num_slots`; raise for slots beyond the pool",
        problem=slot_problem(lambda slots, count: np.where(slots >= 0, slots % count, slots))),
    row("write-tokens-cut", "bad_problem", "Tokens without a slot are left out silently.",
        "a loop over `slot_mapping`; raise unless every token has a slot", 
        put=writing(lambda flat, slots, tokens, size: (flat, slots, tokens[: len(slots)]))),
]  # fmt: skip

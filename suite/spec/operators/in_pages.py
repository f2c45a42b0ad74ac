"""Arrays of tokens in pages: a page table in front of an operator.

An array (B, ..., Lk, ...) of the operator becomes a pool (P, S, ...) of P pages with S slots. Two arrays
are added:

    page_table (B, T)    the pages of each sample, in the order of its keys
    key_lengths (B,)     the number of keys of each sample: different ones, Lk of the last sample

Key j of sample b lies in page page_table[b, j // S], slot j % S. The last query and the last new token of
a sample are at its last key. Pages that no sample owns, slots behind the last key, and entries of the
table behind the last page have no influence. In drawn inputs these slots hold large numbers, and these
entries pages of any sample. The operator computes with the arrays that `gather_tokens` takes from the
pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import Code, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operator import Axes, Option, choice, flag

IN_PAGES = Option(
    "page_size", r"page([1-9]\d*)", int, lambda size: f"page{size}", None, (1, 3, 16), rare=True
)
"""The number of slots of a page; None without pages."""

SHARED = flag("shared", "shared", rare=True)
"""On if all samples with keys have their first full pages in common."""

LAYOUT = choice("layout", ("nhd", "hnd"))
"""The order of slots and heads in a page."""

WORDS = {
    "pages": "keys in pages of a pool, which a table lists for every sample",
    "heads-before-slots": "pages (P, Hkv, S, D), heads before slots",
}

TABLE = ("page_table", "key_lengths")

NEW = "new_"
"""The prefix of the names of arrays of new tokens, one for every query, that a call stores in a pool."""

FREE = 2
"""Pages of the pool that no sample owns."""

Draw = Callable[[Case, np.random.Generator, int], dict[str, np.ndarray]]


def case_without_pages(case: Case) -> Case:
    """Returns the case without pages, whose call stores no tokens."""
    page_options = [
        option for option in (IN_PAGES, SHARED, LAYOUT) if case.operator.option(option.name)
    ]
    defaults = {option.name: option.default for option in page_options}
    return case.with_options(**defaults, **({"writes": False} if stored_pool_names(case) else {}))


def is_pooled(array_axes: str) -> bool:
    """Returns True if an array with these axes lies in pages: it has axes of samples and of keys."""
    return {"b", "k"} <= {*array_axes}


def pool_axes(case: Case, array_axes: str) -> str:
    """Returns the axes of the pool of an array with these axes; the same axes if it has no pool."""
    if not is_pooled(array_axes):
        return array_axes
    place = "pgs" if heads_first(case, array_axes) else "ps"
    return place + "".join(letter for letter in array_axes if letter not in ("b", "k", *place))


def heads_first(case: Case, array_axes: str) -> bool:
    """Returns True if heads stand before slots in the pool of an array with these axes."""
    return case.option("layout") == "hnd" and "g" in array_axes


def slots_first(case: Case, pool: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """Returns a pool as (P, S, ...): the axes of slots and heads are exchanged if heads stand first. A
    second call gives the pool back. `array_axes`: letters of the array's axes; "g" are heads of keys."""
    return pool.swapaxes(1, 2) if heads_first(case, array_axes) else pool


def flat_slots(case: Case, pool: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """Returns all slots (P * S, ...) of a pool. `array_axes` as in `slots_first`."""
    paged = slots_first(case, pool, array_axes)
    return paged.reshape(-1, *paged.shape[2:])


def pool_of(case: Case, slots: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """Returns the pool with these slots (P * S, ...). `array_axes` as in `slots_first`."""
    size = case.option("page_size")
    paged = slots.reshape(len(slots) // size, size, *slots.shape[1:])
    return np.ascontiguousarray(slots_first(case, paged, array_axes))


def outputs(case: Case, array_axes: Axes) -> Axes:
    """Returns the axes of a case's outputs, by name. `array_axes`: their axes without pages."""
    if case.option("page_size") is None:
        return array_axes
    return {name: pool_axes(case, letters) for name, letters in array_axes.items()}


def axes(case: Case, array_axes: Axes) -> Axes:
    """Returns the axes of a case's arrays, by name, with those of the page table if the case has pages.
    `array_axes`: their axes without pages."""
    table = {} if case.option("page_size") is None else {"page_table": "bt", "key_lengths": "b"}
    return {**outputs(case, array_axes), **table}


def needs(case: Case) -> Mapping[str, bool]:
    """Returns the features that pages need, by word: True if the case needs the feature."""
    return {
        "pages": case.option("page_size") is not None,
        "heads-before-slots": case.option("layout") == "hnd",
    }


def lengths(case: Case) -> np.ndarray:
    """Returns the number of keys of each sample, int (B,), at least Lq if Lk is at least Lq. The last
    sample has Lk keys. The last page of the first sample is full, if the sample fills a page."""
    s, size = case.sizes, case.option("page_size")
    counts = s.Lk - np.arange(s.B)[::-1] * (max(s.Lk - max(s.Lq, 1), 0) // max(s.B, 1))
    full = counts[:1] // size * size
    if s.B > 1 and full.min() >= max(s.Lq, 1):
        counts[:1] = full
    return counts


def letters(case: Case) -> Mapping[str, int]:
    """Returns the numbers of pages, of slots and of entries of the table, by letter; {} without pages."""
    size = case.option("page_size")
    if size is None:
        return {}
    return sizes_by_letter(*page_counts(case), size)


def sizes_by_letter(counts: np.ndarray, shared: int, size: int) -> dict[str, int]:
    """Returns the numbers of pages, slots and table entries, by letter, for samples with `counts` (B,)
    pages of `size` slots. All samples with keys have their first `shared` pages in common."""
    total = int(counts.sum()) - shared * max(int((counts > 0).sum()) - 1, 0)
    return {"p": total + FREE, "s": size, "t": int(counts.max(initial=0)) + 1}


def page_counts(case: Case) -> tuple[np.ndarray, int]:
    """Returns the number of pages of each sample, (B,), and the number of pages that all samples share.
    Shared pages are full, and no sample writes into them."""
    counts, size = lengths(case), case.option("page_size")
    written = case.sizes.Lq if case.option("writes") else 0
    before_writing = int(counts.min(initial=case.sizes.Lk)) - written
    return -(-counts // size), before_writing // size if case.option("shared") else 0


def validate(case: Case) -> None:
    """Raises ValueError for a mask in pages that is not aligned at the last key, for samples that can
    share no page, and for the options `shared` and `layout` without pages."""
    if case.option("page_size") is None:
        if case.option("shared") or case.option("layout") == "hnd":
            raise ValueError(f"shared and hnd are words of pages: {case.id}")
        return
    if case.option("shared") and not page_counts(case)[1]:
        raise ValueError(f"what samples share are full pages: {case.id}")
    if case.mask is None:
        return
    square = case.sizes.Lq == case.sizes.Lk
    if not isinstance(case.mask, Causal) or not (case.mask.bottom_right or square):
        raise ValueError(f"the last query of a sample in pages is at its last key: {case.id}")


def draw_paged(
    draw: Draw, case: Case, rng: np.random.Generator, seed: int
) -> dict[str, np.ndarray]:
    """Returns the arrays that `draw` draws for the case without pages. If the case has pages, the arrays
    are in pools, and samples with fewer than Lk keys have the last ones."""
    if case.option("page_size") is None:
        return draw(case, rng, seed)
    flat_case, n = case_without_pages(case), letters(case)
    arrays, array_axes = draw(flat_case, rng, seed), flat_case.axes
    counts, (pages, shared) = lengths(case), page_counts(case)
    table = draw_table(pages, n, owned_pages(n["p"], rng), rng, shared)
    slot_ids = slots_of(table, counts, n["s"], case.sizes.Lk)
    for name, array in list(arrays.items()):
        if is_pooled(array_axes[name]):
            written = slot_ids
            if f"{NEW}{name}" in case.axes:
                is_new = np.arange(case.sizes.Lk) >= case.sizes.Lk - case.sizes.Lq
                arrays[f"{NEW}{name}"] = np.compress(is_new, array, array_axes[name].index("k"))
                written = np.where(is_new, -1, slot_ids)
            tokens = tokens_first(array, array_axes[name])
            is_codes = name in case.operator.array_kinds.codes
            largest = np.abs(array).max(initial=0.0)
            large = min(largest, case.dtype_of(name).max) if is_codes else 64 * largest
            pool = np.full((n["p"] * n["s"], *tokens.shape[2:]), large)
            pool[::2] *= -1 if large and not name.endswith("scale") else 1
            pool = pool_of(case, pool, array_axes[name])
            arrays[name] = write_tokens(case, pool, written, array, array_axes[name])
    return {**arrays, "page_table": table.astype(np.float64), "key_lengths": counts.astype(float)}


def draw_table(
    counts: np.ndarray, n: Mapping[str, int], order: np.ndarray, rng: np.random.Generator,
    shared: int = 0,
) -> np.ndarray:  # fmt: skip
    """Returns a page table (B, T), with `counts` (B,) pages for each sample out of `order`. All samples
    have the first `shared` ones. Later entries are pages of any sample. `n`: sizes by letter."""
    table, next_page = rng.choice(order, (len(counts), n["t"])), shared
    for row, count in zip(table, counts, strict=True):
        owned_count = max(count - shared, 0)
        row[:count] = [*order[:shared], *order[next_page : next_page + owned_count]][:count]
        next_page += owned_count
    return table


def owned_pages(pages: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the pages that samples own, in random order: all `pages` but `FREE` random ones."""
    return rng.permutation(pages)[: pages - FREE]


def slot_numbers(table: np.ndarray, size: int, keys: int) -> np.ndarray:
    """Returns the slot of each key as a number page * S + slot: (B, keys) for a table (B, T), (keys,) for
    a row (T,). `size` is S."""
    positions = np.arange(keys)
    return np.asarray(table.astype(int)[..., positions // size] * size + positions % size)


def slots_of(table: np.ndarray, counts: np.ndarray, size: int, keys: int) -> np.ndarray:
    """Returns the slots (B, keys) of keys as numbers page * S + slot. The last key of a sample stands at
    the end of its row; -1 stands before its first key. `counts` (B,): numbers of keys; `size` is S."""
    key_index = np.arange(keys) - (keys - counts.astype(int)[:, None])
    pages = np.take_along_axis(table.astype(int), np.maximum(key_index, 0) // size, 1)
    return np.where(key_index < 0, -1, pages * size + key_index % size)


def in_order(table: np.ndarray) -> np.ndarray:
    """Returns the table (B, T) with the page numbers 0, 1, 2 ... row after row, as if samples lay in
    order. They begin anew after the table's largest number. The last column, which no key uses, stays."""
    order = np.arange(table[:, :-1].size) % (table.max(initial=0) + 1)
    return np.column_stack([order.reshape(table[:, :-1].shape), table[:, -1]])


def slots(inputs: Inputs) -> np.ndarray:
    """Returns the slots of the keys of inputs with pages, (B, Lk), as `slots_of` does."""
    arrays = inputs.arrays
    table, counts = arrays["page_table"], arrays["key_lengths"]
    return slots_of(table, counts, inputs.letters["s"], inputs.sizes.Lk)


def readable(ids: np.ndarray) -> np.ndarray:
    """Returns the slots `ids` of `slots_of`, with a slot of the same sample (0 without one) in place of
    every -1, so that all of them can be read."""
    return np.where(ids < 0, ids.max(1, keepdims=True, initial=0), ids)


def tokens_first(x: np.ndarray, array_axes: str) -> np.ndarray:
    """Returns an array x with the axes `array_axes`, with samples and keys moved to the front."""
    return np.moveaxis(x, (array_axes.index("b"), array_axes.index("k")), (0, 1))


def take_tokens(case: Case, pool: np.ndarray, ids: np.ndarray, array_axes: str) -> np.ndarray:
    """Returns the tokens in the slots `ids` (B, Lk) of a pool, as an array with the axes `array_axes`."""
    tokens = flat_slots(case, pool, array_axes)[readable(ids)]
    return np.moveaxis(tokens, (0, 1), (array_axes.index("b"), array_axes.index("k")))


def write_tokens(
    case: Case, pool: np.ndarray, ids: np.ndarray, x: np.ndarray, array_axes: str
) -> np.ndarray:
    """Returns a copy of a pool with the tokens x, whose axes are `array_axes`, in the slots `ids` (B,
    Lk). Negative slots are skipped. Of several tokens for a slot the last one stays."""
    copy = slots_first(case, pool, array_axes).copy()
    copy.reshape(-1, *copy.shape[2:])[ids[ids >= 0]] = tokens_first(x, array_axes)[ids >= 0]
    return np.ascontiguousarray(slots_first(case, copy, array_axes))


def stored_pool_names(case: Case) -> tuple[str, ...]:
    """Returns the names of the pools in which a call stores new tokens, in the order of its outputs."""
    names = (name.removesuffix("_output") for name in case.operator.outputs(case))
    return tuple(name for name in names if f"{NEW}{name}" in case.axes)


def with_stored_tokens(inputs: Inputs) -> Inputs:
    """Returns the inputs with the new tokens stored in their slots of the pools."""
    case, names, array_axes = (
        inputs.case,
        stored_pool_names(inputs.case),
        case_without_pages(inputs.case).axes,
    )
    slot_ids = slots(inputs)[:, -inputs.sizes.Lq :]
    new_tokens = {name: inputs.arrays[f"{NEW}{name}"] for name in names}
    pools = {
        n: write_tokens(case, inputs.arrays[n], slot_ids, new_tokens[n], array_axes[n])
        for n in names
    }
    return inputs.replace(writes=False, **pools, **{f"{NEW}{name}": None for name in names})


def pool_axes_by_name(inputs: Inputs) -> dict[str, str]:
    """Returns the axes of each pool, by array name. A pool has axes "p" (pages) and "s" (slots)."""
    return {
        name: array_axes
        for name, array_axes in inputs.case.axes.items()
        if {"p", "s"} <= {*array_axes}
    }


def read_entries(inputs: Inputs) -> np.ndarray:
    """Returns, boolean (B, T), the table entries that name a page with a key of their sample."""
    counts, n = inputs.arrays["key_lengths"], inputs.letters
    return np.asarray(np.arange(n["t"]) * n["s"] < counts[:, None])


def owned_slots(inputs: Inputs) -> np.ndarray:
    """Returns, boolean (P, S), the slots that contain a key of some sample."""
    n, table, counts = inputs.letters, *(inputs.arrays[name] for name in TABLE)
    is_owned = np.zeros((n["p"], n["s"]), bool)
    for row, count in zip(table, counts, strict=True):
        is_owned.reshape(-1)[slot_numbers(row, n["s"], int(count))] = True
    return is_owned


def fill_slots(inputs: Inputs, slots: np.ndarray, value: Any, key_value: Any = None) -> Inputs:
    """Returns the inputs with `value`, which broadcasts to a pool, in some `slots` (boolean (P, S)) of
    all pools. Pools of keys get `key_value` if it is not None. In place of an infinity floating-point
    codes get NaN, and whole codes the largest code."""
    arrays = {}
    for name, array_axes in pool_axes_by_name(inputs).items():
        new_value = value if key_value is None or not name.startswith("key") else key_value
        fmt = inputs.case.dtype_of(name)
        if isinstance(fmt, Code):
            finite = np.clip(np.nan_to_num(new_value, nan=fmt.max), -fmt.max, fmt.max)
            new_value = np.where(np.isfinite(new_value) | fmt.is_whole, finite, np.nan)
        in_slots = slots.reshape([inputs.letters[x] if x in "ps" else 1 for x in array_axes])
        arrays[name] = round_to(np.where(in_slots, new_value, inputs.arrays[name]), fmt)
    return inputs.replace(**arrays)


def refuse_malformed(
    table: np.ndarray, counts: np.ndarray, size: int, pages: int, samples: int
) -> None:
    """Raises ValueError unless lengths `counts` (B,) and `table` (B, T) have B = `samples` rows and name
    slots of a pool of `pages` pages with `size` slots."""
    T = table.shape[1]
    if (len(table), len(counts)) != (samples, samples):
        raise ValueError(
            f"expected {samples} samples, got {len(table)} rows, {len(counts)} lengths"
        )
    if not ((counts >= 0) & (counts <= T * size)).all():
        raise ValueError(f"expected lengths from 0 to {T * size}, got {counts}")
    read = table[np.arange(T) * size < counts[:, None]]
    if not ((read >= 0) & (read < pages)).all():
        raise ValueError(f"expected pages from 0 to {pages - 1}, got {read}")


def mask_missing_keys(inputs: Inputs) -> Inputs:
    """Returns the inputs with a mask for the keys of `gather_tokens`, in which places before the first
    key of a sample are hidden. Inputs without such places are returned unchanged."""
    counts = inputs.arrays.get("key_lengths")
    if counts is None or (counts == inputs.sizes.Lk).all():
        return inputs
    has_key = (slots(inputs) >= 0)[:, None, None]
    mask = inputs.dense_mask
    return inputs.with_dense(mask_array=has_key if mask is None else mask & has_key)


def with_mask_by_position(inputs: Inputs) -> Inputs:
    """Returns the inputs with the mask of `mask_missing_keys`, its first key of each sample at index
    0."""
    masked_inputs = mask_missing_keys(inputs)
    if masked_inputs is inputs or masked_inputs.mask_array is None:
        return masked_inputs
    hidden_count = (inputs.sizes.Lk - inputs.arrays["key_lengths"].astype(int))[:, None, None, None]
    key_order = (np.arange(inputs.sizes.Lk) + hidden_count) % inputs.sizes.Lk
    mask, key_order = np.broadcast_arrays(masked_inputs.mask_array, key_order)
    return replace(masked_inputs, mask_array=np.take_along_axis(mask, key_order, 3))


def gather_tokens(inputs: Inputs) -> Inputs:
    """Returns the inputs without pages, after new tokens are stored. The last key of every sample has the
    index Lk - 1. Inputs without pages are returned unchanged."""
    if "page_table" not in inputs.arrays:
        return inputs
    if stored_pool_names(inputs.case):
        inputs = with_stored_tokens(inputs)
    slot_ids, inputs = slots(inputs), mask_missing_keys(inputs)
    paged_case, case = inputs.case, case_without_pages(inputs.case)
    arrays = {
        name: take_tokens(paged_case, x, slot_ids, case.axes[name])
        if is_pooled(case.axes.get(name, ""))
        else x
        for name, x in inputs.arrays.items()
        if name not in TABLE
    }
    return replace(inputs, case=case, arrays=arrays)

"""Arrays of tokens in pages: a page table in front of an operator.

An array (B, ..., Lk, ...) of the operator becomes a pool (P, S, ...) of P pages with S slots. Two arrays
are added:

    page_table (B, T)    the pages of each sample, in the order of its keys
    key_lengths (B,)     the number of keys of each sample: different ones, Lk of the last sample

Key j of sample b lies in page page_table[b, j // S], slot j % S. The last query and the last new token of
a sample are at its last key. Pages that no sample owns, slots behind the last key, and entries of the
table behind the last page have no influence. In drawn inputs these slots hold large numbers, and these
entries pages of any sample. Whatever the operator computes, it computes of the arrays that `gathered`
takes from the pools.
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
"""What begins the names of arrays of tokens, one for every query, that a call stores in a pool."""

FREE = 2
"""Pages of the pool that no sample owns."""

Draw = Callable[[Case, np.random.Generator, int], dict[str, np.ndarray]]


def flat(case: Case) -> Case:
    """The case without pages, and without tokens that it stores in pools."""
    arranged = [
        option for option in (IN_PAGES, SHARED, LAYOUT) if case.operator.option(option.name)
    ]
    plain = {option.name: option.default for option in arranged}
    return case.with_options(**plain, **({"writes": False} if stores(case) else {}))


def is_pooled(array_axes: str) -> bool:
    """True for the axes of an array that pages hold: those of samples and keys."""
    return {"b", "k"} <= {*array_axes}


def pooled(case: Case, array_axes: str) -> str:
    """The axes of a pool for the axes of its array."""
    if not is_pooled(array_axes):
        return array_axes
    place = "pgs" if heads_first(case, array_axes) else "ps"
    return place + "".join(letter for letter in array_axes if letter not in ("b", "k", *place))


def heads_first(case: Case, array_axes: str) -> bool:
    """True if heads stand before slots in the pool of an array with these axes."""
    return case.option("layout") == "hnd" and "g" in array_axes


def slots_first(case: Case, pool: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """A pool as (P, S, ...), for the axes of its array. Its own inverse."""
    return pool.swapaxes(1, 2) if heads_first(case, array_axes) else pool


def flat_slots(case: Case, pool: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """All slots (P * S, ...) of a pool, for the axes of its array."""
    paged = slots_first(case, pool, array_axes)
    return paged.reshape(-1, *paged.shape[2:])


def pool_of(case: Case, slots: np.ndarray, array_axes: str = "g") -> np.ndarray:
    """A pool of the case with these slots (P * S, ...), for the axes of its array."""
    size = case.option("page_size")
    paged = slots.reshape(len(slots) // size, size, *slots.shape[1:])
    return np.ascontiguousarray(slots_first(case, paged, array_axes))


def outputs(case: Case, array_axes: Axes) -> Axes:
    """The axes of a case's outputs, with pools if it has pages."""
    if case.option("page_size") is None:
        return array_axes
    return {name: pooled(case, letters) for name, letters in array_axes.items()}


def axes(case: Case, array_axes: Axes) -> Axes:
    """The axes of a case's arrays, with pools and their table if it has pages."""
    table = {} if case.option("page_size") is None else {"page_table": "bt", "key_lengths": "b"}
    return {**outputs(case, array_axes), **table}


def needs(case: Case) -> Mapping[str, bool]:
    """The features that pages need."""
    return {
        "pages": case.option("page_size") is not None,
        "heads-before-slots": case.option("layout") == "hnd",
    }


def lengths(case: Case) -> np.ndarray:
    """The number of keys of each sample, int (B,), at least Lq if Lk is. The last sample has Lk, and the
    first one a last page that is full, if its keys fill one."""
    s, size = case.sizes, case.option("page_size")
    counts = s.Lk - np.arange(s.B)[::-1] * (max(s.Lk - max(s.Lq, 1), 0) // max(s.B, 1))
    full = counts[:1] // size * size
    if s.B > 1 and full.min() >= max(s.Lq, 1):
        counts[:1] = full
    return counts


def letters(case: Case) -> Mapping[str, int]:
    """The numbers of pages, of slots and of entries of the table, by letter."""
    size = case.option("page_size")
    if size is None:
        return {}
    return letters_of(*page_counts(case), size)


def letters_of(counts: np.ndarray, shared: int, size: int) -> dict[str, int]:
    """`letters` for the number of pages of each sample, (B,), of which those with keys share some."""
    total = int(counts.sum()) - shared * max(int((counts > 0).sum()) - 1, 0)
    return {"p": total + FREE, "s": size, "t": int(counts.max(initial=0)) + 1}


def page_counts(case: Case) -> tuple[np.ndarray, int]:
    """The number of pages of each sample, (B,), and how many of them are shared: full ones, into which no
    sample writes."""
    counts, size = lengths(case), case.option("page_size")
    before_writing = int(counts.min(initial=case.sizes.Lk)) - (
        case.sizes.Lq if case.option("writes") else 0
    )
    return -(-counts // size), before_writing // size if case.option("shared") else 0


def validate(case: Case) -> None:
    """Raises ValueError for a mask in pages that does not count from the last key, for samples that can
    share no page, and for an arrangement of pages without pages."""
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


def drawn(draw: Draw, case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """What `draw` draws for the case without pages, in pages if the case has pages: of each sample the
    last keys."""
    if case.option("page_size") is None:
        return draw(case, rng, seed)
    arrays, array_axes, n = draw(flat(case), rng, seed), flat(case).axes, letters(case)
    counts, (pages, shared) = lengths(case), page_counts(case)
    table = draw_table(pages, n, owned_pages(n["p"], rng), rng, shared)
    at = slots_of(table, counts, n["s"], case.sizes.Lk)
    for name, x in list(arrays.items()):
        if is_pooled(array_axes[name]):
            placed = at
            if f"{NEW}{name}" in case.axes:
                newest = np.arange(case.sizes.Lk) >= case.sizes.Lk - case.sizes.Lq
                arrays[f"{NEW}{name}"] = np.compress(newest, x, array_axes[name].index("k"))
                placed = np.where(newest, -1, at)
            tokens = in_front(x, array_axes[name])
            of_codes, largest = name in case.operator.array_kinds.codes, np.abs(x).max(initial=0.0)
            large = min(largest, case.dtype_of(name).max) if of_codes else 64 * largest
            pool = np.full((n["p"] * n["s"], *tokens.shape[2:]), large)
            pool[::2] *= -1 if large and not name.endswith("scale") else 1
            arrays[name] = put(
                case, pool_of(case, pool, array_axes[name]), placed, x, array_axes[name]
            )
    return {**arrays, "page_table": table.astype(np.float64), "key_lengths": counts.astype(float)}


def draw_table(
    counts: np.ndarray, n: Mapping[str, int], order: np.ndarray, rng: np.random.Generator,
    shared: int = 0,
) -> np.ndarray:  # fmt: skip
    """A table of pages: `counts` pages of each sample, in this order, of which the first ones are shared.
    Later entries are pages of any sample."""
    table, place = rng.choice(order, (len(counts), n["t"])), shared
    for row, count in zip(table, counts, strict=True):
        own = max(count - shared, 0)
        row[:count] = [*order[:shared], *order[place : place + own]][:count]
        place += own
    return table


def owned_pages(pages: int, rng: np.random.Generator) -> np.ndarray:
    """The pages that samples own, of a pool with this many, in any order. Any page may be free."""
    return rng.permutation(pages)[: pages - FREE]


def numbers(table: np.ndarray, size: int, keys: int) -> np.ndarray:
    """The slots (B, keys) of keys as numbers page * S + slot, or (keys,) for one row of the table."""
    at = np.arange(keys)
    return np.asarray(table.astype(int)[..., at // size] * size + at % size)


def slots_of(table: np.ndarray, counts: np.ndarray, size: int, keys: int) -> np.ndarray:
    """The slots (B, keys) of keys as numbers page * S + slot, -1 in front of the first key of a sample.
    The last key of every sample is the last one of its row."""
    place = np.arange(keys) - (keys - counts.astype(int)[:, None])
    entries = np.take_along_axis(table.astype(int), np.maximum(place, 0) // size, 1)
    return np.where(place < 0, -1, entries * size + place % size)


def in_order(table: np.ndarray) -> np.ndarray:
    """A table whose samples have the first pages of the pool, in their order."""
    other = table.copy()
    order = np.arange(other[:, :-1].size) % (table.max(initial=0) + 1)
    other[:, :-1] = order.reshape(other[:, :-1].shape)
    return other


def slots(inputs: Inputs) -> np.ndarray:
    """`slots_of` the keys of inputs with pages, (B, Lk)."""
    arrays = inputs.arrays
    table, counts = arrays["page_table"], arrays["key_lengths"]
    return slots_of(table, counts, inputs.letters["s"], inputs.sizes.Lk)


def readable(at: np.ndarray) -> np.ndarray:
    """The slots of `slots_of`, where every -1 is now a slot of its sample, or 0: all can be read."""
    return np.where(at < 0, at.max(1, keepdims=True, initial=0), at)


def in_front(x: np.ndarray, array_axes: str) -> np.ndarray:
    """An array with the axes `array_axes`, with samples and keys as its first axes."""
    return np.moveaxis(x, (array_axes.index("b"), array_axes.index("k")), (0, 1))


def taken(case: Case, pool: np.ndarray, at: np.ndarray, array_axes: str) -> np.ndarray:
    """The tokens in the slots `at` (B, Lk) of a pool of the case, with the axes `array_axes`."""
    tokens = flat_slots(case, pool, array_axes)[readable(at)]
    return np.moveaxis(tokens, (0, 1), (array_axes.index("b"), array_axes.index("k")))


def put(case: Case, pool: np.ndarray, at: np.ndarray, x: np.ndarray, array_axes: str) -> np.ndarray:
    """A copy of a pool of the case, with tokens (axes `array_axes`) in the slots `at` (B, Lk) that are
    not negative. Of several tokens for a slot the last one stays."""
    copy = slots_first(case, pool, array_axes).copy()
    copy.reshape(-1, *copy.shape[2:])[at[at >= 0]] = in_front(x, array_axes)[at >= 0]
    return np.ascontiguousarray(slots_first(case, copy, array_axes))


def stores(case: Case) -> tuple[str, ...]:
    """The names of the pools in which a call stores new tokens, in the order of its outputs."""
    names = (name.removesuffix("_output") for name in case.operator.outputs(case))
    return tuple(name for name in names if f"{NEW}{name}" in case.axes)


def stored(inputs: Inputs) -> Inputs:
    """The inputs after new tokens are stored in their slots."""
    case, names, array_axes = inputs.case, stores(inputs.case), flat(inputs.case).axes
    at = slots(inputs)[:, -inputs.sizes.Lq :]
    pools = {
        name: put(case, inputs.arrays[name], at, inputs.arrays[f"{NEW}{name}"], array_axes[name])
        for name in names
    }
    return inputs.replace(writes=False, **pools, **{f"{NEW}{name}": None for name in names})


def pools(inputs: Inputs) -> dict[str, str]:
    """The axes of the arrays that are pools, by name."""
    return {
        name: array_axes
        for name, array_axes in inputs.case.axes.items()
        if {"p", "s"} <= {*array_axes}
    }


def read_entries(inputs: Inputs) -> np.ndarray:
    """The entries of the table that name a page with a key of their sample, boolean (B, T)."""
    counts, n = inputs.arrays["key_lengths"], inputs.letters
    return np.asarray(np.arange(n["t"]) * n["s"] < counts[:, None])


def owned(inputs: Inputs) -> np.ndarray:
    """The slots that hold a key of some sample, boolean (P, S)."""
    n, table, counts = inputs.letters, *(inputs.arrays[name] for name in TABLE)
    own = np.zeros((n["p"], n["s"]), bool)
    for row, count in zip(table, counts, strict=True):
        own.reshape(-1)[numbers(row, n["s"], int(count))] = True
    return own


def filled(inputs: Inputs, slots: np.ndarray, number: Any, key: Any = None) -> Inputs:
    """The inputs with another number in some slots (boolean (P, S)) of all pools, and with `key` in those
    of keys. Codes have NaN in place of infinity, and whole ones their largest code.

    Arrays have the axes of their pools.
    """
    arrays = {}
    for name, array_axes in pools(inputs).items():
        new = number if key is None or not name.startswith("key") else key
        fmt = inputs.case.dtype_of(name)
        if isinstance(fmt, Code):
            finite = np.clip(np.nan_to_num(new, nan=fmt.max), -fmt.max, fmt.max)
            new = np.where(np.isfinite(new) | fmt.is_whole, finite, np.nan)
        where = slots.reshape([inputs.letters[x] if x in "ps" else 1 for x in array_axes])
        arrays[name] = round_to(np.where(where, new, inputs.arrays[name]), fmt)
    return inputs.replace(**arrays)


def refuse_malformed(
    table: np.ndarray, counts: np.ndarray, size: int, pages: int, samples: int
) -> None:
    """Raise ValueError unless lengths (B,) and table (B, T) name slots that exist, in a pool with so many
    pages of `size` slots."""
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


def masked(inputs: Inputs) -> Inputs:
    """The inputs with a mask over the tokens of `gathered`, which hides what lies in front of the first
    key of a sample; the inputs as they are without pages, and if all samples have Lk keys."""
    counts = inputs.arrays.get("key_lengths")
    if counts is None or (counts == inputs.sizes.Lk).all():
        return inputs
    own = (slots(inputs) >= 0)[:, None, None]
    mask = inputs.dense_mask
    return inputs.with_dense(mask_array=own if mask is None else mask & own)


def by_position(inputs: Inputs) -> Inputs:
    """`masked` inputs whose mask is that of keys at their positions: the first key of a sample is the
    first one."""
    made = masked(inputs)
    if made is inputs or made.mask_array is None:
        return made
    ahead = (inputs.sizes.Lk - inputs.arrays["key_lengths"].astype(int))[:, None, None, None]
    places = (np.arange(inputs.sizes.Lk) + ahead) % inputs.sizes.Lk
    mask = made.mask_array
    shape = np.broadcast_shapes(mask.shape, places.shape)
    places = np.broadcast_to(places, shape)
    return replace(made, mask_array=np.take_along_axis(np.broadcast_to(mask, shape), places, 3))


def gathered(inputs: Inputs) -> Inputs:
    """The inputs without pages, after new tokens are stored: the last token of every sample is the last
    one."""
    if "page_table" not in inputs.arrays:
        return inputs
    if stores(inputs.case):
        inputs = stored(inputs)
    at, inputs = slots(inputs), masked(inputs)
    paged, case = inputs.case, flat(inputs.case)
    arrays = {
        name: taken(paged, x, at, case.axes[name]) if is_pooled(case.axes.get(name, "")) else x
        for name, x in inputs.arrays.items()
        if name not in TABLE
    }
    return replace(inputs, case=case, arrays=arrays)

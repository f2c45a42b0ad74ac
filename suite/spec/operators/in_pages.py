"""Arrays of tokens in pages: a page table in front of an operator.

An array (B, ..., Lk, ...) of the operator becomes a pool (P, S, ...) of P pages with S slots. Two arrays
are added:

    page_table (B, T)    the pages of each sample, in the order of its keys
    key_lengths (B,)     the number of keys of each sample, which is Lk

Key j of sample b lies in page page_table[b, j // S], slot j % S. Pages that no sample owns, slots behind
the last key, and entries of the table behind the last page have no influence. In drawn inputs these slots
hold large numbers, and these entries pages of any sample. Whatever the operator computes, it computes of
the arrays that `gathered` takes from the pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from suite.spec.case import Case
from suite.spec.inputs import Inputs
from suite.spec.operator import Axes, Option

IN_PAGES = Option(
    "page_size", r"page([1-9]\d*)", int, lambda size: f"page{size}", None, (1, 3, 16), rare=True
)
"""The number of slots of a page; None without pages."""

WORDS = {"pages": "keys in pages of a pool, which a table lists for every sample"}

TABLE = ("page_table", "key_lengths")

FREE = 2
"""Pages of the pool that no sample owns."""

Draw = Callable[[Case, np.random.Generator, int], dict[str, np.ndarray]]


def flat(case: Case) -> Case:
    """The case without pages."""
    return case.with_options(page_size=None)


def is_pooled(of: str) -> bool:
    """True for the axes of an array that pages hold: those of samples and keys."""
    return {"b", "k"} <= {*of}


def pooled(of: str) -> str:
    """The axes of a pool for the axes of its array."""
    return "ps" + of.replace("b", "").replace("k", "") if is_pooled(of) else of


def axes(case: Case, of: Axes) -> Axes:
    """The axes of a case's arrays or outputs, with pools if it has pages."""
    if case.option("page_size") is None:
        return of
    return {name: pooled(letters) for name, letters in of.items()}


def table_axes(case: Case) -> Axes:
    """The axes of the added arrays."""
    return {} if case.option("page_size") is None else {"page_table": "bt", "key_lengths": "b"}


def letters(case: Case) -> Mapping[str, int]:
    """The numbers of pages, of slots and of entries of the table, by letter."""
    size = case.option("page_size")
    if size is None:
        return {}
    pages = -(-case.sizes.Lk // size)
    return {"p": case.sizes.B * pages + FREE, "s": size, "t": pages + 1}


def drawn(draw: Draw, case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """What `draw` draws for the case without pages, in pages if the case has pages."""
    if case.option("page_size") is None:
        return draw(case, rng, seed)
    arrays, of, s, n = draw(flat(case), rng, seed), flat(case).axes, case.sizes, letters(case)
    order = owned_pages(n["p"], rng)
    table = np.concatenate(
        [order.reshape(s.B, n["t"] - 1), rng.integers(0, n["p"], (s.B, 1))], 1
    ).astype(np.float64)
    slots = numbers(table, n["s"], s.Lk)
    for name, x in arrays.items():
        if is_pooled(of[name]):
            tokens = in_front(x, of[name])
            large = np.abs(x).max(initial=0.0) * (
                1 if name in case.operator.array_kinds.codes else 64
            )
            pool = np.full((n["p"] * n["s"], *tokens.shape[2:]), large)
            pool[::2] *= -1 if large and not name.endswith("scale") else 1
            pool[slots] = tokens
            arrays[name] = pool.reshape(n["p"], n["s"], *tokens.shape[2:])
    return {**arrays, "page_table": table, "key_lengths": np.full(s.B, float(s.Lk))}


def owned_pages(pages: int, rng: np.random.Generator) -> np.ndarray:
    """The pages that samples own, of a pool with this many, in any order. Page 0 is free, and another
    one in between."""
    return rng.permutation(np.arange(1, pages))[: pages - FREE]


def numbers(table: np.ndarray, size: int, keys: int) -> np.ndarray:
    """The slots (B, keys) of keys as numbers page * S + slot, or (keys,) for one row of the table."""
    at = np.arange(keys)
    return np.asarray(table.astype(int)[..., at // size] * size + at % size)


def in_order(table: np.ndarray) -> np.ndarray:
    """A table whose samples have the first pages of the pool, in their order."""
    other = table.copy()
    other[:, :-1] = np.arange(other[:, :-1].size).reshape(other[:, :-1].shape)
    return other


def slots(inputs: Inputs) -> np.ndarray:
    """The slots (B, Lk) of the keys of inputs with pages."""
    return numbers(inputs.arrays["page_table"], inputs.letters["s"], inputs.sizes.Lk)


def in_front(x: np.ndarray, of: str) -> np.ndarray:
    """An array with the axes `of`, with samples and keys as its first axes."""
    return np.moveaxis(x, (of.index("b"), of.index("k")), (0, 1))


def taken(pool: np.ndarray, at: np.ndarray, of: str) -> np.ndarray:
    """The tokens in the slots `at` (B, Lk) of a pool, with the axes `of`."""
    tokens = pool.reshape(-1, *pool.shape[2:])[at]
    return np.moveaxis(tokens, (0, 1), (of.index("b"), of.index("k")))


def put(pool: np.ndarray, at: np.ndarray, x: np.ndarray, of: str) -> np.ndarray:
    """A copy of a pool, with tokens (axes `of`) in the slots `at`."""
    copy = pool.copy()
    copy.reshape(-1, *pool.shape[2:])[at] = in_front(x, of)
    return copy


def gathered(inputs: Inputs) -> Inputs:
    """The inputs without pages."""
    if "page_table" not in inputs.arrays:
        return inputs
    case, at = flat(inputs.case), slots(inputs)
    arrays = {
        name: taken(x, at, case.axes[name]) if is_pooled(case.axes.get(name, "")) else x
        for name, x in inputs.arrays.items()
        if name not in TABLE
    }
    return replace(inputs, case=case, arrays=arrays)

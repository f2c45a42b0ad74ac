"""Paged attention: keys and values lie in pages of a pool, and a table says which pages a sample has.

    query (Lq, H, D), output (Lq, H, Dv)         packed, as in `packed`
    key (P, S, Hkv, D), value (P, S, Hkv, Dv)    P pages of S slots; with `hnd` (P, Hkv, S, .)
    query_lengths, key_lengths (B,)              lengths of the B samples
    page_table (B, T)                            the pages of each sample, in the order of its keys

Key j of sample b lies in page page_table[b, j // S], slot j % S. A query attends only keys of its sample,
and with `causal` the last query of a sample is aligned at its last key: decoding, later chunks and whole
prompts stand in one call (Kwon et al., PagedAttention, 2023).

What no sample owns has no influence: pages that are in no table, slots behind the last key of a sample,
entries of the table behind its last page. In drawn inputs these slots hold large numbers, and these
entries pages of any sample. A sample may have no queries; without keys it has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.softcap import SOFTCAP
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import (
    LEFT,
    SCALE,
    ArrayKinds,
    Axes,
    Operator,
    Option,
    Packing,
    Questions,
    Work,
    choice,
)
from attention_conformance.suite.spec.operators import in_pages
from attention_conformance.suite.spec.operators.in_pages import (
    owned_pages,
    pool_axes,
    pool_of,
    slot_numbers,
)
from attention_conformance.suite.spec.operators.layers import FACTORS, PASSES
from attention_conformance.suite.spec.operators.packed import (
    LENGTHS,
    allowed_pairs,
    packed_operands,
    parse_lengths,
    segments,
    token_of_lengths,
    validate_lengths,
    with_lengths,
)
from attention_conformance.suite.spec.operators.paged_cases import ASKS, PAGE_SIZE, PLAIN
from attention_conformance.suite.spec.sizes import Sizes

FEATURES = frozenset(
    {
        "causal", "window", "softcap", "scale", "grouped-heads", "value-size", "empty-segments",
        "heads-before-slots", "inner-stride", "gradient", "other-shapes",
    }
)  # fmt: skip
"""Features of paged attention."""


PAGE = Option(
    "page_size", r"page(\d+)", int, lambda size: f"page{size}", PAGE_SIZE, (1, 2, 3, 7, 16)
)
"""The number of slots of a page."""


def page_counts(case: Case) -> tuple[np.ndarray, int]:
    """Returns the number of pages of each sample, (B,), and the number of pages that all samples with
    keys share: the full pages of the shortest sample, or 0. Raises ValueError if the case has no
    lengths."""
    if case.option("segments") is None:
        raise ValueError(f"{case.operator} needs lengths of samples, as in seg1.3x7.12: {case.id}")
    keys, size = np.array(case.option("segments")[1]), case.option("page_size")
    shared = int(keys[keys > 0].min(initial=keys.max())) // size if case.option("shared") else 0
    return -(-keys // size), shared


def pool_sizes(case: Case) -> dict[str, int]:
    """Returns the numbers of pages, of slots and of entries of the table, by letter."""
    return in_pages.sizes_by_letter(*page_counts(case), case.option("page_size"))


def with_pages_of(case: Case, size: int) -> Case:
    """Returns the case with pages of `size` slots. Every sample keeps its number of pages, and its last
    page stays full or partly filled.

    Samples with as many queries as keys stay so. A case without lengths keeps its number of keys, not its
    number of pages.
    """
    if case.option("segments") is None:
        return case.with_options(page_size=size)
    old_size, (queries, keys) = case.option("page_size"), case.option("segments")
    if size == old_size:
        return case
    pages_and_tail = [divmod(n, old_size) for n in keys]
    new_keys = tuple(
        n * size + (tail and max(1, min(tail, size - 1))) for n, tail in pages_and_tail
    )
    new_queries = tuple(
        keys_after if count == keys_before else min(count, keys_after)
        for count, keys_before, keys_after in zip(queries, keys, new_keys, strict=True)
    )
    return with_lengths(case, new_queries, new_keys, page_size=size).with_options()


def samples(inputs: Inputs) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yields the query slice of each sample, the slots of its keys as numbers page * S + slot, and its
    mask (queries, keys), True attends."""
    case, size = inputs.case, inputs.case.option("page_size")
    for (rows, keys, attended), pages in zip(parts(case), inputs.arrays["page_table"], strict=True):
        yield rows, slot_numbers(pages, size, keys.stop - keys.start), attended


def parts(case: Case) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yields the query slice, the key slice and the mask (queries, keys) of each sample; True attends."""
    for rows, keys in segments(case):
        yield rows, keys, allowed(case, rows.stop - rows.start, keys.stop - keys.start)


def allowed(case: Case, queries: int, keys: int) -> np.ndarray:
    """Returns the mask of one sample, boolean (queries, keys), True attends."""
    if case.option("alignment") == "all":
        return allowed_pairs(queries, keys, "all")
    attended = allowed_pairs(queries, keys, "causalbr")
    left = case.option("left")
    return (
        attended
        if left is None
        else attended & ~np.tri(queries, keys, keys - queries - left - 1, bool)
    )


def refuse_malformed(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, query_offsets: np.ndarray,
    key_lengths: np.ndarray, page_table: np.ndarray,
) -> None:  # fmt: skip
    """Raises ValueError unless lengths and table name queries, pages and slots that exist.

    Pools are (P, S, Hkv, .), and `query_offsets` (B + 1,) are cumulative lengths.
    """
    (P, S), B = key.shape[:2], len(page_table)
    if value.shape[:2] != (P, S):
        raise ValueError(f"expected {P} pages of {S} values, got {value.shape[:2]}")
    if len(query_offsets) != B + 1:
        raise ValueError(f"expected offsets of {B} samples, got {len(query_offsets)}")
    if query_offsets[-1] != len(query) or (np.diff(query_offsets, prepend=0) < 0).any():
        raise ValueError(f"expected offsets that rise to {len(query)}, got {query_offsets}")
    in_pages.refuse_malformed(page_table, key_lengths, S, P, B)


def axes_of_pools(case: Case) -> tuple[str, str]:
    """Returns the axis letters of the pool of keys and of the pool of values."""
    return pool_axes(case, "bgkd"), pool_axes(case, "bgkv")


def axes(case: Case) -> Axes:
    key, value = axes_of_pools(case)
    return {
        "query": "qhd", "key": key, "value": value, "query_lengths": "b", "key_lengths": "b",
        "page_table": "bt",
    }  # fmt: skip


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    s, n = case.sizes, pool_sizes(case)
    query, *tokens = packed_operands(case, rng)
    table = draw_table(case, rng)
    arrays = {"query": query}
    large = case.dtype.large * (-1.0) ** np.arange(n["p"] * n["s"])
    for name, array in zip(("key", "value"), tokens, strict=True):
        slots = np.empty((n["p"] * n["s"], s.Hkv, array.shape[-1]))
        slots[:] = large[:, None, None]
        for (_, keys), pages in zip(segments(case), table, strict=True):
            slots[slot_numbers(pages, n["s"], keys.stop - keys.start)] = array[keys]
        arrays[name] = pool_of(case, slots)
    counts = (np.asarray(part, np.float64) for part in case.option("segments"))
    arrays |= zip(("query_lengths", "key_lengths"), counts, strict=True)
    return {**arrays, "page_table": table.astype(np.float64)}


def draw_table(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Returns a page table (B, T). The pages are in random order, or ascending by the option `order`."""
    n, (counts, shared) = pool_sizes(case), page_counts(case)
    order = owned_pages(n["p"], rng)
    if case.option("order") == "ascending":
        order = np.sort(order)
    return in_pages.draw_table(counts, n, order, rng, shared)


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """Returns the inputs with only the samples `order`, in this order. The pools are unchanged."""
    rows = [rows for rows, _ in segments(inputs.case)]
    queries, keys = ([part[n] for n in order] for part in inputs.case.option("segments"))
    arrays = {
        **inputs.arrays,
        "query": np.concatenate([inputs.query[rows[n]] for n in order]),
        "query_lengths": np.asarray(queries, np.float64),
        "key_lengths": np.asarray(keys, np.float64),
        "page_table": inputs.arrays["page_table"][list(order)],
    }
    case = with_lengths(inputs.case, queries, keys)
    return replace(inputs, case=case, arrays=arrays, sizes=case.sizes)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    queries, keys = case.option("segments")
    return {
        "scale": case.option("scale") is not None,
        "softcap": case.option("softcap") is not None,
        "causal": case.option("alignment") != "all",
        "window": case.option("left") is not None,
        "empty-segments": 0 in (*queries, *keys),
        "heads-before-slots": case.option("layout") == "hnd",
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate(case: Case) -> None:
    if case.option("page_size") < 1:
        raise ValueError(f"a page has at least one slot: {case.id}")
    validate_lengths(case, "sample")
    (_, shared), (queries, keys) = page_counts(case), case.option("segments")
    if case.option("softcap") is not None:
        SOFTCAP.validate(case)
    causal = case.option("alignment") != "all"
    # A query of a causal mask aligned at the last key has a key if there are as many keys as queries.
    most_queries = [k if causal else q * k for q, k in zip(queries, keys, strict=True)]
    if any(q > most for q, most in zip(queries, most_queries, strict=True)):
        raise ValueError(f"every query needs a key: {case.id}")
    if case.option("left") is not None and not causal:
        raise ValueError(f"a window is causal: write win4/causal: {case.id}")
    if case.option("shared") and not shared:
        raise ValueError(f"what samples share are full pages: {case.id}")


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes. Forward costs 2 P (D + Dv) operations for P attending pairs,
    `direction` multiplies them by `FACTORS`. Each sample reads the keys that it attends once; `direction`
    multiplies the bytes by `PASSES`."""
    s, masks = inputs.sizes, [mask for _, _, mask in samples(inputs)]
    pairs = s.H * sum(int(mask.sum()) for mask in masks)
    tokens_read = s.Hkv * sum(int(mask.any(0).sum()) for mask in masks)
    moved_elements = (s.Lq * s.H + tokens_read) * (s.D + s.Dv)
    flops = 2.0 * pairs * (s.D + s.Dv) * FACTORS[direction]
    return Work(flops, moved_elements * inputs.dtype.itemsize * PASSES[direction])


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """Returns sizes and segments of a random case. Two numbers make a sample: its queries, and the keys
    that it has beyond its queries. A last number without a second one is a prompt: as many keys as
    queries."""
    pairs = [
        *zip(numbers[::2], numbers[1::2], strict=False),
        *([(numbers[-1], 0)] * (len(numbers) % 2)),
    ]
    queries = tuple(count for count, _ in pairs)
    keys = tuple(count + earlier_keys for count, earlier_keys in pairs)
    new_sizes = replace(sizes, B=len(queries), Lq=sum(queries), Lk=sum(keys))
    return new_sizes, {"segments": (queries, keys)}


PAGED = Operator(
    name="paged",
    text="attention of packed queries over keys in pages",
    topic=("pages", "keys in pages of a pool, read and written"),
    words=in_pages.WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "qhv"},
    needs=needs,
    validate=validate,
    asks=ASKS,
    options=(
        Option("segments", LENGTHS, parse_lengths, token_of_lengths),
        PAGE,
        in_pages.SHARED,
        choice("order", ("any", "ascending")),
        in_pages.LAYOUT,
        choice("alignment", ("all", "causal")),
        LEFT,
        *(option for option in (SOFTCAP.option,) if option),
        SCALE,
    ),
    recipes=("normal", "large", "tiny", "ties", "onehot", "integers", "offset", "level"),
    questions=Questions(
        elections=("nan-behind-last-key", "minus-one-behind-last-page"),
        probe=PLAIN,
        well_formed=PLAIN.format(dt="f32"),
    ),
    array_kinds=ArrayKinds(
        letters=pool_sizes, integers=("query_lengths", "key_lengths", "page_table")
    ),
    packing=Packing(completed=completed, choose=choose),
    work=work,
)

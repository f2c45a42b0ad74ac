"""Writing into pages: new keys and values take their slots in a pool; all other slots keep their bits.

    key (N, Hkv, D), value (N, Hkv, Dv)                      tokens; N is Lq in ids
    key_cache (P, S, Hkv, D), value_cache (P, S, Hkv, Dv)    pools of pages, as in `paged`
    slot_mapping (N,)                                        page * S + slot of every token

A token with a negative slot is skipped. Outputs are both pools after the write. No two tokens have one
slot. The gradients asked are those of the keys: the first output does not depend on the values.

In ids `seg1.3.5x7.12.5` are samples of 7, 12 and 5 keys, of which the last 1, 3 and 5 are written: a call
has chunks that begin and end inside pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import (
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Packing,
    Questions,
    choice,
    flag,
)
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.operators.in_pages import LAYOUT, slot_numbers
from attention_conformance.suite.spec.operators.packed import (
    LENGTHS,
    parse_lengths,
    segments,
    sizes_of,
    token_of_lengths,
    with_lengths,
)
from attention_conformance.suite.spec.operators.paged import (
    PAGE,
    PAGED,
    axes_of_pools,
    completed,
    draw_table,
    pool_sizes,
    validate,
)
from attention_conformance.suite.spec.recipes import DRAWS
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "skipped-slots": "tokens with a negative slot, which are not written",
}
"""Words for required features of writing, besides those of pages."""

FEATURES = frozenset(
    {
        "skipped-slots", "value-size", "empty-segments", "heads-before-slots", "inner-stride",
        "gradient", "other-shapes",
    }
)  # fmt: skip
"""Features of writing into pages."""

PLAIN = "paged-write/none/mha/{dt}/b3h2q9k24d8/seg1.3.5x7.12.5"


def axes(case: Case) -> Axes:
    key, value = axes_of_pools(case)
    return {
        "key": "qgd", "value": "qgv", "key_cache": key, "value_cache": value, "slot_mapping": "q"
    }  # fmt: skip


def outputs(case: Case) -> Axes:
    key, value = axes_of_pools(case)
    return {"output": key, "value_output": value}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case: unit normals, also in the pools, so that every change of a slot
    shows."""
    s, n = case.sizes, pool_sizes(case)
    _, key, value = DRAWS[case.recipe](rng, Sizes(1, s.H, s.Hkv, 0, s.Lq, s.D, s.Dv), case.dtype)
    tokens = {name: x[0].transpose(1, 0, 2) for name, x in (("key", key), ("value", value))}
    shape = {"p": n["p"], "s": n["s"], "g": s.Hkv, "d": s.D, "v": s.Dv}
    caches = {
        f"{name}_cache": rng.standard_normal([shape[x] for x in array_axes])
        for name, array_axes in zip(("key", "value"), axes_of_pools(case), strict=True)
    }
    slots: list[int] = []
    for (rows, keys), pages in zip(segments(case), draw_table(case, rng), strict=True):
        count = keys.stop - keys.start
        slots += slot_numbers(pages, n["s"], count)[count - (rows.stop - rows.start) :].tolist()
    mapping = np.array(slots, np.float64)
    if case.option("shuffled"):
        mapping = rng.permutation(mapping)
    if case.option("skipped"):
        mapping[1::3] = -rng.integers(1, n["p"] * n["s"], len(mapping[1::3]))
    arrays = {name: np.ascontiguousarray(x) for name, x in (tokens | caches).items()}
    return {**arrays, "slot_mapping": mapping}


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """Returns the inputs with only the tokens of the samples `order`, in this order. The pools are
    unchanged."""
    rows, (_, keys) = token_ids(inputs.case), inputs.case.option("segments")
    return with_token_ids(inputs, [rows[n] for n in order], [keys[n] for n in order])


def token_ids(case: Case) -> list[np.ndarray]:
    """Returns the indices of the tokens that each sample writes."""
    return [np.arange(rows.start, rows.stop) for rows, _ in segments(case)]


def with_token_ids(inputs: Inputs, rows: Sequence[np.ndarray], keys: Sequence[int]) -> Inputs:
    """Returns the inputs with only the tokens `rows` (indices) of each sample, which has `keys` keys
    after the call. The pools are unchanged."""
    case, tokens = with_lengths(inputs.case, [*map(len, rows)], keys), np.concatenate(rows)
    chosen = {name: inputs.arrays[name][tokens] for name in ("key", "value", "slot_mapping")}
    return replace(inputs, case=case, arrays={**inputs.arrays, **chosen}, sizes=case.sizes)


def split_write(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """Returns the inputs of two calls. The first call writes the first half of each sample's tokens, the
    second call the second half. Both inputs have the pools before any write. Raises ValueError for
    shuffled tokens."""
    if inputs.case.option("shuffled"):
        raise ValueError(f"tokens of a sample stand together: {inputs.case.id}")
    rows, (_, keys) = token_ids(inputs.case), inputs.case.option("segments")
    first, last = zip(*(np.split(tokens, [len(tokens) // 2]) for tokens in rows), strict=True)
    keys_between = [total - len(tokens) for total, tokens in zip(keys, last, strict=True)]
    return with_token_ids(inputs, first, keys_between), with_token_ids(inputs, last, keys)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    queries, keys = case.option("segments")
    return {
        "skipped-slots": case.option("skipped"),
        "empty-segments": 0 in (*queries, *keys),
        "heads-before-slots": case.option("layout") == "hnd",
        "value-size": sizes.D != sizes.Dv,
    }


DRAWN = covering_of(
    "paged-write",
    {
        "heads": ("mha/h2/d8", "mha/h2/d8v6", "mha/h1/d64", "mha/h8/d128", "mha/h2/d12v20"),
        "lengths": (
            "1.3.5x7.12.5", "6.9", "1.1.1.1.1x17.8.16.1.15", "1.4.12.0.0.1x9.11.12.8.0.10",
            "1.17.6.16x15.17.33.16", "1.4x15.25", "150.10x150.61",
        ),
        "pages": ("", "page1", "page3", "page16", "page32", "page256"),
        "layout": ("", "hnd"),
        "order": ("", "ascending"),
        "shuffled": ("", "shuffled"),
        "skipped": ("", "skipped"),
        "recipe": ("", "tiny"),
    },
    sizes_of,
    ("heads", "lengths"),
    is_wide_in_float64,
    triples=[("heads", "pages", "layout")],
)  # fmt: skip

GRADIENTS = covering_of(
    "paged-write",
    {
        "dtype": ("f32",),
        "heads": ("mha/h2/d8", "mha/h2/d64"),
        "lengths": ("1.3.5x7.12.5", "1.4x15.25"),
        "layout": ("", "hnd"),
        "shuffled": ("", "shuffled"),
        "skipped": ("", "skipped"),
    },
    sizes_of,
    ("heads", "lengths"),
)

PAGED_WRITE = Operator(
    name="paged-write",
    text="keys and values written into slots of pages",
    topic=PAGED.topic,
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=outputs,
    needs=needs,
    ties=lambda options: ("hg",),
    validate=validate,
    asks=Asks(
        plain=PLAIN,
        cases=(
            Ask(PLAIN, why="without any option"),
            Ask(DRAWN, dtypes="array"),
        ),
        gradients=(
            Ask(PLAIN, dtypes="float32", why="gradients without any option"),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(
        Option("segments", LENGTHS, parse_lengths, token_of_lengths),
        PAGE,
        choice("order", ("any", "ascending")),
        LAYOUT,
        flag("shuffled", "shuffled"),
        flag("skipped", "skipped"),
    ),
    recipes=("normal", "tiny"),
    questions=Questions(well_formed=PLAIN.format(dt="f32")),
    array_kinds=ArrayKinds(
        letters=pool_sizes, statistics=("value", "value_cache"), integers=("slot_mapping",)
    ),
    has_keys=False,
    packing=Packing(completed=completed, choose=choose),
)

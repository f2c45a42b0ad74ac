"""The cases of attention over keys in pages."""

from __future__ import annotations

from operator import mul

from attention_conformance.suite.spec.case import parse_sizes
from attention_conformance.suite.spec.covering import Row
from attention_conformance.suite.spec.levels import LOST_IN_16_BITS, Ask, designed
from attention_conformance.suite.spec.operator import Asks
from attention_conformance.suite.spec.operators.drawn import (
    covering_of,
    has_wide_heads,
    is_wide_in_float64,
)
from attention_conformance.suite.spec.operators.packed import parse_lengths, sizes_of

PLAIN = "paged/none/gqa2/{dt}/b3h4q9k24d8/seg1.3.5x7.12.5/causal"
"""A step of decoding, a later chunk and a whole prompt, in pages of four slots."""

COMMON = "paged/none/gqa2/f32/b3h4q9k24d8/seg1.3.5x7.12.5/shared/causal"
"""A common prefix, which is often attended apart."""

LEVEL = "paged/none/gqa2/{dt}/b5h4q5k57d16/seg1.1.1.1.1x17.8.16.1.15"

FULL_SPLITS = "paged/none/gqa4/{dt}/b2h8q2k384d64/seg1.1x256.128/page16/causal"
"""Decoding over keys that splits of 128 divide."""

AXES_OF_CASES = {
    "heads": (
        "gqa2/h4/d8", "mha/h4/d8", "mqa/h4/d8v6", "gqa4/h8/d64", "gqa2/h16/d64", "gqa8/h16/d128",
        "gqa8/h32/d80", "gqa4/h8/d192v128", "gqa2/h4/d256",
    ),
    "lengths": (
        "1.3.5x7.12.5", "1.4.12.0.0.1x9.11.12.8.0.10", "1.1.1.1.1x17.8.16.1.15",
        "1.1.1.1.1.1.1.1.1.1.1x3.5.2.9.1.4.8.6.7.2.5", "40.48", "3.5x7.9",
        "1.17.6.16x15.17.33.16", "1.1x33.47", "1.3x131.9", "1.1x259.3", "5.1x146.70", "24x300",
    ),
    "pages": ("", "page1", "page2", "page3", "page16", "page32", "page64", "page128", "page256"),
    "layout": ("", "hnd"),
    "shared": ("", "shared"),
    "order": ("", "ascending"),
    "window": ("causal", "", "causal/win3", "causal/win0", "causal/win31", "causal/win100"),
    "softcap": ("", "cap2.0"),
    "scale": ("", "scale0.3", "scale-0.2"),
    "recipe": ("", "large", "tiny"),
}  # fmt: skip

PAGE_SIZE = 4
"""The slots of a page if an id does not say them."""

MOST_WORK = 700_000
"""The limit of H D times the pairs of query and key in samples, of a drawn case."""


def is_left_out(row: Row) -> bool:
    """Returns True for wide heads in float64, for many or wide heads of many tokens, and for heads of
    models with pages that hold all keys of every sample: a table of one page is hardly read."""
    if is_wide_in_float64(row):
        return True
    if not row.keys() >= {"heads", "lengths"}:
        return False
    kind, sizes, _ = sizes_of(row).split("/")
    s, (queries, keys) = parse_sizes(kind, sizes), parse_lengths(str(row["lengths"]))
    page_size = int(str(row.get("pages", "")).removeprefix("page") or PAGE_SIZE)
    has_one_page = has_wide_heads(row) and page_size >= max(keys)
    pairs = sum(map(mul, queries, keys))
    return has_one_page or s.H * s.D * pairs > MOST_WORK


DRAWN = covering_of(
    "paged",
    AXES_OF_CASES,
    sizes_of,
    ("heads", "lengths"),
    is_left_out,
    triples=[("heads", "pages", "layout")],
)

GRADIENTS = covering_of(
    "paged",
    {
        "dtype": ("f32", "bf16"),
        "heads": ("gqa2/h4/d8", "mha/h4/d8", "gqa4/h8/d64", "gqa2/h4/d128"),
        "lengths": ("1.3.5x7.12.5", "1.4.12.0.0.1x9.11.12.8.0.10", "1.1x33.47"),
        "pages": ("", "page16/hnd", "hnd", "page2/shared"),
        "window": ("causal", "", "causal/win3"),
        "softcap": ("", "cap2.0"),
    },
    sizes_of,
    ("heads", "lengths"),
)

DESIGNED = {
    "without any option": (PLAIN,),
    "a common prefix, which is often attended apart": (f"{COMMON}/win3/cap2.0",),
    "whole prompts alone, which are often attended without pages": (
        "paged/none/gqa2/f32/b2h4q17k17d8/seg5.12/causal/win3/cap2.0",
    ),
    "a chunk behind a page": ("paged/none/gqa2/f32/b2h4q8k16d8/seg3.5x7.9/causal",),
    "a split within a sample": ("paged/none/gqa2/f32/b2h4q2k211d8/seg1.1x141.70/page64/causal",),
    "more than 32 pages of a sample": ("paged/none/gqa2/f32/b2h4q2k211d8/seg1.1x141.70/causal",),
    "as many heads as slots": ("paged/none/mha/f32/b3h4q9k24d8/seg1.3.5x7.12.5/hnd/causal",),
    "decoding alone with heads first": ("paged/none/gqa2/f32/b2h4q2k80d8/seg1.1x33.47/hnd/causal",),
}
"""What smoke's few rows lack, by the reason."""

ASKS = Asks(
    plain=PLAIN,
    plain_kinds=("paged/none/gqa4/f32/b2h8q2k80d128/seg1.1x33.47/page16/causal",),
    pages=(
        PLAIN,
        "paged/none/gqa2/{dt}/b3h4q9k24d8/seg1.3.5x7.12.5/shared/hnd/causal",
        "paged/none/gqa4/{dt}/b2h8q2k80d128/seg1.1x33.47/page16/causal",
    ),
    cases=(
        *designed(DESIGNED),
        Ask(DRAWN, dtypes="array"),
        Ask(
            FULL_SPLITS,
            dtypes="growing",
            since="standard",
            why="decoding over keys that splits of 128 divide",
        ),
        Ask(f"{LEVEL}/causal/level", dtypes="sixteen", why=LOST_IN_16_BITS),
    ),
    gradients=(
        Ask(PLAIN, dtypes="float32 first", why="gradients without any option"),
        Ask(COMMON, why="gradients of a common prefix, which is often attended apart"),
        Ask(GRADIENTS, dtypes="array", since="standard"),
    ),
)
"""What is asked of attention over keys in pages."""

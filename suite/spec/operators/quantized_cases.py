"""The cases of attention over codes."""

from __future__ import annotations

from attention_conformance.suite.spec.levels import LOST_IN_16_BITS, Ask
from attention_conformance.suite.spec.operator import Asks
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64

PLAIN = "quantized/none/gqa2/{dt}/b2h4q3k17d8/perhead/causal"
"""A chunk behind a cache, whose heads have scales of their own."""


SMALL = "quantized/none/gqa2/{dt}/b2h4q3k17d8"
DECODING = "quantized/none/gqa4/{dt}/b2h8q1k130d64"

TILES = "quantized/none/mqa/{dt}/b1h4q1k9d320/pertile"
"""More than two tiles, the last of which is shorter."""

IN_PAGES = (
    f"{SMALL}/e4m3/pertoken/causal/page3",
    f"{SMALL}/pertoken/causal/writes/page4",
    f"{SMALL}/pertoken/causal/page4/shared/hnd",
)
"""Codes and scales in pages, read and written, and in pages that samples share."""

AXES = {
    "sizes": (
        "gqa2/b2h4q3k17d8", "mqa/b3h2q1k23d8v6", "mha/b2h3q33k33d16", "gqa4/b2h8q1k130d64",
        "gqa2/b1h4q3k9d160v130", "gqa8/b1h32q1k64d80", "gqa2/b1h4q67k131d32",
    ),
    "codes": ("", "e4m3", "e5m2", "int4"),
    "scales": ("", "perhead", "pertoken", "perchannel", "pertile"),
    "zero": ("", "zero"),
    "alignment": ("", "causal"),
    "cache": (
        "", "writes", "page4", "page1", "page16", "page32/hnd", "page256", "page2/shared/hnd",
        "writes/page4", "writes/page3/hnd", "writes/page32", "writes/page2/shared",
    ),
    "scale": ("", "scale0.3", "scale-0.2"),
    "recipe": ("", "large", "ties"),
}  # fmt: skip
DRAWN = covering_of("quantized", AXES, is_excluded=is_wide_in_float64)

SERVED = covering_of(
    "quantized",
    {
        "dtype": ("bf16", "f16", "f32"),
        "sizes": (
            "gqa4/b2h8q4k130d64", "gqa2/b2h16q5k48d64", "gqa4/b2h8q1k300d64", "gqa4/b1h16q5k48d128",
            "gqa2/b1h4q2k17d256", "mqa/b2h16q1k257d96",
        ),
        "codes": ("e4m3/perhead", "e4m3", "pertoken", "int4/perchannel"),
        "alignment": ("causal", ""),
        "cache": ("", "writes", "page16", "page32/hnd", "page256", "writes/page32"),
    },
    triples=[("sizes", "codes", "alignment")],
)  # fmt: skip
"""Codes as models serve them, at sizes that people run."""

GRADIENTS = covering_of(
    "quantized",
    {
        "dtype": ("f32", "bf16"),
        "sizes": ("gqa2/b2h4q3k17d8", "mqa/b3h2q1k23d8v6", "gqa4/b1h8q4k33d64"),
        "codes": ("", "e4m3"),
        "scales": ("perhead", "pertoken", "perchannel"),
        "alignment": ("causal", ""),
    },
)

ASKS = Asks(
    plain=PLAIN,
    plain_kinds=("quantized/none/gqa4/bf16/b2h8q4k130d64/e4m3/perhead/causal",),
    pages=IN_PAGES,
    cases=(
        Ask(
            PLAIN,
            *IN_PAGES,
            why="a chunk behind a cache; codes and scales in pages, read, written and shared",
        ),
        Ask(DRAWN, dtypes="array"),
        Ask(SERVED, dtypes="array", since="standard"),
        Ask(
            "quantized/none/gqa4/{dt}/b2h8q1k256d64/e4m3/perhead",
            dtypes="growing",
            since="standard",
            why="codes as models serve them",
        ),
        Ask(f"{PLAIN}/offset", dtypes="float32 first", why="rows far from 0"),
        Ask(
            "quantized/none/gqa2/{dt}/b2h4q3k17d16/perhead/causal/level",
            dtypes="sixteen",
            why=LOST_IN_16_BITS,
        ),
        Ask(
            "quantized/none/gqa2/{dt}/b2h4q3k17d16/e4m3/pertoken/level",
            f"{DECODING}/level",
            dtypes="sixteen",
            since="standard",
            why=LOST_IN_16_BITS,
        ),
        Ask(
            f"{TILES}/causal",
            dtypes="float32",
            why="more than two tiles, the last of which is shorter",
        ),
    ),
    gradients=(
        Ask(PLAIN, dtypes="float32", why="gradients of queries before codes"),
        Ask(GRADIENTS, dtypes="array", since="standard"),
    ),
)

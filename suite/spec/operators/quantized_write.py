"""Keys and values written in 8 bits: the codes of new tokens, for given scales.

    key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv)              in the dtype of the case; Lq is Lk in ids
    key_scale, value_scale, key_zero, value_zero             as in `quantized`
    output (B, Hkv, Lk, D), value_output (B, Hkv, Lk, Dv)    codes of keys and of values

    code = x / scale + zero, rounded to the nearest code

Later tokens are larger than earlier ones, and the largest number of every granule takes the last code:
nothing within the range of the scale may be clipped. With `beyond` numbers reach up to twice the range,
and take the last code of their sign. Of int8 -127 and -128 are both right there, of int4 -7 and -8.

Codes have no gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import ArrayKinds, Asks, Axes, Operator, flag
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.operators.quantized import (
    KINDS,
    OPTIONS,
    QUANTIZED,
    axes_of,
    draw_scales,
    needs_of_codes,
    scale_axes,
    validate_codes,
    vary_sizes,
)
from attention_conformance.suite.spec.operators.quantized import WORDS as OF_CODES
from attention_conformance.suite.spec.operators.tiles import tile_counts
from attention_conformance.suite.spec.recipes import DRAWS
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "saturation": "numbers beyond the range of codes, which take the largest code",
}
"""Words for required features of writing, besides those of codes."""

FEATURES = frozenset({*OF_CODES, *WORDS, "value-size", "inner-stride", "other-shapes"})
"""Features of writing codes."""

PLAIN = "quantized-write/none/mha/{dt}/b2h2q17k17d8/perhead"
MANY = tuple(f"quantized-write/none/mha/f32/b1h8q16k16d128/{code}" for code in ("e4m3", "e5m2"))
"""So many numbers that some lie near the middle of two codes."""
WIDE = "quantized-write/none/mha/f32/b1h2q5k5d160v130/pertile"


def axes(case: Case) -> Axes:
    return {**{name: axes_of(name) for name in KINDS}, **scale_axes(case)}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    drawn = dict(zip(KINDS, DRAWS[case.recipe](rng, case.sizes, case.dtype)[1:], strict=True))
    growth = 1.0 + 3.0 * np.arange(case.sizes.Lk)[:, None] / case.sizes.Lk
    tokens = {
        name: round_to(growth * vary_sizes(case, name, x, rng), case.dtype)
        for name, x in drawn.items()
    }
    scales = draw_scales(case, tokens)
    if case.option("beyond"):
        scales |= {name: x / 2 for name, x in scales.items() if name.endswith("scale")}
    return {**tokens, **scales}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    return {
        **needs_of_codes(case),
        "saturation": case.option("beyond"),
        "value-size": sizes.D != sizes.Dv,
    }


DRAWN = covering_of(
    "quantized-write",
    {
        "sizes": (
            "mha/b2h2q17k17d8", "mha/b3h2q9k9d8v6", "mha/b1h3q67k67d64", "mha/b1h2q5k5d160v130",
            "mha/b1h8q16k16d128", "mha/b1h2q5k5d257v64", "mha/b2h1q5k5d512v64",
        ),
        "codes": ("", "e4m3", "e5m2", "int4"),
        "scales": ("", "perhead", "pertoken", "perchannel", "pertile"),
        "zero": ("", "zero"),
        "beyond": ("", "beyond"),
        "recipe": ("", "large"),
    },
)  # fmt: skip

QUANTIZED_WRITE = Operator(
    name="quantized-write",
    text="keys and values written as 8-bit codes of given scales",
    topic=QUANTIZED.topic,
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bgkd", "value_output": "bgkv"},
    needs=needs,
    ties=lambda options: ("hg", "qk"),
    validate=validate_codes,
    asks=Asks(
        plain=PLAIN,
        cases=(
            Ask(PLAIN, WIDE, why="scales of heads, and of tiles, the last of which is shorter"),
            Ask(DRAWN, dtypes="array"),
            Ask(*MANY, since="standard", why="numbers near the middle of two codes"),
        ),
    ),
    options=(*OPTIONS, flag("beyond", "beyond")),
    recipes=("normal", "large"),
    array_kinds=ArrayKinds(
        letters=lambda case: tile_counts(case.sizes.letters),
        statistics=("key_scale", "value_scale"),
        wide=("key_scale", "value_scale"),
        codes=("output", "value_output", "key_zero", "value_zero"),
    ),
    has_keys=False,
)

"""Multi-head latent attention (MLA): keys and values of all heads are projections of one latent.

    query (B, H, Lq, D), query_rope (B, H, Lq, E)    the parts of a query without and with a position
    latent (B, Lk, R), key_rope (B, Lk, E)           what a cache keeps of a token, for all heads
    w_uk (R, H, D), w_uv (R, H, Dv)                  up-projections of keys and values
    output (B, H, Lq, Dv)

    k_j = w_uk^T c_j,   v_j = w_uv^T c_j
    scores = scale (q . k_j + q^R . k^R_j),   scale = 1 / sqrt(D + E)

The rotary parts come rotated. An implementation forms keys and values (unabsorbed), or attends the
latents themselves with queries w_uk q, and projects the average with w_uv (absorbed). The second form
rounds other numbers (`DeclaredRounding.absorbs`).

With `e4m3` (or `int8`, `int4`, `e5m2`) a cache keeps latents as codes, and rotary keys in the dtype of
the case. A token has a scale for every 128 components of its latent (`suite.spec.operators.tiles`):

    latent_codes (B, Lk, R) in place of latent, latent_scale (B, Lk, R / 128) float32

With `page4` latents, their scales and rotary keys lie in pages of four slots
(`suite.spec.operators.in_pages`).

With `writes` a call also stores the latents and rotary keys of its queries' tokens in their slots of the
pools, and attends them; both pools come back:

    new_latent (B, Lq, R), new_key_rope (B, Lq, E), latent_output and key_rope_output as their pools

In ids `r32e8` is R = 32, E = 8; the default is `r16e4`. With `select` every column of an up-projection
has a single one, so both forms compute plain attention over components of the latents: nothing is
rounded that plain attention does not round, and a scale that is off by 1 % shows in 16 bits, too.

Sources: DeepSeek-AI, DeepSeek-V2, arXiv 2405.04434 (2024), section 2.1 and appendix C;
DeepSeek-V3 Technical Report, arXiv 2412.19437 (2024), section 3.3.2 (tiles).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.features.lse import LSE
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import LOST_IN_16_BITS, Ask
from attention_conformance.suite.spec.masks import Causal, Mask
from attention_conformance.suite.spec.operator import (
    SCALE,
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Questions,
    Work,
    choice,
    flag,
)
from attention_conformance.suite.spec.operators import in_pages
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.operators.layers import FACTORS, kernel
from attention_conformance.suite.spec.operators.tiles import (
    repeat_per_component,
    tile_counts,
    to_tiles,
)
from attention_conformance.suite.spec.recipes import add_offset, rising, score_levels
from attention_conformance.suite.spec.sizes import Sizes

FEATURES = frozenset(
    {
        "mask", "causal", "window", "padding", "mask-array", "scale", "value-size", "lse", "empty-batch",
        "empty-queries", "inner-stride", "other-shapes", "gradient",
    }
)  # fmt: skip
"""Features of latent attention."""

WORDS = {"new-latents": "latents and rotary keys that a call stores in pages and attends"}

SERVED = frozenset({f"{name}-codes" for name in CODES} | {"scales-of-tiles", "pages", *WORDS})
"""Features of latents in a server's cache: codes, pages, and tokens that a call stores."""

AXES = {
    "query": "bhqd", "query_rope": "bhqe", "latent": "bkr", "key_rope": "bke", "w_uk": "rhd",
    "w_uv": "rhv",
}  # fmt: skip
"""The arrays with their axes."""


def parse_latent_sizes(text: str) -> tuple[int, int]:
    """Returns R and E from a token of an id such as "r16e4"."""
    latent, _, rope = text[1:].partition("e")
    return int(latent), int(rope)


WIDTHS = Option(
    "latent_sizes",
    r"(r\d+e\d+)",
    parse_latent_sizes,
    lambda n: f"r{n[0]}e{n[1]}",
    (16, 4),
    ((7, 3), (32, 8), (40, 2)),
)
"""The size of a latent and of the rotary part of a query."""


def letters(case: Case) -> Mapping[str, int]:
    sizes = dict(zip("re", case.option("latent_sizes"), strict=True))
    return {**sizes, **tile_counts(sizes), **in_pages.letters(case)}


def axes(case: Case) -> Axes:
    arrays = dict(AXES)
    if case.option("codes") != "none":
        arrays = {
            "latent_codes" if name == "latent" else name: letters for name, letters in AXES.items()
        }
        arrays["latent_scale"] = "bkl"
    if case.option("writes"):
        arrays |= {"new_latent": "bqr", "new_key_rope": "bqe"}
    return in_pages.axes(case, arrays)


def outputs(case: Case) -> Axes:
    lse = {"lse": "bhq"} if LSE.used_by(case) else {}
    pools = {"latent_output": "bkr", "key_rope_output": "bke"} if case.option("writes") else {}
    return {"output": "bhqv", **lse, **in_pages.outputs(case, pools)}


def encoded(case: Case, latent: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns codes and scales of latents. Each tile is first multiplied by a random size. The largest
    number of a tile takes the largest code, at most 448; a tile of zeros has the scale 1."""
    R, largest_code = latent.shape[-1], min(CODES[case.option("codes")].max, CODES["e4m3"].max)
    sizes = 0.5 + 1.5 * rng.random((*latent.shape[:2], case.letters["l"]))
    scale = np.abs(to_tiles(latent * repeat_per_component(sizes, R))).max(-1) / largest_code
    scale[scale == 0.0] = 1.0
    codes = latent * repeat_per_component(sizes / scale, R)
    return {"latent_codes": np.clip(codes, -largest_code, largest_code), "latent_scale": scale}


def dequantized(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the latents (B, Lk, R), in the arrays' precision: `latent`, or codes times scales."""
    if "latent" in arrays:
        return arrays["latent"]
    codes = arrays["latent_codes"]
    return np.asarray(codes * repeat_per_component(arrays["latent_scale"], codes.shape[-1]))


def selector(rng: np.random.Generator, among: int, R: int, H: int, size: int) -> np.ndarray:
    """Returns an up-projection (R, H, size). Each column selects one of the first `among` components."""
    chosen = np.array([rng.permutation(among)[np.arange(size) % among] for _ in range(H)])
    return np.asarray(np.arange(R)[:, None, None] == chosen.reshape(H, size)).astype(float)


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case by recipe:
    - normal: unit normals; keys and values after the up-projections are unit normals, too
    - large: scores with a standard deviation of 16
    - integers: integers from -2 to 2, in up-projections from -1 to 1
    - offset: a large offset of the scores, in the rotary parts, which both forms multiply directly
    - level: scores near 1024 that are exact in the dtype (`suite.spec.recipes.score_levels`)
    """
    n = case.letters
    arrays = {
        name: rng.standard_normal(tuple(n[x] for x in axes)) for name, axes in AXES.items()
    } | {
        "w_uk": kernel(rng, n["r"], n["r"], n["h"], n["d"]),
        "w_uv": kernel(rng, n["r"], n["r"], n["h"], n["v"]),
    }
    if case.option("select"):
        for name, size in (("w_uk", n["d"]), ("w_uv", n["v"])):
            arrays[name] = selector(rng, n["r"], n["r"], n["h"], size)
    if case.recipe == "large":
        arrays |= {name: 16 * arrays[name] for name in ("query", "query_rope")}
    if case.recipe == "integers":
        arrays |= {
            name: np.rint(np.clip(array * (1.5 if name.startswith("w") else 1), -2, 2))
            for name, array in arrays.items()
        }
    if case.recipe == "level":
        half = n["r"] // 2 or 1  # keys are components of the first half, values of the second one
        query_level, key_level = score_levels(
            rng, arrays["query"], arrays["latent"][..., :half], n["d"] + n["e"], case.dtype
        )
        arrays["query_rope"][...], arrays["key_rope"][...] = 0.0, 0.0
        arrays["query_rope"][..., 0] = query_level * (-1.0) ** np.arange(n["q"])
        arrays["key_rope"][..., 0] = key_level
        arrays["latent"][..., half:] = arrays["latent"][..., half:] / 4 + rising(n["k"])
        arrays |= {
            "w_uk": selector(rng, half, n["r"], n["h"], n["d"]),
            "w_uv": selector(rng, half, n["r"], n["h"], n["v"])[::-1],
        }
    if case.recipe == "offset":
        add_offset(arrays["query_rope"], arrays["key_rope"], n["d"] + n["e"])
    if case.option("codes") != "none":
        arrays |= encoded(case, arrays.pop("latent"), rng)
    return {name: arrays[name] for name in case.axes if name in arrays}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    dense_parts = split_causal(case.mask, case.form, sizes)[1]
    return {
        "mask": any(isinstance(part, Causal) for part in dense_parts),
        "scale": case.option("scale") is not None,
        "value-size": sizes.D != sizes.Dv,
        f"{case.option('codes')}-codes": case.option("codes") != "none",
        "scales-of-tiles": case.option("codes") != "none",
        **in_pages.needs(case),
        "new-latents": case.option("writes"),
        "lse": LSE.used_by(case),
        "empty-batch": sizes.B == 0,
        "empty-queries": sizes.Lq == 0,
    }


def validate(case: Case) -> None:
    in_pages.validate(case)
    if case.option("writes") and (
        case.option("page_size") is None or case.option("codes") != "none" or not case.sizes.Lq
    ):
        raise ValueError(f"latents that a call stores lie in pages, and are no codes: {case.id}")
    if min(case.option("latent_sizes")) < 1 or not case.sizes.D:
        raise ValueError(f"{case.operator} needs sizes d, r and e of 1 or more: {case.id}")


def plain_operands(
    arrays: Mapping[str, np.ndarray], precision: type[np.floating[Any]] = np.float64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns query and key (B, H, L, D + E) and value (B, H, Lk, Dv), in a precision. Plain attention of
    them has the same output as latent attention of `arrays`."""
    x = {name: array.astype(precision) for name, array in arrays.items()}
    latent = dequantized(x)
    key, value = (np.einsum("bkr,rhd->bhkd", latent, x[name]) for name in ("w_uk", "w_uv"))
    rope = np.broadcast_to(x["key_rope"][:, None], (*key.shape[:3], x["key_rope"].shape[-1]))
    query = np.concatenate([x["query"], x["query_rope"]], -1)
    return query, np.concatenate([key, rope], -1), value


def split_causal(mask: Mask | None, form: str, sizes: Sizes) -> tuple[bool, tuple[Mask, ...]]:
    """Returns whether a causal flag, aligned at the last key, can stand for a part of the mask, and the
    parts for which it does not stand."""
    parts = () if mask is None else mask.parts
    square = sizes.Lq == sizes.Lk and form != "dense"
    flag_parts = [
        part
        for part in parts
        if isinstance(part, Causal) and (square or (part.bottom_right and form != "dense"))
    ]
    return bool(flag_parts), tuple(part for part in parts if part not in flag_parts)


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes of the absorbed form for latents of size R and a rotary part of size
    E: 2 P (2 R + E) operations for P pairs, plus 2 B H Lq R (D + Dv) for the projections of queries and
    outputs. `direction` multiplies the operations by `FACTORS`. Bytes count each array and the output
    once."""
    s, n, pairs = inputs.sizes, inputs.letters, int(inputs.attends.sum())
    flops = 2.0 * pairs * (2 * n["r"] + n["e"]) + 2.0 * s.B * s.H * s.Lq * n["r"] * (s.D + s.Dv)
    output_size = s.B * s.H * s.Lq * s.Dv
    moved_elements = sum(array.size for array in inputs.arrays.values()) + output_size
    return Work(flops * FACTORS[direction], moved_elements * inputs.dtype.itemsize)


PLAIN = "latent/none/mha/{dt}/b2h3q4k9d8v6"

IN_PAGES = (
    "latent/causalbr/mha/{dt}/b2h3q4k9d8v6/page4",
    "latent/causalbr/mha/{dt}/b2h3q4k9d8v6/r160e4/e4m3/page4",
    "latent/causalbr/mha/{dt}/b2h3q4k9d8v6/page4/shared",
)
"""Latents in pages, codes of latents with their scales, and pages that samples share."""

LARGE = (
    "latent/causalbr/mha/{dt}/b2h16q2k130d32/r512e64/page64",
    "latent/causalbr/mha/{dt}/b2h16q2k130d32/r512e64/e4m3/page16",
    "latent/none/mha/{dt}/b1h16q1k40d128/r512e64/lse",
    "latent/none/mha/{dt}/b2h16q1k256d16/r512e64",
)
"""Latents as models serve them. Projections cost most, so where keys are many their heads are small."""

AXES_OF_CASES = {
    "sizes": (
        "mha/b2h4q7k7d8", "mha/b2h3q4k9d8v6", "mha/b3h4q1k9d8v6", "mha/b1h20q1k150d16",
        "mha/b1h2q33k65d16", "mha/b1h20q5k12d16", "mha/b1h32q2k33d16", "mha/b1h128q4k9d16",
        "mha/b1h16q1k24d128",
    ),
    "mask": (
        "none", "causalbr", "causal", "pad", "padleft", "causal+pad", "win3.0", "bool.bhqk/dense",
    ),
    "widths": ("", "r7e3", "r32e8", "r64e8", "r160e4", "r257e8", "r512e64"),
    "select": ("", "select"),
    "codes": ("", "e4m3", "int8", "e5m2", "int4"),
    "cache": (
        "", "page4", "page16", "page128", "page4/shared", "writes/page4", "writes/page1/shared",
        "writes/page16",
    ),
    "scale": ("", "scale0.3", "scale-0.2"),
    "lse": ("", "lse"),
    "recipe": ("", "large", "integers"),
}  # fmt: skip

DRAWN = covering_of("latent", AXES_OF_CASES, is_excluded=is_wide_in_float64)

GRADIENTS = covering_of(
    "latent",
    {
        "dtype": ("f32", "bf16"),
        "sizes": ("mha/b2h3q4k9d8v6", "mha/b3h4q1k9d8v6", "mha/b1h20q5k12d16", "mha/b1h16q3k17d64"),
        "mask": ("causalbr", "none", "pad"),
        "widths": ("", "r512e64"),
        "scale": ("", "scale0.3"),
    },
)

WRITTEN = "latent/causalbr/mha/{dt}/b2h3q4k9d8v6/writes/page4"

LATENT = Operator(
    name="latent",
    text="multi-head latent attention: keys and values are projections of latents",
    topic=("latents", "multi-head latent attention"),
    words=WORDS,
    axes=axes,
    draw=partial(in_pages.draw_paged, draw),
    outputs=outputs,
    needs=needs,
    ties=lambda options: ("hg",),
    validate=validate,
    asks=Asks(
        plain=PLAIN,
        plain_kinds=("latent/causalbr/mha/bf16/b2h16q2k40d16/r512e64",),
        pages=(*IN_PAGES, WRITTEN),
        cases=(
            Ask(*LARGE, dtypes="growing", since="standard", why="latents as models serve them"),
            Ask(
                PLAIN,
                "latent/causalbr/mha/f32/b2h3q4k9d8v6",
                *IN_PAGES,
                WRITTEN,
                why="without any option; in pages, read, written and shared; codes of latents",
            ),
            Ask(DRAWN, dtypes="array"),
            Ask(f"{PLAIN}/offset", dtypes="float32 first", why="rows far from 0"),
            Ask(
                "latent/none/mha/{dt}/b2h3q4k9d12v6/level",
                dtypes="sixteen",
                why=LOST_IN_16_BITS,
            ),
            Ask(
                "latent/causalbr/mha/{dt}/b1h2q5k33d12v16/level",
                dtypes="sixteen",
                since="standard",
                why=LOST_IN_16_BITS,
            ),
        ),
        gradients=(
            Ask(
                "latent/causalbr/mha/{dt}/b2h3q4k9d8v6",
                dtypes="float32 first",
                why="gradients with a causal flag",
            ),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(
        WIDTHS,
        flag("select", "select"),
        choice("codes", ("none", *CODES)),
        flag("writes", "writes"),
        in_pages.IN_PAGES,
        in_pages.SHARED,
        SCALE,
        *(option for option in (LSE.option,) if option),
    ),
    recipes=("normal", "large", "integers", "offset", "level"),
    questions=Questions(
        elections=(
            "fully-masked-row",
            "fully-masked-row-gradient",
            "lse-of-empty-row",
            "nan-behind-last-key",
            "minus-one-behind-last-page",
        ),
        well_formed=IN_PAGES[0].format(dt="f32"),
        probe="latent/{mask}/mha/{dt}/b2h4q5k5d8v6",
        gradient_probe="latent/bool.bhqk.empty/mha/{dt}/b2h3q4k9d8v6/dense",
    ),
    array_kinds=ArrayKinds(
        operands=tuple(AXES),
        letters=letters,
        statistics=("latent_scale",),
        wide=("lse", "latent_scale"),
        codes=("latent_codes",),
        integers=in_pages.TABLE,
    ),
    work=work,
)

"""The cases of plain attention, by level.

smoke     every axis value at least once, and coinciding sizes that hid bugs in released code
standard  every valid pair of axis values (a covering array), and designed cases: tails around
          block sizes, coinciding sizes, zero sizes, head counts
full      standard, and every valid triple of axis values
"""

from __future__ import annotations

from typing import cast

from attention_conformance.suite.spec.covering import Covering, Row
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.levels import Ask, designed
from attention_conformance.suite.spec.operators.sdpa_paths import FORWARD
from attention_conformance.suite.spec.recipes import FIXED_SCALE, RECIPES
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import HIDING

# (B, Lq, Lk, D, Dv): pairwise distinct and odd in most, decoding, tails, Dv != D. Few, since JAX
# compiles every operation anew for every shape and dtype; the designed cases have many more.
SHAPES = (
    (2, 17, 23, 8, 8),
    (3, 23, 17, 10, 10),
    (2, 1, 65, 16, 16),
    (2, 31, 33, 7, 7),
    (4, 4, 21, 6, 6),
    (2, 11, 29, 20, 12),
    (3, 21, 37, 6, 18),
    (1, 129, 127, 64, 64),
)

HEADS = ((3, 3), (5, 1), (6, 3), (8, 2))

MASKS = (
    "none",
    "causal",
    "causalbr",
    "pad",
    "padleft",
    "padempty",
    "causal+pad",
    "causalbr+padleft",
    "bool.qk",
    "bool.b11k",
    "bool.b1qk",
    "bool.1hqk",
    "bool.bhqk",
    "bool.qk.empty",
    "bool.bhqk.empty",
    "bool.bhq1.empty",
    "win4.0",
    "win0.3",
    "win5.2",
    "causal+win6.x",
    "prefix3orcausal",
    "seg3",
    "causal+seg3",
)

AXES: dict[str, tuple[object, ...]] = {
    "mask": MASKS,
    "shape": SHAPES,
    "heads": HEADS,
    "dtype": tuple(DTYPES),
    # the other biases are in designed cases
    "bias": ("none", "qk", "1hqk", "b1qk", "bhqk", "inf", "alibi"),
    "scale": (None, 0.3, 0.0, -0.2, 2.5),
    "softcap": (None, 2.0),
    # overflow makes sense only in float16 with a small scale, sunk only in float32 and float64
    "recipe": tuple(
        r for r in RECIPES if r not in ("overflow", "sunk", "needle", "staircase", "level")
    ),
    # bhdl is in designed cases only: frameworks without views lack it
    "axis_order": ("bhld", "blhd"),
    "form": ("native", "dense"),
}


def mask_fits_form(row: Row) -> bool:
    """Returns True if the form fits the mask: the form of boolean masks is "dense", without a mask it is
    "native"."""
    mask = str(row.get("mask"))
    only_form = "native" if mask == "none" else "dense" if mask.startswith("bool") else None
    return only_form is None or row.get("form", only_form) == only_form


def valid(row: Row) -> bool:
    """Returns True if the values of a row, or of a part of one, make sense together.
    - The form fits the mask.
    - Recipes that set the size of scores use the default scale.
    - A bias that hides keys comes without a mask, because a row that both hide would belong to two
      elections.
    """
    if row.get("recipe") in FIXED_SCALE and row.get("scale") is not None:
        return False
    bias_hides = row.get("bias") in HIDING
    has_no_mask = row.get("mask", "none") == "none" and row.get("form", "native") == "native"
    return mask_fits_form(row) and (has_no_mask or not bias_hides)


def id_of(row: Row) -> str:
    """Returns the id of one row of a covering array."""
    B, Lq, Lk, D, Dv = cast(tuple[int, ...], row["shape"])
    H, Hkv = cast(tuple[int, int], row["heads"])
    sizes = Sizes(B, H, Hkv, Lq, Lk, D, Dv)
    parts = ["sdpa", str(row["mask"]), sizes.heads, str(row["dtype"]), sizes.token]
    parts += [f"bias.{row['bias']}"] if row["bias"] != "none" else []
    parts += [f"scale{row['scale']!r}"] if row["scale"] is not None else []
    parts += [f"cap{row['softcap']!r}"] if row["softcap"] is not None else []
    defaults = {"recipe": "normal", "axis_order": "bhld", "form": "native"}
    return "/".join(
        [*parts, *(str(row[n]) for n, default in defaults.items() if row[n] != default)]
    )


COVERING = Covering(AXES, valid, ("mask", "shape", "heads", "dtype"), id_of)

COINCIDENCES = (
    # B == H, B == Lq, B == Lk, H == Lq, H == Lk, Lq == Lk, D == Lk, all equal, all one
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/dense",
    "sdpa/bool.1hqk/mha/bf16/b3h3q11k17d8/dense",
    "sdpa/bool.b11k/mha/f32/b5h3q5k17d8/dense",
    "sdpa/pad/mha/f32/b17h17q17k9d8",
    "sdpa/bool.qk/gqa2/f32/b9h4q65k9d6/dense",
    "sdpa/bool.1hqk/mha/f32/b2h7q7k15d10/dense",
    "sdpa/bool.bhqk/gqa3/f32/b2h6q11k6d4/dense",
    "sdpa/causal/mha/f32/b2h3q16k16d16",
    "sdpa/bool.bhqk/mha/f32/b4h4q4k4d4/dense",
    "sdpa/causal/mha/f32/b2h3q16k16d16/bias.bhqk/cap2.0",
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/bias.b1qk/dense",
    "sdpa/pad+causal/mha/f64/b4h4q4k4d4",
    "sdpa/none/mha/f32/b1h1q1k1d1",
    "sdpa/causal/mha/bf16/b1h1q1k1d1",
)

SMOKE_DESIGNED = {
    "scores below the numbers that kernels use for minus infinity": (
        "sdpa/pad/mha/f32/b2h3q17k23d8/sunk",
        "sdpa/bool.qk/mha/f32/b2h3q17k23d8/sunk/dense",
    ),
    "products that overflow float16 before they are scaled": (
        "sdpa/none/mha/f16/b1h2q9k11d64/scale6.103515625e-05/overflow",
    ),
    "many heads of one key": ("sdpa/causal/gqa20/f32/b1h40q5k5d4",),
    "one query with more keys than a block, and a softcap": (
        "sdpa/bool.b11k/mha/f32/b2h2q1k513d8/cap2.0/dense",
    ),
    "no samples, no queries": (
        "sdpa/none/mha/f32/b0h2q3k5d8",
        "sdpa/none/mha/f32/b2h2q0k5d8",
    ),
    "one more query and key than tiles divide, and a head that is no power of two": (
        "sdpa/causal/mha/f32/b1h2q129k65d80",
    ),
    "two queries of several samples, and a number of keys that tiles have": (
        "sdpa/bool.b1qk/mha/f32/b3h2q2k32d8/dense",
    ),
    "scores that tie in two tiles": ("sdpa/none/mha/f32/b1h2q3k65d8/scale0.0",),
    "scores whose spread exceeds the largest exponent, so that the sign of the scale matters": (
        "sdpa/none/mha/f32/b2h3q17k65d64/scale-4.0",
    ),
    "float64 without any option": ("sdpa/none/mha/f64/b2h3q17k23d8",),
    "components that lie far apart": ("sdpa/none/mha/f32/b2h3q17k23d8/bhdl",),
    "float64 over several tiles": ("sdpa/pad/mha/f64/b1h1q64k257d32",),
    "grouped heads of models": ("sdpa/causal/gqa4/bf16/b2h8q33k47d64",),
}

SMOKE_ALIBI = (
    "sdpa/causal/mha/f32/b2h3q17k23d8/bias.alibikeys",
    "sdpa/causal/mha/f32/b1h2q513k513d8/bias.alibikeys",
)

ALIBI = (
    "sdpa/causal/mha/{dt}/b2h3q17k23d8/bias.alibikeys",
    "sdpa/pad/mqa/{dt}/b2h5q17k23d8/bias.alibikeys",
    "sdpa/none/gqa2/{dt}/b2h6q17k23d8/bias.alibikeys/offset",
    "sdpa/none/mha/{dt}/b1h12q5k24d8/bias.alibikeys",
    "sdpa/causal/mha/{dt}/b1h2q513k513d8/bias.alibikeys",
)
"""ALiBi as libraries make it: head counts and slopes that are not powers of two, and more than 256
keys."""

SIZES = (
    # two queries, with several samples
    "sdpa/bool.b1qk/mha/{dt}/b3h2q2k17d8/dense",
    "sdpa/pad/gqa2/{dt}/b3h4q2k17d8",
    "sdpa/causal/mha/{dt}/b1h2q76k1d8",
    # one length is whole tiles, the other is not
    "sdpa/none/mha/{dt}/b1h2q128k97d8",
    "sdpa/none/mha/{dt}/b1h2q97k128d8",
    "sdpa/padempty/gqa4/{dt}/b2h8q16k64d64/lse",
    "sdpa/bool.bhq1/mha/{dt}/b2h3q17k64d64/dense",
    "sdpa/none/mha/{dt}/b2h0q3k5d8",
    "sdpa/pad/mha/{dt}/b2h0q3k5d8",
)
"""Sizes that make kernels choose different paths."""

SMOKE_FAR = (
    "sdpa/none/mha/{dt}/b4h5q9k129d8/scale1.0/staircase",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.deep",
    "sdpa/causal/mha/{dt}/b2h3q16k16d16/offset",  # of lengths that rings take
)

LEVEL = ("sdpa/none/gqa2/{dt}/b2h4q5k33d16/level", "sdpa/causal/mha/{dt}/b2h3q16k16d16/level")
"""Large scores that are numbers of 16-bit formats, while their log-sum-exps are not."""

FAR = (
    "sdpa/causal/gqa2/{dt}/b4h10q65k65d8/scale1.0/staircase",
    "sdpa/bool.b1qk/mha/{dt}/b4h5q9k129d8/scale1.0/staircase/dense",
    "sdpa/causal/mha/{dt}/b1h2q65k65d8/bias.deep",
)
"""Maxima that rise and fall between tiles, and rows that lie far from 0 by scores or by a bias."""

SMOKE_LIKE_MASKS = (
    "sdpa/none/mha/f32/b2h3q17k23d8/bias.bits",
    "sdpa/none/mha/f32/b2h3q17k23d8/bias.ones",
    "sdpa/none/mha/f32/b2h3q17k23d8/bias.zeros",
)

LIKE_MASKS = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.bits",
    "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/bias.bits",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.ones",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.zeros",
)
"""Biases of zeros and ones, which a kernel may take for boolean masks."""

TOGETHER = (
    "sdpa/causal+padleft/mha/{dt}/b2h3q17k23d8",
    "sdpa/pad+bool.b1qk/mha/{dt}/b2h3q17k23d8",
)
"""A mask beside a causal flag and beside lengths. Some rows have no key only under both together."""

SMOKE_TREES = (
    "sdpa/tree112/gqa2/{dt}/b2h6q7k18d8",
    "sdpa/tree11213/mha/{dt}/b2h3q17k23d8",
)

TREES = (
    "sdpa/tree1/mha/{dt}/b2h3q7k18d8",
    "sdpa/tree123/gqa2/{dt}/b2h6q17k17d8",
    "sdpa/tree12/gqa4/{dt}/b1h8q33k97d64",
    "sdpa/tree11213/mha/{dt}/b2h3q17k23d8/bias.bhqk/cap2.0",
    "sdpa/tree1121/mqa/{dt}/b3h2q4k65d16v12/blhd",
)
"""Trees of drafted tokens behind other keys, and without any: chains, two and three children."""

SMOKE_LOWEST = ("sdpa/none/mha/{dt}/b2h3q17k23d8/bias.lowest",)

LOWEST = (
    # scores below -16, which 16 bits cannot add to the lowest number
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.lowest/large",
    "sdpa/none/gqa2/{dt}/b2h6q17k23d8/bias.lowest/scale-0.2",
)
"""Masks as most models write them: a bias of the lowest finite number."""

LONG = (127, 257, 513)


DESIGNED = {
    "lengths around blocks, with and without masks; few, because JAX compiles for each shape": tuple(
        id_of_length
        for dt, length in zip(("f32", "bf16", "f16"), LONG, strict=True)
        for id_of_length in (
            f"sdpa/none/mha/{dt}/b1h2q{length}k{length}d8",
            f"sdpa/causal/mha/{dt}/b1h2q{length}k{length}d8",
            f"sdpa/win{length - 2}.0/mha/{dt}/b1h2q{length}k{length}d8",
            f"sdpa/bool.b11k/mha/{dt}/b2h1q3k{length}d8/dense",
        )
    ),
    "scores below the numbers that kernels use for minus infinity": (
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/sunk",
        "sdpa/causal/mha/f64/b2h3q17k23d8/sunk",
        "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/bias.bhqk/sunk/dense",
    ),
    "components that lie far apart": (
        "sdpa/causal/gqa2/bf16/b2h6q17k23d8/bhdl",
        "sdpa/causal/gqa4/bf16/b1h8q16k64d64/bhdl",
        "sdpa/bool.qk/mha/f16/b2h3q17k23d8/bhdl/dense",
        "sdpa/pad/mqa/f32/b2h5q17k23d8/bhdl",
    ),
    "many heads of one key": (
        "sdpa/none/gqa24/bf16/b1h48q7k33d8",
        "sdpa/pad/gqa7/f32/b2h28q5k19d8",
    ),
    "thousands of keys, which sums in 16 bits lose": (
        "sdpa/none/mha/f32/b1h1q1k4097d8",
        "sdpa/none/mha/bf16/b1h1q3k2049d16",
        "sdpa/none/mha/f16/b1h1q3k2049d16/large",
    ),
    "the smallest head, and a wide one": (
        "sdpa/none/mha/f32/b2h3q5k7d1",
        "sdpa/none/mha/f32/b2h3q5k7d128",
    ),
    "float64 over several tiles": (
        "sdpa/causal/mha/f64/b1h2q129k65d8",
        "sdpa/none/mha/f64/b1h1q3k2049d16",
    ),
    "no samples, no queries": (
        "sdpa/none/mha/bf16/b0h2q3k5d8",
        "sdpa/causal/mha/bf16/b2h2q0k5d8",
    ),
    "large scores, and products that overflow float16 before they are scaled": (
        "sdpa/none/mha/f16/b1h2q9k11d64/large",
        "sdpa/none/mha/f16/b1h2q9k11d128/scale6.103515625e-05/overflow",
    ),
    "negative scales and 0, with a causal flag and grouped heads": (
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/scale-0.2",
        "sdpa/causal/gqa2/bf16/b2h6q17k23d8/scale-0.2",
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/scale0.0",
    ),
    "no samples beside a bias": ("sdpa/none/mha/f32/b0h1q1k1d1/bias.qk",),
}


CASES = (
    *designed(SMOKE_DESIGNED),
    Ask(*COINCIDENCES, why="sizes that coincide, so that axes can be exchanged unseen"),
    Ask(COVERING, dtypes="array"),
    *designed(DESIGNED, since="standard"),
    Ask(*SMOKE_ALIBI, why="ALiBi as libraries make it"),
    Ask(*SMOKE_FAR, dtypes="float32 first", why="rows far from 0, maxima that rise and fall"),
    Ask(*LEVEL, dtypes="sixteen", why="parts of the keys are merged by log-sum-exps in float32"),
    Ask(
        *SMOKE_LOWEST,
        dtypes="every",
        why="masks as most models write them: a bias of the lowest finite number",
    ),
    Ask(
        *SMOKE_LIKE_MASKS,
        *TOGETHER,
        dtypes="growing",
        why="biases that may be taken for masks; rows without keys only under two masks together",
    ),
    Ask(*LIKE_MASKS, dtypes="growing", since="standard", why="biases that may be taken for masks"),
    Ask(
        *ALIBI,
        *LOWEST,
        *FAR,
        dtypes="every",
        since="standard",
        why="ALiBi as libraries make it, biases of the lowest number, rows far from 0",
    ),
    Ask(*SIZES, since="standard", why="sizes from which kernels choose their path"),
    *FORWARD,
    *(ask for feature in FEATURES.values() for ask in feature.cases),
    Ask(*SMOKE_TREES, dtypes="growing", why="trees of drafted tokens"),
    Ask(
        *TREES,
        dtypes="growing",
        since="standard",
        why="trees of drafted tokens: chains, two and three children, without other keys",
    ),
)
"""Cases whose values are judged."""

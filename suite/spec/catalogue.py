"""The catalogue: every case of the suite, by level.

smoke     every axis value at least once, and the coincidences that fooled released code
standard  every axis value in pairs with every other that makes sense (a covering array), and the
          designed cases: tails around block sizes, coincident sizes, zero sizes, head counts
full      standard, and the products of masks, dtypes, heads, recipes and tail lengths
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import cast

from suite.spec.badproblems import BAD_CASES, LAYER_BAD_CASES, BadCase, LayerBadCase
from suite.spec.covering import Row, each_value, pairwise
from suite.spec.dtypes import DTYPES
from suite.spec.elections import ELECTION_CASES, ElectionCase
from suite.spec.layer_catalogue import layer_cases
from suite.spec.layers import OPERATORS, LayerCase
from suite.spec.masks import Sizes, parse_mask
from suite.spec.problem import RECIPES, Case, Problem

AnyCase = Case | LayerCase | ElectionCase | BadCase | LayerBadCase

LEVELS = ("smoke", "standard", "full")

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
    "bias": ("none", "qk", "1hqk", "b1qk", "bhqk", "inf", "alibi"),
    "scale": (None, 0.3, 0.0, -0.2, 2.5),
    "softcap": (None, 2.0),
    # overflow has a meaning in float16 with a small scale only, sunk in float32 and float64
    "recipe": tuple(r for r in RECIPES if r not in ("overflow", "sunk")),
    # an inner stride is a designed case: frameworks without views have none
    "layout": ("bhld", "blhd"),
    "form": ("native", "dense"),
}


def compatible(a: str, x: object, b: str, y: object) -> bool:
    """Whether two axis values make sense together.

    A mask that no flag expresses is passed densely; no mask has no dense form. Recipes that set the
    size of the scores keep the default scale. -inf entries go with no mask, since a row emptied by
    both would belong to two elections.
    """
    pair = {a: x, b: y}
    if "mask" in pair and "form" in pair:
        mask = str(pair["mask"])
        if mask == "none" or mask.startswith("bool"):
            return pair["form"] == ("native" if mask == "none" else "dense")
    if "recipe" in pair and "scale" in pair and pair["recipe"] in ("large", "offset"):
        return pair["scale"] is None
    if "bias" in pair and "mask" in pair and pair["bias"] == "inf":
        return pair["mask"] == "none"
    if "bias" in pair and "form" in pair and pair["bias"] == "inf":
        return pair["form"] == "native"
    return True


def case_of(row: Row) -> Case:
    """The case of one row of the covering array."""
    B, Lq, Lk, D, Dv = cast(tuple[int, ...], row["shape"])
    H, Hkv = cast(tuple[int, int], row["heads"])
    return Case(
        Problem(
            Sizes(B, H, Hkv, Lq, Lk, D, Dv),
            parse_mask(str(row["mask"])),
            str(row["bias"]),
            row["scale"],  # type: ignore[arg-type]
            row["softcap"],  # type: ignore[arg-type]
        ),
        DTYPES[str(row["dtype"])],
        str(row["recipe"]),
        str(row["layout"]),
        str(row["form"]),
    )


@lru_cache(maxsize=1)
def covering_rows() -> tuple[Row, ...]:
    """The covering array of strength 2 over `AXES`."""
    return tuple(pairwise(AXES, compatible, spread=("mask", "shape", "heads", "dtype")))


COINCIDENCES = (
    # B == H, B == Lq, B == Lk, H == Lq, H == Lk, Lq == Lk, D == Lk, all equal, all one
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/dense",
    "sdpa/bool.1hqk/mha/bf16/b3h3q11k17d8/dense",
    "sdpa/bool.b11k/mha/f32/b5h3q5k17d8/dense",
    "sdpa/pad/mha/f32/b5h5q5k9d8",
    "sdpa/bool.qk/gqa2/f32/b9h4q13k9d6/dense",
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

SMOKE_DESIGNED = (
    "sdpa/pad/mha/f32/b2h3q17k23d8/sunk",
    "sdpa/bool.qk/mha/f32/b2h3q17k23d8/sunk/dense",
    "sdpa/none/mha/f16/b1h2q9k11d64/scale6.103515625e-05/overflow",
    "sdpa/causal/gqa20/f32/b1h40q5k5d4",
    "sdpa/bool.b11k/mha/f32/b2h2q1k513d8/cap2.0/dense",
    "sdpa/none/mha/f32/b0h2q3k5d8",
    "sdpa/none/mha/f32/b2h2q0k5d8",
    "sdpa/causal/mha/f32/b1h2q129k65d80",
    "sdpa/none/mha/f64/b2h3q17k23d8",
    "sdpa/none/mha/f32/b2h3q17k23d8/bhdl",
    "sdpa/pad/mha/f64/b1h1q64k257d32",
    "sdpa/causal/gqa4/bf16/b2h8q33k47d64",
)

TAILS = (31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 513)


def _designed() -> list[Case]:
    ids = [*COINCIDENCES, *SMOKE_DESIGNED]
    for n, length in enumerate(TAILS):
        dt = ("f32", "bf16", "f16")[n % 3]
        # Few shapes a length: JAX compiles for each.
        ids.append(f"sdpa/none/mha/{dt}/b1h2q{length}k{length}d8")
        ids.append(f"sdpa/causal/mha/{dt}/b1h2q{length}k{length}d8")
        ids.append(f"sdpa/win{length - 2}.0/mha/{dt}/b1h2q{length}k{length}d8")
        ids.append(f"sdpa/bool.b11k/mha/{dt}/b2h1q3k{length}d8/dense")
    ids += [
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/sunk",
        "sdpa/causal/mha/f64/b2h3q17k23d8/sunk",
        "sdpa/bool.bhqk/mha/f32/b2h3q17k23d8/bias.bhqk/sunk/dense",
        "sdpa/causal/gqa2/bf16/b2h6q17k23d8/bhdl",
        "sdpa/bool.qk/mha/f16/b2h3q17k23d8/bhdl/dense",
        "sdpa/pad/mqa/f32/b2h5q17k23d8/bhdl",
        "sdpa/none/gqa24/bf16/b1h48q7k33d8",
        "sdpa/pad/gqa7/f32/b2h28q5k19d8",
        "sdpa/none/mha/f32/b1h1q1k4097d8",
        "sdpa/none/mha/bf16/b1h1q3k2049d16",
        "sdpa/none/mha/f16/b1h1q3k2049d16/large",
        "sdpa/none/mha/f32/b2h3q5k7d1",
        "sdpa/none/mha/f32/b2h3q5k7d128",
        "sdpa/causal/mha/f64/b1h2q129k65d8",
        "sdpa/none/mha/f64/b1h1q3k2049d16",
        "sdpa/none/mha/bf16/b0h2q3k5d8",
        "sdpa/causal/mha/bf16/b2h2q0k5d8",
        "sdpa/none/mha/f16/b1h2q9k11d64/large",
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/scale-0.2",
        "sdpa/causal/gqa2/bf16/b2h6q17k23d8/scale-0.2",
        "sdpa/causal/gqa2/f32/b2h6q17k23d8/scale0.0",
        "sdpa/none/mha/f32/b0h1q1k1d1/bias.qk",
    ]
    return [Case.parse(text) for text in ids]


def _products() -> list[Case]:
    rows: list[Row] = []
    base: Row = {"bias": "none", "scale": None, "softcap": None, "recipe": "normal"}

    def form(mask: str) -> str:
        return "dense" if mask.startswith("bool") else "native"

    for mask, shape, heads, dt in product(MASKS, SHAPES, HEADS, DTYPES):
        row = base | {"mask": mask, "shape": shape, "heads": heads, "dtype": dt}
        rows.append(row | {"layout": "bhld", "form": form(mask)})
    for mask, recipe, dt, layout in product(MASKS, AXES["recipe"], DTYPES, AXES["layout"]):
        row = base | {"mask": mask, "shape": SHAPES[1], "heads": (6, 3), "dtype": dt}
        rows.append(row | {"recipe": recipe, "layout": layout, "form": form(mask)})
    tail_masks = ("none", "causal", "pad", "bool.1hqk")
    for mask, length, dt, layout in product(tail_masks, TAILS[:9], DTYPES, AXES["layout"]):
        row = base | {"mask": mask, "shape": (1, 5, length, 8, 8), "heads": (2, 2), "dtype": dt}
        rows.append(row | {"layout": layout, "form": form(mask)})
        rows.append(row | {"shape": (1, length, 7, 8, 8), "layout": layout, "form": form(mask)})
    return [case_of(row) for row in rows]


@lru_cache(maxsize=3)
def cases(level: str = "standard") -> tuple[Case, ...]:
    """The value cases of a level, each once, smoke before standard before full.

    Raises ValueError with the valid levels.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; valid: {', '.join(LEVELS)}")
    found = [Case.parse(text) for text in SMOKE_DESIGNED + COINCIDENCES]
    found += [case_of(row) for row in each_value(covering_rows())]
    if level != "smoke":
        found += _designed() + [case_of(row) for row in covering_rows()]
    if level == "full":
        found += _products()
    return tuple({case.id: case for case in found}.values())


def everything(level: str = "standard") -> tuple[AnyCase, ...]:
    """Value cases, layers, elections and bad problems of a level."""
    return cases(level) + layer_cases(level) + ELECTION_CASES + BAD_CASES + LAYER_BAD_CASES


def parse(text: str) -> Case | LayerCase:
    """The value case or layer's case that the id's grammar gives. Raises ValueError where it is none."""
    return LayerCase.parse(text) if text.split("/")[0] in OPERATORS else Case.parse(text)


def find(case_id: str) -> AnyCase:
    """The case with this id, in the catalogue or any other that the id's grammar can express.

    Raises ValueError where the id names nothing.
    """
    for case in ELECTION_CASES + BAD_CASES + LAYER_BAD_CASES:
        if case.id == case_id:
            return case
    return parse(case_id)

"""Rotary position embedding (Su et al. 2021): rotates each pair of components of a query by position
times frequency.

Keys are rotated in the same way. There is no attention. Frequencies are theta_i = base^(-2i/r) for r
rotated components, or a scaled variant (`SCALINGS`). Positions are integers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask, designed
from attention_conformance.suite.spec.operator import (
    ArrayKinds,
    Asks,
    Axes,
    Operator,
    Option,
    Questions,
    choice,
    flag,
    number,
)
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "interleaved": "a rotation of neighbouring components",
    "halves": "a rotation of components half a head apart",
    "rotary-base": "a base of frequencies other than 10000",
    "partial-rotation": "a rotation of the first components only",
    "positions": "positions as an argument of the call",
    "gathered-positions": "positions of every sample, in any order",
    "rotary-scaling": "frequencies scaled for longer sequences",
    "position-table": "a precomputed table of sine and cosine, one row per position",
}
"""Words for required features of rotations."""

FEATURES = frozenset(
    {
        *(WORDS.keys() - {"position-table"}), "empty-batch", "empty-queries", "gradient",
        "inner-stride", "other-shapes",
    }
)  # fmt: skip
"""Features of rotary embeddings."""

BASE = 10000.0
"""The base of frequencies if a case names none."""

SCALINGS = {
    "none": "no scaling",
    "linear": "positions divided by a factor (Chen et al. 2023)",
    "ntk": "a base that grows with the length beyond the original one (dynamic NTK)",
    "llama3": "low frequencies divided by a factor, high ones kept, others interpolated (Llama 3.1)",
    "yarn": "as llama3 but by dimension, with a factor on sine and cosine (Peng et al. 2023)",
    "longrope": "a factor per frequency, and a factor on sine and cosine (Ding et al. 2024)",
    "yarn-mscale": "yarn with the factor from `mscale` and `mscale_all_dim` (DeepSeek-V2)",
    "yarn-factor": "yarn with the factor on sine and cosine given (`attention_factor`)",
    "longrope-factor": "longrope with the factor on sine and cosine given (`attention_factor`)",
}
"""How frequencies change for sequences longer than in training."""

ORIGINAL_LENGTH = 256
"""The training length of every scaled variant."""

FACTOR = 4.0
"""The factor by which sequences may be longer, in every scaled variant."""

LOW_FREQUENCY, HIGH_FREQUENCY = 1.0, 4.0
"""llama3: rotations within the original length of slow and of fast components."""

BETA_SLOW, BETA_FAST = 1.0, 32.0
"""yarn: rotations within the original length. Below the first, a frequency is divided by the factor;
above the second, it is kept."""

MSCALE, MSCALE_ALL_DIM = 1.0, 0.5
"""yarn-mscale: the slopes of the logarithm above and below the line of the factor on sine and cosine."""

ATTENTION_FACTOR = 0.75
"""The factor on sine and cosine that is given."""

FAR = 100003
"""A far position: a prime number beyond 16-bit integers."""

REACH = 3
"""Random positions are drawn up to this many times the sequence length."""

_OFFSET = Option(
    "offset", r"at(\d+)", int, lambda value: f"at{value}", 0, (1, 255, 4097, FAR, 10**6)
)
_ROTATED = Option("rotated", r"rot(\d+)", int, lambda value: f"rot{value}", 0, (2, 4, 6, 8))


@dataclass(frozen=True)
class Rotation:
    """The rotation of a case: components, pairs, base and scaled variant.

    Pairs are components i and i + size / 2 ("halves"), or 2i and 2i + 1 (`interleaved`). Components
    from `size` on are copied.
    """

    size: int
    interleaved: bool
    base: float
    scaling: str

    @classmethod
    def of(cls, case: Case, size: int) -> Rotation:
        """Returns the rotation of a case for queries with `size` components."""
        return cls(
            size=case.option("rotated") or size,
            interleaved=case.option("interleaved"),
            base=case.option("base") or BASE,
            scaling=case.option("scaling"),
        )

    @property
    def variant(self) -> str:
        """The scaled variant without its suffix: "yarn" for "yarn-mscale"."""
        return self.scaling.partition("-")[0]

    @property
    def attention(self) -> float | None:
        """The factor on sine and cosine that the case sets; None if the variant computes the factor."""
        if self.scaling == "yarn-mscale":
            above, below = (0.1 * m * math.log(FACTOR) + 1 for m in (MSCALE, MSCALE_ALL_DIM))
            return above / below
        return ATTENTION_FACTOR if self.scaling.endswith("-factor") else None

    def short_factors(self) -> np.ndarray:
        """Returns longrope's divisors (size / 2,) of the frequencies up to the original length."""
        return 1.0 + np.arange(self.size // 2) / 8.0

    def long_factors(self) -> np.ndarray:
        """Returns longrope's divisors (size / 2,) of the frequencies beyond the original length."""
        return 1.0 + np.arange(self.size // 2) / 2.0


def scaling_parameters(rotation: Rotation) -> dict[str, Any] | None:
    """Returns the scaled variant as in model configurations (`rope_scaling` of transformers); None
    without scaling."""
    if rotation.scaling == "none":
        return None
    by_variant: dict[str, dict[str, Any]] = {
        "linear": {"rope_type": "linear", "factor": FACTOR},
        "ntk": {"rope_type": "dynamic", "factor": FACTOR},
        "llama3": {
            "rope_type": "llama3", "factor": FACTOR, "low_freq_factor": LOW_FREQUENCY,
            "high_freq_factor": HIGH_FREQUENCY,
        },
        "yarn": {
            "rope_type": "yarn", "factor": FACTOR, "beta_fast": BETA_FAST, "beta_slow": BETA_SLOW,
        },
        "longrope": {
            "rope_type": "longrope", "factor": FACTOR,
            "short_factor": rotation.short_factors().tolist(),
            "long_factor": rotation.long_factors().tolist(),
        },
    }  # fmt: skip
    factors: dict[str, Any] = {}
    if rotation.scaling == "yarn-mscale":
        factors = {"mscale": MSCALE, "mscale_all_dim": MSCALE_ALL_DIM}
    elif rotation.attention is not None:
        factors = {"attention_factor": rotation.attention}
    length = {"original_max_position_embeddings": ORIGINAL_LENGTH}
    return {**by_variant[rotation.variant], **length, **factors}


def table_length(case: Case) -> int:
    """Returns the number of positions, from 0 on, that a table needs for a case with any seed."""
    length = max(case.sizes.Lq, 1)
    return int(case.option("offset")) + (REACH * length if case.option("gathered") else length)


def axes(case: Case) -> Axes:
    return {"query": "bhqd", "position": "bq" if case.option("gathered") else "q"}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns queries of unit normals, and positions in order. With `gathered` positions are random, with
    repetitions; the last of several samples has even positions that rise and then odd ones that fall, as
    in a ring of devices."""
    s, first = case.sizes, case.option("offset")
    query = rng.standard_normal((s.B, s.H, s.Lq, s.D))
    if case.option("gathered"):
        position = rng.integers(first, first + REACH * max(s.Lq, 1), (s.B, s.Lq))
        if s.B > 1:
            position[-1] = first + np.concatenate(
                [np.arange(0, s.Lq, 2), np.arange(1, s.Lq, 2)[::-1]]
            )
    else:
        position = first + np.arange(s.Lq)
    return {"query": query, "position": position.astype(np.float64)}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    return {
        "interleaved": case.option("interleaved"),
        "halves": not case.option("interleaved"),
        "rotary-base": case.option("base") is not None,
        "partial-rotation": Rotation.of(case, sizes.D).size != sizes.D,
        "gathered-positions": case.option("gathered"),
        "rotary-scaling": case.option("scaling") != "none",
        "empty-batch": sizes.B == 0,
        "empty-queries": sizes.Lq == 0,
    }


def validate(case: Case) -> None:
    size = Rotation.of(case, case.sizes.D).size
    if size % 2 or size > case.sizes.D:
        raise ValueError(
            f"{case.operator} rotates pairs: expected an even number of components, at most "
            f"{case.sizes.D} here, got {size}: {case.id}"
        )
    if case.option("scaling") == "ntk" and size < 4:
        raise ValueError(f"ntk scaling needs at least two frequencies: {case.id}")


DRAWN = covering_of(
    "rotary",
    {
        "sizes": (
            "mha/b2h3q17k1d16", "mha/b2h3q17k1d16/rot8", "mha/b2h3q17k1d16/rot6", "mha/b2h2q65k1d64",
            "mha/b1h2q9k1d12", "mha/b1h2q9k1d80/rot20", "mha/b1h2q9k1d96/rot24", "mha/b2h8q9k1d128",
            "mha/b1h32q1k1d128", "mha/b2h2q3k1d256", "mha/b1h1q1k1d2",
        ),
        "pairs": ("", "interleaved"),
        "base": ("", "base500000.0", "base100.0"),
        "scaling": tuple("" if name == "none" else name for name in SCALINGS),
        "positions": ("", "at17", "at4097", "at100003", "at1000000", "gathered"),
        "order": ("", "blhd"),
    },
)  # fmt: skip

GRADIENTS = covering_of(
    "rotary",
    {
        "dtype": ("f32", "bf16"),
        "sizes": (
            "mha/b2h3q17k1d16",
            "mha/b2h3q17k1d16/rot8",
            "mha/b1h2q9k1d128/rot32",
            "mha/b2h2q3k1d256",
        ),
        "pairs": ("", "interleaved"),
        "scaling": ("", "yarn", "llama3"),
        "positions": ("", "at4097", "at100003", "gathered"),
        "order": ("", "blhd"),
    },
)  # fmt: skip

DESIGNED = {
    "without any option": ("rotary/none/mha/{dt}/b2h3q17k1d16",),
    "positions of several samples": (
        "rotary/none/mha/f32/b2h3q17k1d16/gathered",
        "rotary/none/mha/f32/b2h3q17k1d64/gathered/at100003",
        "rotary/none/mha/f32/b2h3q17k1d16/interleaved/gathered",
    ),
    "far positions with another base or a part of the components": (
        "rotary/none/mha/f32/b2h3q17k1d16/base500000.0/at1000000",
        "rotary/none/mha/f32/b2h3q17k1d16/rot8/at100003",
    ),
    "frequencies that a length changes": (
        "rotary/none/mha/f32/b2h3q17k1d16/ntk",
        "rotary/none/mha/f32/b2h3q17k1d16/longrope/at4097",
        "rotary/none/mha/f32/b1h2q9k1d80/interleaved/rot20/base500000.0/yarn",
    ),
}
"""What smoke's few rows lack, by the reason."""

ROTARY = Operator(
    name="rotary",
    text="rotary position embedding: pairs of components rotated by position times frequency",
    topic=("rotary", "rotary positions"),
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bhqd"},
    needs=needs,
    ties=lambda options: ("1k", "dv", "hg"),
    validate=validate,
    asks=Asks(
        plain="rotary/none/mha/{dt}/b2h3q17k1d16",
        cases=(*designed(DESIGNED), Ask(DRAWN, dtypes="array")),
        gradients=(
            Ask(
                "rotary/none/mha/{dt}/b2h3q17k1d16",
                dtypes="float32 first",
                why="gradients without any option",
            ),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(
        flag("interleaved", "interleaved"),
        _ROTATED,
        number("base", "base", 100.0, 500000.0),
        choice("scaling", SCALINGS),
        flag("gathered", "gathered"),
        _OFFSET,
    ),
    questions=Questions(well_formed="rotary/none/mha/f32/b2h3q17k1d16"),
    has_keys=False,
    array_kinds=ArrayKinds(axis_orders=("bhld", "blhd"), integers=("position",)),
)

"""The catalogue of cases that are asked of compiled implementations, by level.

Every one is a program of its own, from 0.1 s (XLA) to some 3 s (inductor, with its derivative 6 s), so
that the level leaves out what does not hang on a compiler: most sizes, recipes, head counts and layouts.
What it keeps: masks in either form, every dtype (float64 in single cases), biases, scales, softcap,
grouped heads, values of another size, one query, a tail, sizes that all coincide, an empty batch.
"""

from __future__ import annotations

from functools import lru_cache

from suite.spec.catalogue import case_of, compatible
from suite.spec.covering import Row, each_value, pairwise
from suite.spec.dtypes import DTYPES
from suite.spec.layers import LayerCase
from suite.spec.problem import Case

AXES: dict[str, tuple[object, ...]] = {
    "mask": (
        "none", "causal", "pad", "padempty", "causal+pad", "bool.bhqk", "bool.qk.empty", "win4.0",
    ),
    # B, Lq, Lk, D, Dv
    "shape": ((2, 11, 9, 6, 6), (2, 5, 13, 8, 10)),
    "heads": ((4, 2), (3, 3)),
    "dtype": ("f32", "bf16", "f16"),
    "bias": ("none", "bhqk", "inf"),
    "scale": (None, 0.3),
    "softcap": (None, 2.0),
    "recipe": ("normal", "large", "offset"),
    "layout": ("bhld", "blhd"),
    "form": ("native", "dense"),
}  # fmt: skip

# Where all sizes coincide a rewrite by pattern can take a permuted key for a transposed one.
SMOKE_DESIGNED = (
    "sdpa/none/mha/f32/b2h3q11k9d6",
    "sdpa/causal/gqa2/bf16/b2h4q11k9d6",
    "sdpa/causal/mha/f32/b4h4q4k4d4/blhd",
    "sdpa/none/mha/f32/b4h4q4k4d4",
    "sdpa/bool.qk.empty/mha/f32/b2h3q11k9d6/dense",
)

DESIGNED = (
    "sdpa/none/mqa/f32/b2h5q1k65d16",
    "sdpa/causal/mha/bf16/b1h2q65k65d8",
    "sdpa/pad/mha/f32/b2h3q33k127d64",
    "sdpa/none/mha/f32/b0h3q5k7d8",
    "sdpa/none/mha/bf16/b4h4q4k4d4/blhd",
    "sdpa/causal/gqa2/f64/b2h4q5k13d8v10",
    "sdpa/bool.b1qk/mha/f64/b2h3q11k9d6/bias.qk/scale0.3/dense",
    "sdpa/none/mha/f64/b4h4q4k4d4/cap2.0",
)

# Masks that adapters pass as arrays, like others that stand in `AXES`.
FULL_DESIGNED = (
    "sdpa/causalbr/mha/f32/b2h3q5k13d8v10",
    "sdpa/seg3/gqa2/bf16/b2h4q11k9d6/bias.qk",
    "sdpa/bool.qk/mha/f16/b2h3q11k9d6/dense",
    "sdpa/bool.b1qk/gqa2/f32/b2h4q5k13d8v10/bias.bhqk/dense",
)

GRADIENTS = (
    "sdpa/none/mha/f32/b4h4q4k4d4",
    "sdpa/causal/gqa2/f32/b2h4q11k9d6",
    "sdpa/causal/gqa2/bf16/b2h4q11k9d6",
    "sdpa/pad/mha/f16/b2h3q11k9d6",
    "sdpa/bool.bhqk/gqa2/f64/b2h4q5k13d8v10/bias.bhqk/dense",
    "sdpa/bool.b1qk/mha/f32/b2h3q11k9d6/dense",
    "sdpa/none/mha/bf16/b2h3q11k9d6/bias.qk/cap2.0",
    "sdpa/padempty/gqa2/f32/b2h4q11k9d6",
    "sdpa/none/mha/f32/b2h3q11k9d6/bias.inf",
)

LAYERS = (
    "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.bhqk/mha/f32/b2h2q5k9d6/e12.10.14.12/head/dense",
    "multi-head/causal/gqa3/bf16/b2h6q5k5d4/e12.12.12.12/self",
    "additive/causal/mha/f32/b2h1q7k7d12/e12.12.12.12/identity",
    "dot/pad/mha/f32/b7h1q7k7d8/e8.8.8.8",
)


@lru_cache(maxsize=1)
def covering_rows() -> tuple[Row, ...]:
    """The covering array of strength 2 over `AXES`."""
    return tuple(pairwise(AXES, compatible, spread=("mask", "shape", "heads", "dtype")))


@lru_cache(maxsize=3)
def compiled_cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases whose answers are judged, each once; at smoke the first few."""
    found = [Case.parse(text) for text in SMOKE_DESIGNED]
    if level != "smoke":
        found += [Case.parse(text) for text in DESIGNED]
        found += [case_of(row) for row in each_value(covering_rows())]
        found += [case_of(row) for row in covering_rows()]
    if level == "full":
        found += [Case.parse(text) for text in FULL_DESIGNED]
        found += [case_of(row | {"dtype": dt}) for row in covering_rows() for dt in DTYPES]
    return tuple({case.id: case for case in found}.values())


def compiled_layers(level: str = "standard") -> list[LayerCase]:
    """The layers' cases whose outputs are judged through a compiler; at smoke two."""
    return [LayerCase.parse(text) for text in (LAYERS[:2] if level == "smoke" else LAYERS)]


def compiled_gradients(level: str = "standard") -> list[Case]:
    """The cases that are differentiated through a compiler; at smoke two."""
    return [Case.parse(text) for text in (GRADIENTS[:2] if level == "smoke" else GRADIENTS)]

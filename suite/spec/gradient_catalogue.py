"""The catalogue of cases that are differentiated, by level, made like `suite.spec.catalogue`.

The cases are of the same grammar, but of fewer and smaller shapes: a backward pass costs three forward
ones, and JAX compiles some forty operations for every new shape and dtype of it.
"""

from __future__ import annotations

from functools import lru_cache

from suite.spec.catalogue import MASKS, case_of, compatible
from suite.spec.covering import Row, each_value, pairwise
from suite.spec.dtypes import DTYPES
from suite.spec.problem import Case

AXES: dict[str, tuple[object, ...]] = {
    "mask": MASKS,
    # B, Lq, Lk, D, Dv
    "shape": ((2, 11, 9, 6, 6), (2, 5, 13, 8, 10)),
    "heads": ((4, 2), (3, 3)),
    "dtype": tuple(DTYPES),
    "bias": ("none", "qk", "1hqk", "bhqk", "inf"),
    "scale": (None, 0.3, -0.2),
    "softcap": (None, 2.0),
    "recipe": ("normal", "large", "ties", "onehot", "integers", "offset"),
    "layout": ("bhld", "blhd"),
    "form": ("native", "dense"),
}

SMOKE_DESIGNED = (
    # what every kernel takes; all sizes equal, and a key that is no transposed query
    "sdpa/none/mha/{dt}/b2h3q5k13d8v10",
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    "sdpa/causal/mha/{dt}/b4h4q4k4d4",
    "sdpa/causalbr/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/padempty/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q5k13d8v10/bias.bhqk/dense",
    "sdpa/none/gqa2/{dt}/b2h4q11k9d6/large",
)

# Tails around block sizes, one query, many heads of one key, zero sizes: at standard in float32 alone,
# whose bounds are the narrowest.
DESIGNED = (
    "sdpa/causal/mha/{dt}/b1h2q65k65d8",
    "sdpa/none/mqa/{dt}/b1h5q129k127d16",
    "sdpa/none/mqa/{dt}/b2h5q1k65d16",
    "sdpa/none/mha/{dt}/b2h3q5k7d8/scale0.0",
    # weights that are subnormal as exp gives them, and again as they are divided
    "sdpa/none/mqa/{dt}/b1h8q11k30d96/bias.bhqk/scale2.5/bhdl",
    "sdpa/none/mha/{dt}/b0h3q5k7d8",
    "sdpa/none/mha/{dt}/b0h3q5k7d8/bias.qk",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6/scale-0.2",
    "sdpa/none/gqa2/{dt}/b2h4q0k7d8",
)


def paired(a: str, x: object, b: str, y: object) -> bool:
    """`compatible`, with one head count to a shape: grouped heads with values of the keys' size, which
    every kernel takes, and as many heads as keys' with values of another size."""
    if (a, b) == ("shape", "heads"):
        return (x == AXES["shape"][0]) == (y == AXES["heads"][0])
    if a in ("shape", "heads") and b == "dtype":
        # Each dtype in one of the shapes, float32 in both; all in both at full.
        return y == "f32" or (x == AXES[a][0]) == (y != "f16")
    if (a, b) == ("dtype", "recipe") and y == "offset":
        # In 16 bits scores of 256 are stored to a whole unit: any weight is right, and any gradient.
        return x in ("f32", "f64")
    return compatible(a, x, b, y)


@lru_cache(maxsize=1)
def covering_rows() -> tuple[Row, ...]:
    """The covering array of strength 2 over `AXES`."""
    return tuple(pairwise(AXES, paired, spread=("mask", "shape", "heads", "dtype")))


@lru_cache(maxsize=3)
def gradient_cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases of a level, each once, smoke before standard before full."""
    half = ("f32", "bf16")
    found = [Case.parse(text.format(dt=dt)) for text in SMOKE_DESIGNED for dt in half]
    found += [case_of(row) for row in each_value(covering_rows())]
    if level != "smoke":
        found += [Case.parse(text.format(dt="f32")) for text in DESIGNED]
        found += [case_of(row) for row in covering_rows()]
    if level == "full":
        designed = (*SMOKE_DESIGNED, *DESIGNED, "sdpa/pad/mha/{dt}/b2h3q31k33d7")
        found += [Case.parse(text.format(dt=dt)) for text in designed for dt in DTYPES]
        found += [case_of(row | {"dtype": dt}) for row in covering_rows() for dt in DTYPES]
    return tuple({case.id: case for case in found}.values())

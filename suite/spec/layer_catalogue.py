"""The catalogue of layers: every layer's case, by level, made like `suite.spec.catalogue`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from suite.spec.covering import Row, each_value, pairwise
from suite.spec.dtypes import DTYPES
from suite.spec.layers import LayerCase, Widths
from suite.spec.masks import Sizes, parse_mask

# B, Lq, Lk, H, Hkv, D, Dv and the widths of query, key, value, output; whether query, key and value are
# one tensor. Few, and alike where they can be, since JAX compiles every operation anew for every shape.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    # What every library's layer can do: one tensor, heads that split its width.
    "own": ((2, 7, 7, 4, 4, 3, 3), (12, 12, 12, 12), True),
    # B == H, B == Lq, H == Lk... an odd number of heads
    "equal": ((3, 3, 3, 3, 3, 4, 4), (12, 12, 12, 12), True),
    "cross": ((2, 5, 9, 3, 3, 4, 4), (12, 12, 12, 12), False),
    "widths": ((2, 5, 9, 2, 2, 6, 6), (12, 10, 14, 12), False),
    "decode": ((2, 1, 9, 2, 2, 6, 6), (12, 12, 12, 12), False),
    "grouped": ((2, 5, 9, 6, 2, 4, 4), (12, 10, 10, 12), False),
    "general": ((2, 5, 9, 4, 4, 3, 5), (10, 11, 13, 7), False),
}

MASKS = (
    "none", "causal", "pad", "causal+pad", "bool.qk", "bool.b1qk", "bool.bhqk", "pad+bool.qk",
    "causal+bool.1hqk",
)  # fmt: skip

AXES: dict[str, tuple[object, ...]] = {
    "mask": MASKS,
    "shape": tuple(SHAPES),
    "dtype": tuple(DTYPES),
    "returned": ("none", "average", "head"),
    "bias": ("none", "qk", "bhqk"),
    "bare": (False, True),
    "form": ("native", "dense"),
}


def compatible(a: str, x: object, b: str, y: object) -> bool:
    """Whether two axis values make sense together: a mask no layer has a flag for is passed densely, no
    mask has no dense form, and libraries that take a float bias take it alone."""
    pair = {a: x, b: y}
    if "mask" in pair and "form" in pair:
        mask = str(pair["mask"])
        if mask == "none" or mask.startswith("bool"):
            return pair["form"] == ("native" if mask == "none" else "dense")
    return True


def _sizes(shape: str) -> Sizes:
    B, Lq, Lk, H, Hkv, D, Dv = SHAPES[shape][0]
    return Sizes(B, H, Hkv, Lq, Lk, D, Dv)


def case_of(row: Row) -> LayerCase:
    """The case of one row of the covering array."""
    _, widths, own = SHAPES[str(row["shape"])]
    return LayerCase(
        "multi-head",
        _sizes(str(row["shape"])),
        Widths(*widths),
        DTYPES[str(row["dtype"])],
        parse_mask(str(row["mask"])),
        bias=str(row["bias"]),
        bare=cast(bool, row["bare"]),
        own=own,
        returned=str(row["returned"]),
        form=str(row["form"]),
    )


@lru_cache(maxsize=1)
def covering_rows() -> tuple[Row, ...]:
    """The covering array of strength 2 over `AXES`."""
    return tuple(pairwise(AXES, compatible, spread=("mask", "shape", "dtype", "returned")))


# {dt} stands for the dtypes that `in_dtypes` says.
SMOKE_DESIGNED = (
    # widths that are equal, so that exchanged projections fit
    "additive/causal/mha/{dt}/b2h1q7k7d16v12/e12.12.12.12",
    "concat/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/unscaled",
    "multi-head/pad/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single/average",
    "self-attention/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
    "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/plain/self",
    # a mask of every head beside padding, with as many samples as heads, and not
    "multi-head/pad+bool.bhqk/mha/{dt}/b4h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad+bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/average",
    "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.bhqk/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self/dense",
    "multi-head/padempty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/gqa3/{dt}/b2h6q5k5d4/e12.12.12.12/self",
    "multi-head/none/mha/{dt}/b1h4q3k3d16/e1000.1000.1000.64/self/single",
    "self-attention/causal/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self/head",
    "additive/pad/mha/{dt}/b3h1q1k9d16v14/e12.10.14.14/single/head",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity/head",
    "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
    "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
    "concat/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
    "masked/causal+pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
    "masked/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "layer-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
)

DESIGNED = (
    "layer-norm/none/mha/{dt}/b4h1q4k4d4/e4.4.4.4/plain/self",
    "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/{dt}/b4h1q4k4d4/e4.4.4.4/plain/self/train",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
    "multi-head/padempty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/head",
    "multi-head/bool.qk.empty/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/dense",
    "multi-head/bool.qk/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/single/head/dense",
    "self-attention/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self/head",
    "self-attention/pad/mha/{dt}/b3h1q7k7d8/e10.10.10.8/self",
    "additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
    "additive/pad/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14/head",
    "additive/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/identity",
    "additive/pad/mha/{dt}/b7h1q7k7d12/e12.12.12.12/identity",
    "dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "masked/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "masked/causal/mha/{dt}/b2h1q7k7d8/e8.8.8.8/head",
    "masked/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "masked/bool.b1qk/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/dense",
)


SHARED = {
    *(("multi-head", _sizes(shape).token) for shape in SHAPES),
    ("self-attention", "b2h1q7k7d5v6"),
    ("additive", "b2h1q5k9d16v14"),
    *((operator, "b2h1q5k9d8v6") for operator in ("dot", "concat", "masked")),
    *((operator, "b32h1q3k3d64") for operator in ("layer-norm", "batch-norm")),
}
"""Operators with the sizes that are asked in every dtype at standard: those of `SHAPES`, and of every
other layer one or two. A case of other sizes asks what hangs on the sizes, not on the dtype."""


def in_dtypes(*patterns: str) -> Callable[[str], list[LayerCase]]:
    """The cases whose ids are `patterns` with {dt} replaced: at smoke float32 and bfloat16; at standard
    every dtype where the sizes are `SHARED`, else these two; at full every dtype."""

    def found(level: str) -> list[LayerCase]:
        cases = [LayerCase.parse(p.replace("{dt}", dt)) for p in patterns for dt in DTYPES]
        few = ("f32", "bf16")
        if level == "smoke":
            return [c for c in cases if c.dtype.name in few]
        if level == "full":
            return cases
        return [c for c in cases if c.dtype.name in few or (c.operator, c.sizes.token) in SHARED]

    return found


def designed(level: str = "standard") -> list[LayerCase]:
    """The designed cases of a level: at smoke some; in the dtypes that `in_dtypes` says."""
    texts = SMOKE_DESIGNED if level == "smoke" else SMOKE_DESIGNED + DESIGNED
    return in_dtypes(*texts)(level)


@lru_cache(maxsize=3)
def layer_cases(level: str = "standard") -> tuple[LayerCase, ...]:
    """The layers' cases of a level, each once, smoke before standard before full."""
    found = designed("smoke")
    found += [case_of(row) for row in each_value(covering_rows())]
    if level != "smoke":
        found += designed(level) + [case_of(row) for row in covering_rows()]
    if level == "full":
        rows = [row | {"dtype": dt} for row in covering_rows() for dt in DTYPES]
        found += [case_of(row) for row in rows]
    return tuple({case.id: case for case in found}.values())

"""Merge of partial outputs over different keys into attention over all keys.

    partial_output (P, B, H, Lq, Dv)    outputs of P parts; in ids P stands in place of Lk
    partial_lse (P, B, H, Lq)           log-sum-exps of their scores, float32 beside 16-bit outputs

    output = sum_i w_i o_i,   lse = log sum_i exp(l_i),   w_i = exp(l_i) / sum_j exp(l_j)

A part without keys in a row has output 0 and log-sum-exp -inf there, and changes nothing. If all parts
are such, so is the result.

Source: Dao et al., FlashAttention, 2022; Ye et al., FlashInfer, 2025.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import ArrayKinds, Asks, Axes, Operator, choice, flag
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "empty-parts": "partial answers without keys, to be merged",
    "several-parts": "more than two partial answers to be merged",
}
"""Words for required features of merging."""

FEATURES = frozenset(
    {*WORDS, "empty-batch", "empty-queries", "inner-stride", "gradient", "other-shapes"}
)
"""Features of merging."""

HEIGHTS = {"level": 0.0, "high": 200.0, "low": -200.0, "deep": -1e5}
"""Mean of the log-sum-exps of a case. Means far from 0 overflow or underflow unless the maximum is
subtracted first."""

SPREAD, APART = 3.0, 40.0
"""Standard deviation of the log-sum-exps, normally and with the option `apart`, where most parts have
no weight."""


def axes(case: Case) -> Axes:
    return {"partial_output": "kbhqv", "partial_lse": "kbhq"}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns unit normals, and log-sum-exps with the mean and standard deviation of the case. With empty
    parts, a third of the parts is empty, and the last row of every head is empty in all parts."""
    s = case.sizes
    output = rng.standard_normal((s.Lk, s.B, s.H, s.Lq, s.Dv))
    spread = APART if case.option("apart") else SPREAD
    lse = HEIGHTS[case.option("height")] + spread * rng.standard_normal(output.shape[:-1])
    if case.option("empty"):
        empty = rng.random(lse.shape) < 1 / 3
        empty[..., 1:][..., -1:] = True  # the last of several queries
        lse = np.where(empty, -np.inf, lse)
        output = np.where(empty[..., None], 0.0, output)
    return {"partial_output": output, "partial_lse": lse}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    return {
        "empty-parts": case.option("empty"),
        "several-parts": sizes.Lk > 2,
        "empty-batch": sizes.B == 0,
        "empty-queries": sizes.Lq == 0,
    }


def validate(case: Case) -> None:
    if case.sizes.Lk < 1:
        raise ValueError(f"{case.operator} needs at least one part (k): {case.id}")


DRAWN = covering_of(
    "merge",
    {
        "sizes": (
            "mha/b2h3q5k2d8", "mha/b2h3q5k4d8", "mha/b2h3q5k1d8", "mha/b1h2q17k33d64",
            "mha/b2h8q2k3d128", "mha/b1h32q1k8d80", "mha/b2h2q3k5d256", "mha/b1h4q5k2d96",
        ),
        "height": ("", "high", "low", "deep"),
        "apart": ("", "apart"),
        "empty": ("", "empty"),
    },
)  # fmt: skip

GRADIENTS = covering_of(
    "merge",
    {
        "dtype": ("f32", "f64"),
        "sizes": ("mha/b2h3q5k2d8", "mha/b2h3q5k4d8", "mha/b1h2q17k9d64", "mha/b1h4q2k3d128"),
        "height": ("", "high", "low", "deep"),
        "apart": ("", "apart"),
        "empty": ("", "empty"),
    },
    is_excluded=is_wide_in_float64,
)
"""float64 shows a derivative that is wrong in its last digits."""

MERGE = Operator(
    name="merge",
    text="partial answers over parts of the keys, merged by their log-sum-exps",
    topic=("merge", "partial answers merged"),
    words=WORDS,
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bhqv", "lse": "bhq"},
    needs=needs,
    ties=lambda options: ("dv", "hg"),
    validate=validate,
    asks=Asks(
        plain="merge/none/mha/{dt}/b2h3q5k2d8",
        cases=(
            Ask("merge/none/mha/{dt}/b2h3q5k2d8", why="without any option"),
            Ask(DRAWN, dtypes="array"),
        ),
        gradients=(
            Ask(
                "merge/none/mha/f32/b2h3q5k2d8",
                "merge/none/mha/f32/b2h3q5k2d8/deep",
                why="log-sum-exps near 0, and so far below that their exponentials are 0",
            ),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(choice("height", HEIGHTS), flag("apart", "apart"), flag("empty", "empty")),
    has_keys=False,
    array_kinds=ArrayKinds(wide=("lse", "partial_lse")),
)

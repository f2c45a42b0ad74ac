"""ALiBi from slopes: the call itself makes the bias -alibi_slopes[h] |i + Lk - Lq - j|.

i is the row and j the key; the last row is at the last key (Press, Smith, Lewis, ALiBi, ICLR 2022;
`alibi_slopes` of flash-attention). Slopes are float32 beside 16-bit operands, and have no gradient.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import flag
from attention_conformance.suite.spec.recipes import alibi_bias, alibi_slopes
from attention_conformance.suite.spec.sizes import Sizes


def draw(sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Returns the slopes (H,) of the paper."""
    return alibi_slopes(sizes.H)


def validate(case: Case) -> None:
    if case.option("alibi_slopes") and case.option("bias") != "none":
        raise ValueError("slopes already are a bias: ask only one of both")


SLOPES = Feature(
    name="alibi_slopes",
    word="alibi-slopes",
    text="ALiBi that the call makes of a slope for every head",
    # A slope is multiplied by its distance. Kernels divide the slope by the scale, or multiply it by
    # log2 e, and scale the sum with the scores. The bias may be stored like a score.
    reduction=Reduction("bias", accumulate=4, score=1, operand=alibi_bias),
    option=flag("alibi_slopes", "slopes", rare=True),
    axes="h",
    draw=draw,
    wide=True,
    constant=True,
    group="bias",
    validate=validate,
    cases=(
        Ask(
            "sdpa/none/mha/{dt}/b2h3q17k23d8/slopes",
            "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/slopes",
            "sdpa/causal/mha/f32/b1h12q5k24d8/slopes",
            "sdpa/causal/mha/f32/b1h2q513k513d8/slopes",
            dtypes="every",
            why="slopes by themselves, of 12 heads, of more than 256 keys",
        ),
        Ask(
            "sdpa/causal/mha/{dt}/b2h3q17k23d8/slopes",
            "sdpa/none/mqa/{dt}/b2h5q1k65d16/slopes",
            "sdpa/padempty/mha/{dt}/b2h3q17k23d8/slopes",
            "sdpa/win4.0/gqa2/{dt}/b2h6q17k23d8/cap2.0/slopes",
            "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/scale-0.2/slopes/dense",
            "sdpa/causal/mha/{dt}/b1h12q5k24d8/slopes",
            "sdpa/causal/mha/{dt}/b1h2q513k513d8/slopes",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/slopes/onehot/blhd",
            dtypes="growing",
            since="standard",
            why="slopes with masks and other features, of 12 heads, of more than 256 keys",
        ),
    ),
    gradients=(Ask("sdpa/causal/gqa2/{dt}/b2h4q11k9d6/slopes", why="gradients beside slopes"),),
)

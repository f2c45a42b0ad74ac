"""Attention sinks: the softmax of head h has one more logit, sinks[h], with value 0.

Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2023; gpt-oss, 2025.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import flag
from attention_conformance.suite.spec.sizes import Sizes


def draw(sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Sinks (H,) of the size of scores, so every row gives some weight to the sink."""
    return 1.0 + rng.standard_normal(sizes.H)


def validate(case: Case) -> None:
    if case.option("sinks") and case.option("lse"):
        raise ValueError("frameworks disagree on sinks in the log-sum-exp: ask only one of both")


SINKS = Feature(
    name="sinks",
    word="sinks",
    text="a sink in every head: one more logit in the softmax, with the value 0",
    # Powers of 2 are logits times log2 e. A softmax without sink is multiplied by sigmoid(lse - sink).
    reduction=Reduction("key", accumulate=2),
    option=flag("sinks", "sinks", rare=True),
    axes="h",
    draw=draw,
    group="sinks",
    validate=validate,
    cases=(
        Ask(
            "sdpa/none/mha/{dt}/b2h3q17k23d8/sinks",
            "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/sinks",
            "sdpa/padempty/mha/{dt}/b2h3q17k23d8/sinks",
            "sdpa/causal/mqa/{dt}/b2h5q1k65d16/sinks",
            dtypes="every",
            why="sinks by themselves, of rows without keys, of one query",
        ),
        Ask("sdpa/none/mha/f32/b2h3q17k23d8/cap2.0/sinks", why="a softcap is not of sinks"),
        Ask(
            "sdpa/none/mqa/{dt}/b2h5q1k65d16/sinks",
            "sdpa/bool.qk.empty/mha/{dt}/b2h3q17k23d8/sinks/dense",
            "sdpa/win4.0/gqa2/{dt}/b2h6q17k23d8/cap2.0/sinks",
            "sdpa/causal/mha/{dt}/b2h3q17k23d8/bias.bhqk/scale-0.2/sinks",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/sinks/large",
            "sdpa/pad/gqa2/{dt}/b2h6q17k23d8/sinks/onehot/blhd",
            dtypes="growing",
            since="standard",
            why="sinks with masks, other features and large values",
        ),
    ),
    gradients=(
        Ask("sdpa/causal/gqa2/{dt}/b2h4q11k9d6/sinks", why="the gradient of sinks"),
        Ask(
            "sdpa/none/mha/{dt}/b3h2q5k9d6/sinks",
            "sdpa/padempty/gqa2/{dt}/b2h4q11k9d6/sinks",
            "sdpa/bool.bhqk/mha/{dt}/b2h3q5k13d8v10/bias.bhqk/cap2.0/sinks/dense",
            since="standard",
            why="the gradient of sinks, with rows without keys, a bias and a softcap",
        ),
    ),
)

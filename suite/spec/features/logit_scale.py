"""A logit scale per head: scores of query head h are scale * logit_scale[h] * q.k, before a softcap.

Models with learned temperatures pass the number itself (Liu et al., Swin Transformer V2, CVPR 2022,
section 3.3).
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import flag
from attention_conformance.suite.spec.sizes import Sizes


def draw(sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Returns logit scales (H,) between 0.5 and 2."""
    return 0.5 + 1.5 * rng.random(sizes.H)


def validate(case: Case) -> None:
    if case.option("logit_scale") and case.option("lse"):
        raise ValueError(
            "the log-sum-exp has no derived bound with logit scales: ask only one of both"
        )


LOGIT_SCALE = Feature(
    name="logit_scale",
    word="logit-scale",
    text="a factor of the scores for every query head",
    reduction=Reduction("factor", accumulate=1, score=1),
    option=flag("logit_scale", "logitscale", rare=True),
    axes="h",
    draw=draw,
    group="logit-scale",
    validate=validate,
    cases=(
        Ask(
            "sdpa/none/mha/{dt}/b2h3q17k23d8/logitscale",
            "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/logitscale",
            dtypes="every",
            why="a factor of logits by itself, and with a causal flag and grouped heads",
        ),
        Ask(
            "sdpa/none/mha/f32/b2h3q17k23d8/cap2.0/logitscale",
            why="the order of factor and softcap",
        ),
        Ask(
            "sdpa/padempty/mha/{dt}/b2h3q17k23d8/logitscale",
            "sdpa/causal/mqa/{dt}/b2h5q1k65d16/logitscale",
            "sdpa/win4.0/gqa2/{dt}/b2h6q17k23d8/cap2.0/logitscale",
            "sdpa/causal/mha/{dt}/b2h3q17k23d8/bias.bhqk/scale-0.2/logitscale",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/sinks/logitscale",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/logitscale/large",
            dtypes="growing",
            since="standard",
            why="a factor of logits with masks, other features and large values",
        ),
    ),
    gradients=(
        Ask("sdpa/causal/gqa2/{dt}/b2h4q11k9d6/logitscale", why="the gradient of the factor"),
        Ask(
            "sdpa/padempty/gqa2/{dt}/b2h4q11k9d6/logitscale",
            "sdpa/bool.bhqk/mha/{dt}/b2h3q5k13d8v10/bias.bhqk/cap2.0/logitscale/dense",
            since="standard",
            why="the gradient of the factor, with rows without keys, a bias and a softcap",
        ),
    ),
)

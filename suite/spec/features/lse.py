"""The log-sum-exp: a second output (B, H, Lq), the log sum exp of a row's scores.

Partial outputs are merged by it (Dao et al., FlashAttention, 2022). float32 for 16-bit operands.
"""

from __future__ import annotations

from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import flag

LSE = Feature(
    name="lse",
    word="lse",
    text="the log-sum-exp of every row beside the output",
    reduction=Reduction("output"),
    option=flag("lse", "lse", rare=True),
    outputs={"lse": "bhq"},
    wide=True,
    group="lse",
    cases=(
        Ask(
            "sdpa/none/mha/{dt}/b2h3q17k23d8/lse",
            "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/lse",
            "sdpa/pad/mha/{dt}/b2h3q17k23d8/lse",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/lse/offset",
            "sdpa/causal/mha/f32/b2h3q17k23d8/bias.bhqk/scale-0.2/lse",
            # Rows that a causal flag and a mask hide together.
            "sdpa/causal+padleft/gqa2/f32/b2h6q17k23d8/lse",
            dtypes="every",
            why="the log-sum-exp by itself, with masks, and of rows that a flag and a mask hide together",
        ),
        Ask(
            "sdpa/causal/mqa/{dt}/b2h5q1k65d16/lse",
            "sdpa/bool.qk/mha/{dt}/b2h3q17k23d8/lse/dense",
            "sdpa/win4.0/gqa2/{dt}/b2h6q17k23d8/cap2.0/lse",
            "sdpa/causal/mha/{dt}/b2h3q17k23d8/bias.bhqk/scale-0.2/lse",
            "sdpa/pad/gqa2/{dt}/b2h6q17k23d8/lse/onehot/blhd",
            # Rows that a flag and a mask, or a flag and a bias, hide together.
            "sdpa/causal+padleft/gqa2/{dt}/b2h6q17k23d8/lse",
            "sdpa/causal/mha/{dt}/b2h3q17k23d8/bias.inf/lse",
            "sdpa/none/mha/{dt}/b1h2q513k513d8/lse",
            "sdpa/none/mha/{dt}/b2h3q17k23d8/scale0.0/lse",
            dtypes="growing",
            since="standard",
            why="the log-sum-exp with masks and other features, of long rows, of equal scores",
        ),
    ),
    # The gradient of the output in a call that also returns the log-sum-exp.
    gradients=(
        Ask(
            "sdpa/causal/gqa2/bf16/b2h4q11k9d6/lse",
            why="gradients of an output that comes with log-sum-exps",
        ),
        Ask(
            "sdpa/causal/gqa2/{dt}/b2h4q11k9d6/lse",
            since="standard",
            why="gradients of an output that comes with log-sum-exps",
        ),
    ),
)

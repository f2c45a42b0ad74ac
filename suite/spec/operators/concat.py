"""Concat attention as Keras reads it: scores c sum_i tanh(s (q_i + k_i)), with learned s and c."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Axes, Operator, Questions
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.operators.layers import (
    draw_sequences,
    one_head_outputs,
    options,
    scaled_gradients,
)


def axes(case: Case) -> Axes:
    scale = {} if case.option("without_scale") else {"scale": ""}
    return {**layers.SEQUENCES, "concat_weight": "", **scale}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. Scale and weight are near 1; the scale is drawn first."""
    arrays = draw_sequences(case, rng)
    scale = {} if case.option("without_scale") else {"scale": np.array(0.5 + 0.25 * rng.random())}
    return arrays | {"concat_weight": np.array(0.75 + 0.25 * rng.random())} | scale


DRAWN = covering_of(
    "concat",
    {
        "sizes": (
            "mha/b2h1q5k9d8v6/e8.8.6.6", "mha/b2h1q7k7d12/e12.12.12.12", "mha/b1h1q3k65d8/e8.8.8.8",
            "mha/b1h1q3k17d64/e64.64.64.64", "mha/b1h1q3k3d128/e128.128.128.128",
        ),
        "mask": ("pad", "none", "causal"),
        "scale": ("", "unscaled"),
        "returned": ("", "head"),
    },
)  # fmt: skip

CONCAT = Operator(
    name="concat",
    text="concat attention as Keras reads it, scores c sum tanh(s (q + k))",
    axes=axes,
    draw=draw,
    outputs=one_head_outputs("z"),
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    asks=Asks(
        plain="concat/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
        cases=(
            Ask(
                "concat/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/unscaled",
                "concat/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
            ),
            Ask(DRAWN, dtypes="array", since="standard"),
        ),
        gradients=scaled_gradients("concat"),
    ),
    options=options("without_scale", "unscaled"),
    questions=Questions(
        elections=("padded-sample", "padded-sample-gradient", "large-scores"),
        # A score is a weighted sum of D numbers below 1.
        large_scores=lambda inputs: inputs.replace(
            concat_weight=inputs.parameters["concat_weight"] * 2.0**15
        ),
        probe="concat/{mask}/mha/{dt}/b2h1q5k9d8/e8.8.8.8",
        gradient_probe="concat/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled",
    ),
    is_layer=True,
    squeezed_axis="q",
)

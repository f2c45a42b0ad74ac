"""Scaled dot-product attention without heads and parameters, with separate causal and padding masks."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Operator, Questions
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.layers import (
    draw_sequences,
    one_head_outputs,
    options,
)


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    return draw_sequences(case, rng)


MASKED = Operator(
    name="masked",
    text="scaled dot-product attention without heads, separate causal and padding masks",
    axes=lambda case: layers.SEQUENCES,
    draw=draw,
    outputs=one_head_outputs("z"),
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    asks=Asks(
        plain="masked/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
        cases=(
            Ask(
                "masked/causal+pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
                "masked/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
            ),
            Ask(
                "masked/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
                "masked/causal/mha/{dt}/b2h1q7k7d8/e8.8.8.8/head",
                "masked/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
                "masked/bool.b1qk/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/dense",
                since="standard",
            ),
        ),
        gradients=(
            Ask("masked/causal+pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6", dtypes="float32 first"),
            Ask("masked/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6", since="standard"),
        ),
    ),
    options=options("without_biases", "nobias"),
    questions=Questions(
        elections=("fully-masked-row", "padded-sample", "padded-sample-gradient"),
        probe="masked/{mask}/mha/{dt}/b2h1q5k9d8/e8.8.8.8",
        gradient_probe="masked/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    ),
    is_layer=True,
    squeezed_axis="q",
)

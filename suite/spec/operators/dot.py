"""Dot-product attention: scores s q . k with a learned scale s (Luong, Pham, Manning, EMNLP 2015)."""

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
    return layers.SEQUENCES if case.option("without_scale") else layers.SEQUENCES | {"scale": ""}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. The scale is near 1 / sqrt(D)."""
    arrays = draw_sequences(case, rng)
    if not case.option("without_scale"):
        arrays["scale"] = np.array((1.0 + 0.25 * rng.random()) / np.sqrt(case.sizes.D))
    return arrays


DRAWN = covering_of(
    "dot",
    {
        "sizes": (
            "mha/b2h1q5k9d8v6/e8.8.6.6", "mha/b7h1q7k7d8/e8.8.8.8", "mha/b1h1q3k1025d8/e8.8.8.8",
            "mha/b2h1q3k33d64/e64.64.64.64", "mha/b1h1q17k17d128/e128.128.128.128",
        ),
        "mask": ("pad", "none", "causal", "causal+pad"),
        "scale": ("", "unscaled"),
        "returned": ("", "head"),
    },
)  # fmt: skip

DOT = Operator(
    name="dot",
    text="dot-product (Luong) attention, scores s q.k",
    axes=axes,
    draw=draw,
    outputs=one_head_outputs("z"),
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    asks=Asks(
        plain="dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
        cases=(
            Ask(
                # as many queries as samples, so that a mask of samples fits queries
                "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
                "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
            ),
            Ask(DRAWN, dtypes="array", since="standard"),
        ),
        gradients=scaled_gradients("dot"),
        compiled=(Ask("dot/pad/mha/f32/b7h1q7k7d8/e8.8.8.8", since="standard"),),
    ),
    options=options("without_scale", "unscaled"),
    questions=Questions(
        elections=("padded-sample", "padded-sample-gradient", "returned-weights", "large-scores"),
        large_scores=lambda inputs: inputs.replace(query=inputs.query * 256, key=inputs.key * 256),
        probe="dot/{mask}/mha/{dt}/b2h1q5k9d8/e8.8.8.8/unscaled",
        well_formed="dot/none/mha/f32/b2h1q5k9d8/e8.8.8.8/unscaled",
        gradient_probe="dot/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled",
    ),
    is_layer=True,
    squeezed_axis="q",
)

"""Attention of one head without an output projection.

- dot-product: scores s q . k with a learned scale s (Luong, Pham, Manning, EMNLP 2015)
- concat, as Keras reads it: scores c sum_i tanh(s (q_i + k_i)) with learned s and c
- additive: scores w . tanh(W_q q + W_k k) (Bahdanau, Cho, Bengio, ICLR 2015, A.1.2)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Covering
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import FEW_COMPILED, Ask
from attention_conformance.suite.spec.operator import Asks, Axes, Operator, Questions, Work, flag
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.sizes import Sizes


def dot_axes(case: Case) -> Axes:
    return layers.SEQUENCES | ({} if case.option("without_scale") else {"scale": ""})


def draw_dot(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. The scale is near 1 / sqrt(D)."""
    arrays = layers.draw_sequences(case, rng)
    if "scale" in case.axes:
        arrays["scale"] = np.array((1.0 + 0.25 * rng.random()) / np.sqrt(case.sizes.D))
    return arrays


def scaled_gradients(operator: str) -> tuple[Ask, ...]:
    """Returns the gradient cases of a layer with a learned scale, and without it."""
    array = covering_of(
        operator,
        {
            "sizes": ("mha/b2h1q5k9d8v6/e8.8.6.6", "mha/b2h1q3k33d64/e64.64.64.64"),
            "mask": ("pad", "none", "padempty"),
            "scale": ("", "unscaled"),
        },
        is_excluded=is_wide_in_float64,
    )
    return (
        Ask(f"{operator}/pad/mha/f32/b2h1q5k9d8v6/e8.8.6.6", why="gradients with a learned scale"),
        Ask(array, dtypes="array", since="standard"),
    )


def scaled_cases(operator: str, sizes: Sequence[str], masks: Sequence[str]) -> Covering:
    """Returns the covering array of a layer with a learned scale, and without it."""
    axes = {"sizes": sizes, "mask": masks, "scale": ("", "unscaled"), "returned": ("", "head")}
    return covering_of(operator, axes)


DOT_CASES = scaled_cases(
    "dot",
    (
        "mha/b2h1q5k9d8v6/e8.8.6.6", "mha/b7h1q7k7d8/e8.8.8.8", "mha/b1h1q3k1025d8/e8.8.8.8",
        "mha/b2h1q3k33d64/e64.64.64.64", "mha/b1h1q17k17d128/e128.128.128.128",
    ),
    ("pad", "none", "causal", "causal+pad"),
)  # fmt: skip

DOT = Operator(
    name="dot",
    text="dot-product (Luong) attention, scores s q.k",
    axes=dot_axes,
    draw=draw_dot,
    outputs=lambda case: layers.outputs(case, "z"),
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    asks=Asks(
        plain="dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
        cases=(
            Ask(
                # as many queries as samples, so that a mask of samples fits queries
                "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
                "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
                why="as many queries as samples, so that a mask of samples fits queries; no scale",
            ),
            Ask(DOT_CASES, dtypes="array", since="standard"),
        ),
        gradients=scaled_gradients("dot"),
        compiled=(
            Ask(
                "dot/pad/mha/f32/b7h1q7k7d8/e8.8.8.8",
                since="standard",
                why=FEW_COMPILED,
            ),
        ),
    ),
    options=layers.options("without_scale", "unscaled"),
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


def concat_axes(case: Case) -> Axes:
    return {**layers.SEQUENCES, "concat_weight": "", **dot_axes(case)}


def draw_concat(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. Scale and weight are near 1; the scale is drawn first."""
    arrays = layers.draw_sequences(case, rng)
    scale = {} if case.option("without_scale") else {"scale": np.array(0.5 + 0.25 * rng.random())}
    return arrays | {"concat_weight": np.array(0.75 + 0.25 * rng.random())} | scale


CONCAT_CASES = scaled_cases(
    "concat",
    (
        "mha/b2h1q5k9d8v6/e8.8.6.6", "mha/b2h1q7k7d12/e12.12.12.12", "mha/b1h1q3k65d8/e8.8.8.8",
        "mha/b1h1q3k17d64/e64.64.64.64", "mha/b1h1q3k3d128/e128.128.128.128",
    ),
    ("pad", "none", "causal"),
)  # fmt: skip

CONCAT = replace(
    DOT,
    name="concat",
    text="concat attention as Keras reads it, scores c sum tanh(s (q + k))",
    axes=concat_axes,
    draw=draw_concat,
    asks=Asks(
        plain="concat/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
        cases=(
            Ask(
                "concat/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/unscaled",
                "concat/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
                why="a causal flag, padding, returned weights",
            ),
            Ask(CONCAT_CASES, dtypes="array", since="standard"),
        ),
        gradients=scaled_gradients("concat"),
    ),
    questions=Questions(
        elections=("padded-sample", "padded-sample-gradient", "large-scores"),
        # A score is a weighted sum of D numbers below 1.
        large_scores=lambda inputs: inputs.replace(
            concat_weight=inputs.parameters["concat_weight"] * 2.0**15
        ),
        probe="concat/{mask}/mha/{dt}/b2h1q5k9d8/e8.8.8.8",
        gradient_probe="concat/padempty/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled",
    ),
)


def additive_axes(case: Case) -> Axes:
    if case.option("vector"):
        return {**layers.SEQUENCES, "score_vector": "d"}
    if case.option("without_projections"):
        return layers.SEQUENCES
    return layers.SEQUENCES | {"query_kernel": "xd", "key_kernel": "yd", "score_vector": "d"}


def additive_needs(
    case: Case, arrays: Collection[str], sizes: Sizes, widths: Any
) -> dict[str, bool]:
    common = layers.needs(case, arrays, sizes, widths)
    return common | {"projection": "query_kernel" in arrays}


def additive_ties(options: Mapping[str, Any]) -> tuple[str, ...]:
    return layers.ties("1hg", "zvo", *(["xyd"] if options["without_projections"] else []))(options)


def validate_additive(case: Case) -> None:
    if case.option("vector") and not case.option("without_projections"):
        raise ValueError(f"only additive attention without projections has this option: {case.id}")


def additive_work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes moved. For each unit of a pair: one sum, one tanh (one operation), one
    product and its sum. Also counted: the projections and the average of the values."""
    s, w, pairs = inputs.sizes, inputs.widths, int(inputs.attends.sum())
    flops = 2.0 * s.B * (s.Lq * w.query + s.Lk * w.key) * s.D + pairs * (4.0 * s.D + 2.0 * s.Dv)
    return layers.work_of(inputs, flops, direction)


ADDITIVE_CASES = covering_of(
    "additive",
    {
        "sizes": (
            "mha/b2h1q5k9d16v14/e12.10.14.14", "mha/b2h1q7k7d12/e12.12.12.12",
            "mha/b2h1q5k9d16v14/e16.16.14.14", "mha/b2h1q3k33d200v64/e64.64.64.64",
            "mha/b1h1q3k3d128/e128.128.128.128", "mha/b7h1q1k7d12/e12.12.12.12",
        ),
        "mask": ("pad", "none", "causal"),
        "projections": ("", "identity", "identity/vector"),
        "returned": ("", "head"),
        "axis": ("", "single"),
    },
)  # fmt: skip

ADDITIVE_GRADIENTS = covering_of(
    "additive",
    {
        "sizes": ("mha/b2h1q5k9d16v14/e16.16.14.14", "mha/b2h1q3k33d64/e64.64.64.64"),
        "mask": ("pad", "none", "padempty"),
        "projections": ("", "identity", "identity/vector"),
    },
    is_excluded=is_wide_in_float64,
)

ADDITIVE = Operator(
    name="additive",
    text="additive (Bahdanau) attention, scores w . tanh(W_q q + W_k k)",
    axes=additive_axes,
    draw=layers.draw,
    outputs=DOT.outputs,
    needs=additive_needs,
    ties=additive_ties,
    validate=validate_additive,
    asks=Asks(
        plain="additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
        cases=(
            Ask(
                # equal widths, so that swapped projections fit
                "additive/causal/mha/{dt}/b2h1q7k7d16v12/e12.12.12.12",
                "additive/pad/mha/{dt}/b3h1q1k9d16v14/e12.10.14.14/single/head",
                "additive/pad/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity/head",
                why="equal widths, so that swapped projections fit; one query; no projections",
            ),
            Ask(ADDITIVE_CASES, dtypes="array", since="standard"),
        ),
        gradients=(
            Ask(
                "additive/pad/mha/f32/b2h1q5k9d16v14/e12.10.14.14",
                "additive/pad/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity/vector",
                why="gradients with every parameter, and with the vector of scores alone",
            ),
            Ask(ADDITIVE_GRADIENTS, dtypes="array", since="standard"),
        ),
        compiled=(
            Ask(
                "additive/causal/mha/f32/b2h1q7k7d12/e12.12.12.12/identity",
                since="standard",
                why=FEW_COMPILED,
            ),
        ),
    ),
    options=layers.options("without_projections", "identity", flag("vector", "vector")),
    questions=Questions(
        elections=("padded-sample", "padded-sample-gradient", "returned-weights"),
        probe="additive/{mask}/mha/{dt}/b2h1q5k9d12/e12.12.12.12/identity",
        well_formed="additive/none/mha/f32/b2h1q5k9d12/e12.12.12.12/identity",
        gradient_probe="additive/padempty/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity",
    ),
    is_layer=True,
    squeezed_axis="q",
    work=additive_work,
)

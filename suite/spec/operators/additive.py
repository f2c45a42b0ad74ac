"""Additive attention: scores w . tanh(W_q q + W_k k) (Bahdanau, Cho, Bengio, ICLR 2015, A.1.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Axes, Operator, Questions, Work, flag
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.operators.layers import (
    draw_parameters,
    draw_sequences,
    kernel,
    moved_bytes,
    one_head_outputs,
    options,
)
from attention_conformance.suite.spec.sizes import Sizes


def axes(case: Case) -> Axes:
    if case.option("vector"):
        return {**layers.SEQUENCES, "score_vector": "d"}
    if case.option("without_projections"):
        return layers.SEQUENCES
    return layers.SEQUENCES | {"query_kernel": "xd", "key_kernel": "yd", "score_vector": "d"}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. The score vector has variance 4 / U, so scores have a standard
    deviation near one."""
    arrays, units = draw_sequences(case, rng) | draw_parameters(case, rng), case.sizes.D
    if "score_vector" in case.axes:
        arrays["score_vector"] = 2.0 * kernel(rng, units, units)
    return arrays


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    common = layers.needs(case, arrays, sizes, widths)
    return common | {"projection": "query_kernel" in arrays}


def ties(options: Mapping[str, Any]) -> tuple[str, ...]:
    return layers.ties("1hg", "zvo", *(["xyd"] if options["without_projections"] else []))(options)


def validate(case: Case) -> None:
    if case.option("vector") and not case.option("without_projections"):
        raise ValueError(f"only additive attention without projections has this option: {case.id}")


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes moved. For each unit of a pair: one sum, one tanh (one operation), one
    product and its sum. Also counted: the projections and the average of the values."""
    s, w, pairs = inputs.sizes, inputs.widths, int(inputs.attends.sum())
    flops = 2.0 * s.B * (s.Lq * w.query + s.Lk * w.key) * s.D + pairs * (4.0 * s.D + 2.0 * s.Dv)
    factor, passes = layers.FACTORS[direction], layers.PASSES[direction]
    return Work(flops * factor, moved_bytes(inputs) * passes)


DRAWN = covering_of(
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

ADDITIVE = Operator(
    name="additive",
    text="additive (Bahdanau) attention, scores w . tanh(W_q q + W_k k)",
    axes=axes,
    draw=draw,
    outputs=one_head_outputs("z"),
    needs=needs,
    ties=ties,
    validate=validate,
    asks=Asks(
        plain="additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
        cases=(
            Ask(
                # equal widths, so that swapped projections fit
                "additive/causal/mha/{dt}/b2h1q7k7d16v12/e12.12.12.12",
                "additive/pad/mha/{dt}/b3h1q1k9d16v14/e12.10.14.14/single/head",
                "additive/pad/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity/head",
            ),
            Ask(DRAWN, dtypes="array", since="standard"),
        ),
        gradients=(
            Ask(
                "additive/pad/mha/f32/b2h1q5k9d16v14/e12.10.14.14",
                "additive/pad/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity/vector",
            ),
            Ask(
                "additive/pad/mha/bf16/b2h1q5k9d16v14/e12.10.14.14",
                "additive/pad/mha/bf16/b2h1q5k9d16v14/e16.16.14.14/identity/vector",
                "additive/padempty/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity",
                since="standard",
            ),
            Ask(
                "additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
                "additive/none/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity",
                "additive/padempty/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
                "additive/padempty/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity",
                dtypes="rest",
                since="full",
            ),
        ),
        compiled=(
            Ask("additive/causal/mha/f32/b2h1q7k7d12/e12.12.12.12/identity", since="standard"),
        ),
    ),
    options=options("without_projections", "identity", flag("vector", "vector")),
    questions=Questions(
        elections=("padded-sample", "padded-sample-gradient", "returned-weights"),
        probe="additive/{mask}/mha/{dt}/b2h1q5k9d12/e12.12.12.12/identity",
        well_formed="additive/none/mha/f32/b2h1q5k9d12/e12.12.12.12/identity",
        gradient_probe="additive/padempty/mha/{dt}/b2h1q5k9d16v14/e16.16.14.14/identity",
    ),
    is_layer=True,
    squeezed_axis="q",
    work=work,
)

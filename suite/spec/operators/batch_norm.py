"""Batch norm (Ioffe, Szegedy 2015): like layer norm, with mean and variance per feature over samples
and positions.

Training computes these statistics; evaluation uses learned ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import ArrayKinds, Asks, Axes, Operator, number
from attention_conformance.suite.spec.operators import layer_norm, layers
from attention_conformance.suite.spec.operators.layers import options
from attention_conformance.suite.spec.recipes import exponentials

STATISTICS = ("mean", "variance")
"""Parameters that are running averages: they have no gradient."""

AVERAGED = replace(number("averaged", "averaged"), limits=(1.0, 2.0))
"""The layer made the statistics itself, as running averages over two batches: the query times numbers
up to this one."""


def axes(case: Case) -> Axes:
    return {**layer_norm.axes(case), **dict.fromkeys(STATISTICS, "x")}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays, width = layer_norm.draw(case, rng, seed), case.letters["x"]
    mean = rng.standard_normal(width)
    return arrays | {"mean": mean, "variance": exponentials(rng.standard_normal(width))}


def validate(case: Case) -> None:
    if case.option("training") and case.sizes.B * case.sizes.Lq == 1:
        raise ValueError(f"training needs more than one token for a variance: {case.id}")
    if case.option("training") and case.option("averaged") is not None:
        raise ValueError(f"only evaluation takes averaged statistics, not training: {case.id}")


BATCH_NORM = Operator(
    name="batch-norm",
    text="batch norm: mean and variance of each feature over all samples and positions",
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bqx"},
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    validate=validate,
    asks=Asks(
        plain="batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
        cases=(
            Ask(
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/plain/self",
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
            ),
            Ask(
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
                "batch-norm/none/mha/{dt}/b4h1q4k4d4/e4.4.4.4/plain/self/train",
                since="standard",
            ),
        ),
        gradients=(
            Ask(
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
                dtypes="float32 first",
            ),
            Ask("batch-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self/train", since="standard"),
        ),
    ),
    options=options("without_affine", "plain", layer_norm.ADDED, AVERAGED, trains=True),
    array_kinds=ArrayKinds(statistics=STATISTICS),
    is_layer=True,
    has_keys=False,
    squeezed_axis="q",
)

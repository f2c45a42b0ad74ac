"""Norms: (x - mean) / sqrt(variance + epsilon) gain + offset. There is no attention.

- layer norm (Ba, Kiros, Hinton 2016): mean and variance of each token are over its features
- batch norm (Ioffe, Szegedy 2015): mean and variance of each feature are over samples and positions.
  Training computes them; evaluation uses learned ones
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Covering
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import ArrayKinds, Asks, Axes, Operator, number
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.drawn import covering_of
from attention_conformance.suite.spec.recipes import exponentials

EPSILON = 2.0**-10
"""The number that norms add to the variance. It is exact in every dtype, and large enough that leaving
it out, or adding it after the root, is seen."""

TINY = 2.0**-6
"""The factor of x in the recipe "tiny"."""

NORM_EPSILON = replace(number("epsilon", "eps"), default=EPSILON, limits=(0.0, 1.0))
"""The option of another epsilon. Each framework's default is tested as a path."""


def axes(case: Case) -> Axes:
    affine = {} if case.option("without_affine") else {"gain": "x", "offset": "x"}
    return layers.SEQUENCES | affine


RECIPES = ("normal", "offset", "tiny")
"""The values of x:

- normal: means and standard deviations are about 1
- offset: means are so far above the standard deviations (`FAR`) that the mean of squares minus the square
  of the mean has lost its digits
- tiny: variances are near epsilon
"""


FAR = {"f64": 2.0**26, "f32": 2.0**12, "f16": 2.0**10, "bf16": 2.0**8}
"""The mean of the recipe "offset", by dtype: x has standard deviations of half its digits, or of an ulp
in 16 bits."""


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. Means and variances differ between features and tokens, so that a
    wrong axis shows."""
    arrays, s, width = layers.draw_sequences(case, rng), case.sizes, case.letters["x"]
    spread = exponentials(rng.standard_normal((1, 1, width)) / 2)
    mean = rng.standard_normal((s.B, s.Lq, 1)) + rng.standard_normal(width)
    arrays["query"] = arrays["query"] * spread + mean
    if case.recipe == "offset":
        arrays["query"] += FAR[case.dtype.name]
    if case.recipe == "tiny":
        arrays["query"] *= TINY
    if case.option("self_attention"):
        arrays["key"] = arrays["value"] = arrays["query"]
    return arrays | layers.draw_parameters(case, rng)


def validate(case: Case) -> None:
    if case.option("training"):
        raise ValueError(
            f"{case.operator} is the same in training: leave out the option train in {case.id}"
        )


AXES_OF_CASES = {
    "sizes": (
        "mha/b32h1q3k3d64/e64.64.64.64/self", "mha/b32h1q3k3d48/e48.48.48.48/self",
        "mha/b32h1q3k3d768/e768.768.768.768/self", "mha/b32h1q3k3d97/e97.97.97.97/self",
        "mha/b2h1q3k3d96/e96.96.96.96/self", "mha/b32h1q3k3d100/e100.100.100.100/self",
        "mha/b4h1q4k4d4/e4.4.4.4/self", "mha/b2h1q3k3d4096/e4096.4096.4096.4096/self",
    ),
    "recipe": ("", "offset", "tiny"),
    "affine": ("", "plain"),
}  # fmt: skip
"""Widths that are powers of two and that are not, below and above 64, and widths of models."""


def gradients_of(operator: str, **axes: Sequence[str]) -> Covering:
    """Returns the covering array of a norm's gradients, with further `axes`."""
    own = {
        "dtype": ("f32", "bf16"),
        "sizes": (
            "mha/b32h1q3k3d64/e64.64.64.64/self", "mha/b32h1q3k3d48/e48.48.48.48/self",
            "mha/b4h1q4k4d4/e4.4.4.4/self", "mha/b2h1q3k3d96/e96.96.96.96/self",
            "mha/b2h1q3k3d100/e100.100.100.100/self", "mha/b2h1q3k3d4096/e4096.4096.4096.4096/self",
        ),
        "recipe": ("", "offset", "tiny"),
        "affine": ("", "plain"),
    }  # fmt: skip
    return covering_of(operator, {**own, **axes})


LAYER_NORM = Operator(
    name="layer-norm",
    text="layer norm: mean and variance of each token over its features",
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bqx"},
    needs=layers.needs,
    ties=layers.ties(*layers.ONE_HEAD),
    validate=validate,
    asks=Asks(
        plain="layer-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
        cases=(
            Ask(
                "layer-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
                dtypes="halves first",
                why="without any option",
            ),
            Ask(covering_of("layer-norm", AXES_OF_CASES), dtypes="array"),
        ),
        gradients=(
            Ask(
                "layer-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
                dtypes="halves first",
                why="gradients without any option",
            ),
            Ask(
                "layer-norm/none/mha/f32/b32h1q3k3d768/e768.768.768.768/self/tiny",
                why="variances near epsilon",
            ),
            Ask(gradients_of("layer-norm"), dtypes="array", since="standard"),
        ),
    ),
    options=layers.options("without_affine", "plain", NORM_EPSILON),
    recipes=RECIPES,
    is_layer=True,
    has_keys=False,
    squeezed_axis="q",
)


STATISTICS = ("mean", "variance")
"""Parameters that are running averages: they have no gradient."""

AVERAGED = replace(number("averaged", "averaged"), limits=(1.0, 2.0))
"""The layer computes its statistics itself, as running averages over two batches: multiples of the query,
at most by this factor."""


def batch_axes(case: Case) -> Axes:
    return {**axes(case), **dict.fromkeys(STATISTICS, "x")}


def batch_draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    arrays, width = draw(case, rng, seed), case.letters["x"]
    mean, variance = rng.standard_normal(width), exponentials(rng.standard_normal(width))
    if case.recipe == "offset":
        mean += FAR[case.dtype.name]
    if case.recipe == "tiny":
        mean, variance = TINY * mean, TINY**2 * variance
    return arrays | {"mean": mean, "variance": variance}


def validate_batch(case: Case) -> None:
    if case.option("training") and case.sizes.B * case.sizes.Lq == 1:
        raise ValueError(f"training needs more than one token for a variance: {case.id}")
    if case.option("training") and case.option("averaged") is not None:
        raise ValueError(f"only evaluation takes averaged statistics, not training: {case.id}")


BATCH_NORM = replace(
    LAYER_NORM,
    name="batch-norm",
    text="batch norm: mean and variance of each feature over all samples and positions",
    axes=batch_axes,
    draw=batch_draw,
    validate=validate_batch,
    asks=Asks(
        plain="batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
        cases=(
            Ask(
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
                dtypes="halves first",
                why="statistics of the batch",
            ),
            Ask(
                covering_of("batch-norm", {**AXES_OF_CASES, "mode": ("", "train")}), dtypes="array"
            ),
        ),
        gradients=(
            Ask(
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
                "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self",
                dtypes="float32 first",
                why="gradients with statistics of the batch, and with learned ones",
            ),
            Ask(gradients_of("batch-norm", mode=("train", "")), dtypes="array", since="standard"),
        ),
    ),
    options=layers.options(
        "without_affine", "plain", NORM_EPSILON, AVERAGED, training_differs=True
    ),
    array_kinds=ArrayKinds(statistics=STATISTICS),
)

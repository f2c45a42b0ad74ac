"""A Transformer encoder layer: multi-head self-attention and a feed-forward network, each with a
residual and a layer norm.

    y = norm1(x + attention(x)),    z = norm2(y + feedforward(y))      (Vaswani et al. 2017, 3.1)
    y = x + attention(norm1(x)),    z = y + feedforward(norm2(y))      with `pre` (Xiong et al. 2020)

feedforward(y) = activation(y W1 + b1) W2 + b2. The last width of an id is the width of W1.

In 16 bits the worst case of so many roundings has no finite bound, because a variance might be zero.
There the check `spread` judges outputs and gradients by random rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Operator, Questions, choice, flag
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.drawn import covering_of, is_wide_in_float64
from attention_conformance.suite.spec.operators.norms import NORM_EPSILON
from attention_conformance.suite.spec.sizes import Sizes

WORDS = {
    "pre-norm": "norms before attention and feed-forward network (pre-norm)",
    "gelu": "the activation gelu",
}
"""Words for required features of encoder layers."""

FEATURES = frozenset(
    {
        *WORDS, "mask", "causal", "window", "padding", "mask-array", "native-causal", "other-shapes",
        "inner-stride", "gradient", "head-width", "batch", "squeezed", "odd-heads",
    }
)  # fmt: skip
"""Features of encoder layers."""

ACTIVATIONS = ("relu", "gelu")
"""max(x, 0), and x Phi(x) with the normal distribution Phi (Hendrycks, Gimpel 2016)."""

PARAMETERS = {
    "query_kernel": "xhd", "key_kernel": "ygd", "value_kernel": "zgv", "output_kernel": "hvx",
    "query_bias": "hd", "key_bias": "gd", "value_bias": "gv", "output_bias": "x",
    "linear1_bias": "o", "linear2_bias": "x", "linear1_kernel": "xo", "linear2_kernel": "ox",
    "norm1_gain": "x", "norm2_gain": "x", "norm1_offset": "x", "norm2_offset": "x",
}  # fmt: skip


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the case. Tokens have different means, so that a missing norm shows."""
    arrays, n = layers.draw_sequences(case, rng), case.letters
    arrays["query"] = arrays["query"] + rng.standard_normal((n["b"], n["q"], 1))
    arrays["key"] = arrays["value"] = arrays["query"]
    return arrays | layers.draw_parameters(case, rng)


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    return layers.needs(case, arrays, sizes, widths) | {
        "pre-norm": case.option("pre"),
        "gelu": case.option("activation") == "gelu",
        "head-width": sizes.H * sizes.D != widths.query,
        "odd-heads": bool(sizes.H % 2),
    }


def validate(case: Case) -> None:
    if not case.option("self_attention"):
        raise ValueError(f"{case.operator} attends only to its own input: {case.id}")


DRAWN = covering_of(
    "encoder",
    {
        "sizes": (
            "mha/b2h8q5k5d32/e256.256.256.320/self", "mha/b2h4q7k7d3/e12.12.12.20/self",
            "mha/b3h3q3k3d4/e12.12.12.5/self", "mha/b5h4q33k33d8/e32.32.32.24/self",
            "mha/b2h2q4k4d64/e128.128.128.160/self", "mha/b1h2q3k3d128/e256.256.256.64/self",
        ),
        "mask": ("none", "pad", "causal", "causal+pad", "bool.qk/dense", "bool.bhqk/dense"),
        "norms": ("", "pre"),
        "activation": ("", "gelu"),
        "batch": ("", "single"),
    },
)  # fmt: skip

GRADIENTS = covering_of(
    "encoder",
    {
        "dtype": ("f32", "f64"),
        "sizes": ("mha/b2h4q7k7d3/e12.12.12.20/self", "mha/b1h2q4k4d64/e128.128.128.160/self"),
        "mask": ("pad", "none", "causal", "bool.qk/dense"),
        "norms": ("", "pre"),
        "activation": ("gelu", ""),
    },
    is_excluded=is_wide_in_float64,
)

ENCODER = Operator(
    name="encoder",
    text="a layer of a Transformer's encoder: attention and a feed-forward network, with norms",
    words=WORDS,
    axes=lambda case: layers.SEQUENCES | PARAMETERS,
    draw=draw,
    outputs=lambda case: {"output": "bqx"},
    needs=needs,
    ties=lambda options: ("hg", "dv", "xyz", "qk"),
    validate=validate,
    asks=Asks(
        plain="encoder/none/mha/{dt}/b2h4q7k7d3/e12.12.12.20/self",
        cases=(
            # float64 checks gelu to its last digits.
            Ask(
                "encoder/pad/mha/f64/b2h4q7k7d3/e12.12.12.20/gelu/self",
                why="float64 checks gelu to its last digits",
            ),
            Ask("encoder/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.20/self", why="two masks at once"),
            Ask(DRAWN, dtypes="array"),
        ),
        gradients=(
            Ask(
                "encoder/none/mha/f32/b2h4q7k7d3/e12.12.12.20/self",
                why="gradients without any option",
            ),
            Ask(GRADIENTS, dtypes="array", since="standard"),
        ),
    ),
    options=(
        flag("pre", "pre"),
        choice("activation", ACTIVATIONS),
        flag("self_attention", "self"),
        flag("squeezed", "single"),
        NORM_EPSILON,
    ),
    questions=Questions(
        elections=("fully-masked-row", "padded-sample"),
        probe="encoder/{mask}/mha/{dt}/b2h4q7k7d3/e12.12.12.20/self",
    ),
    is_layer=True,
)

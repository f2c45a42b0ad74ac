"""Gated self-attention: (concat_h attention_h * sigmoid(X W^G + b)) W^O + b, * elementwise.

The heads are those of multi-head self-attention. The gate follows the attention (Qiu et al., Gated
Attention for Large Language Models, 2025).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Axes, Operator, flag
from attention_conformance.suite.spec.operators import multi_head
from attention_conformance.suite.spec.operators.layers import kernel
from attention_conformance.suite.spec.sizes import Sizes

PARAMETERS = {"gate_kernel": "xhv", "gate_bias": "hv"}
"""Parameters besides those of multi-head attention, with their axes."""


def axes(case: Case) -> Axes:
    left_out = {"gate_bias"} if case.option("without_biases") else set()
    own = {name: letters for name, letters in PARAMETERS.items() if name not in left_out}
    return {**multi_head.axes(case), **own}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    n = case.letters
    arrays = multi_head.draw(case, rng, seed)
    return arrays | {"gate_kernel": kernel(rng, n["x"], n["x"], n["h"], n["v"])}


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> dict[str, bool]:
    # This layer always takes one tensor, so no feature is needed for that.
    return multi_head.needs(case, arrays, sizes, widths) | {"cross": False}


def validate(case: Case) -> None:
    if not case.option("self_attention"):
        raise ValueError(
            f"{case.operator} attends only to its own input: expected .../self, got {case.id}"
        )


GATED = Operator(
    name="gated",
    text="multi-head self-attention whose heads are gated element by element",
    axes=axes,
    draw=draw,
    outputs=lambda case: {"output": "bqo"},
    needs=needs,
    ties=lambda options: ("xyz", "qk"),
    validate=validate,
    asks=Asks(
        plain="gated/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
        cases=(
            Ask(
                "gated/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
                "gated/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/nobias/self",
            ),
            Ask(
                "gated/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
                "gated/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
                "gated/bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/dense",
                since="standard",
            ),
        ),
        gradients=(
            Ask("gated/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self"),
            Ask(
                "gated/pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
                "gated/pad/mha/bf16/b2h4q7k7d3/e12.12.12.12/self",
                "gated/pad/mha/f64/b2h4q7k7d3/e12.12.12.12/self",
                since="standard",
            ),
        ),
    ),
    options=(flag("without_biases", "nobias"), flag("self_attention", "self")),
    is_layer=True,
)

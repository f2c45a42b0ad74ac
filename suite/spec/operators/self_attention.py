"""Self-attention of one head: projections with biases, no output projection, weights returned."""

from __future__ import annotations

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Axes, Operator
from attention_conformance.suite.spec.operators import layers
from attention_conformance.suite.spec.operators.layers import (
    one_head_outputs,
    options,
    projections_work,
)
from attention_conformance.suite.spec.operators.multi_head import draw


def axes(case: Case) -> Axes:
    kernels = {"query_kernel": "xhd", "key_kernel": "ygd", "value_kernel": "zgv"}
    biases = {"query_bias": "hd", "key_bias": "gd", "value_bias": "gv"}
    return layers.SEQUENCES | kernels | ({} if case.option("without_biases") else biases)


SELF_ATTENTION = Operator(
    name="self-attention",
    text="one head, projections with biases, no output projection, weights returned",
    axes=axes,
    draw=draw,
    outputs=one_head_outputs("v"),
    needs=layers.needs,
    ties=layers.ties("1hg", "vo"),
    asks=Asks(
        plain="self-attention/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
        cases=(
            Ask(
                "self-attention/pad/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
                "self-attention/causal/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self/head",
            ),
            Ask(
                "self-attention/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
                "self-attention/none/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self/head",
                "self-attention/pad/mha/{dt}/b3h1q7k7d8/e10.10.10.8/self",
                since="standard",
            ),
        ),
        gradients=(
            Ask("self-attention/causal/mha/f32/b2h1q7k7d5v6/e12.12.12.6/self"),
            Ask(
                "self-attention/pad/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self",
                "self-attention/none/mha/f32/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
                dtypes="every",
                since="standard",
            ),
        ),
    ),
    options=options("without_biases", "nobias"),
    is_layer=True,
    squeezed_axis="q",
    work=projections_work,
)

"""Promise: gradients of layers by their inputs and parameters lie within derived bounds."""

from __future__ import annotations

from suite.judge.cell import NotElected, check
from suite.judge.gradients import LayerGradientCell
from suite.spec.dtypes import DTYPES
from suite.spec.layers import LayerCase

# Mostly three inputs of their own, so that each has a gradient of its own; one tensor as all three takes
# other paths in some libraries. Few shapes and dtypes at standard: JAX compiles some hundred operations
# for each.
SMOKE = (
    "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12",
    "multi-head/none/mha/bf16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/pad/mha/bf16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/bool.qk.empty/mha/f32/b2h3q5k9d4/e12.12.12.12/dense",
    "additive/pad/mha/f32/b2h1q5k9d16v14/e12.10.14.14",
    "additive/pad/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity/vector",
    "dot/pad/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "concat/pad/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "self-attention/causal/mha/f32/b2h1q7k7d5v6/e12.12.12.6/self",
    "masked/causal+pad/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "layer-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
    "batch-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self/train",
    "batch-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self",
)
STANDARD = (
    "multi-head/causal/mha/f32/b2h3q5k9d4/e12.12.12.12/nobias",
    "multi-head/bool.bhqk/gqa3/f32/b2h6q5k9d4/e12.10.10.12/dense",
    "multi-head/bool.qk.empty/mha/bf16/b2h3q5k9d4/e12.12.12.12/dense",
    "additive/pad/mha/bf16/b2h1q5k9d16v14/e12.10.14.14",
    "additive/pad/mha/bf16/b2h1q5k9d16v14/e16.16.14.14/identity/vector",
    "additive/padempty/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity",
    "dot/pad/mha/bf16/b2h1q5k9d8v6/e8.8.6.6",
    "dot/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "concat/pad/mha/bf16/b2h1q5k9d8v6/e8.8.6.6",
    "concat/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self",
    *(f"self-attention/pad/mha/{dt}/b2h1q7k7d5v6/e12.12.12.6/self" for dt in DTYPES),
    "self-attention/none/mha/f32/b2h1q7k7d5v6/e12.12.12.6/nobias/self",
    *(f"masked/causal+pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6" for dt in DTYPES),
    "masked/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6",
    "layer-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self",
    "batch-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self/train",
    *(
        f"{norm}-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self{train}"
        for norm, train in (("layer", ""), ("batch", "/train"), ("batch", ""))
        for dt in DTYPES
    ),
)
FULL = (
    "multi-head/none/mha/f64/b2h3q5k9d4/e12.12.12.12",
    "multi-head/pad/mha/f16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/bool.qk/mha/f32/b2h4q5k9d3v5/e10.11.13.7/bias.bhqk/dense",
    *(
        f"{operator}/{mask}/mha/{dt}/{rest}"
        for operator, rest in (
            ("additive", "b2h1q5k9d16v14/e12.10.14.14"),
            ("additive", "b2h1q5k9d16v14/e16.16.14.14/identity"),
            ("dot", "b2h1q5k9d8v6/e8.8.6.6/unscaled"),
            ("concat", "b2h1q5k9d8v6/e8.8.6.6/unscaled"),
            ("dot", "b2h1q5k9d8v6/e8.8.6.6"),
            ("concat", "b2h1q5k9d8v6/e8.8.6.6"),
        )
        for mask in ("none", "padempty")
        for dt in ("f64", "f16")
    ),
)


def layers(level: str) -> list[LayerCase]:
    texts = SMOKE + (() if level == "smoke" else STANDARD) + (FULL if level == "full" else ())
    return [LayerCase.parse(text) for text in dict.fromkeys(texts)]


@check(layers, LayerGradientCell, ("gradient",))
def test_layer_gradients(cell: LayerGradientCell) -> None:
    if not cell.has_parameters:
        raise NotElected("the layer takes no parameters: its gradients are no one's to know")
    answer, gradients = cell.differentiate()
    cell.judge(answer)
    cell.judge_gradients(gradients)

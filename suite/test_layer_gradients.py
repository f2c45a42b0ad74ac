"""Promise: gradients of multi-head layers by their inputs and parameters lie within derived bounds."""

from __future__ import annotations

from suite.judge.cell import NotElected, check
from suite.judge.gradients import LayerGradientCell
from suite.spec.layers import LayerCase

# Three inputs of their own, so that each has a gradient of its own; no row without keys. Few shapes and
# dtypes at standard: JAX compiles some hundred operations for each.
CASES = (
    "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12",
    "multi-head/none/mha/bf16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/pad/mha/bf16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/causal/mha/f32/b2h3q5k9d4/e12.12.12.12/nobias",
    "multi-head/bool.bhqk/gqa3/f32/b2h6q5k9d4/e12.10.10.12/dense",
)
FULL = (
    "multi-head/none/mha/f64/b2h3q5k9d4/e12.12.12.12",
    "multi-head/pad/mha/f16/b2h3q5k9d4/e12.12.12.12",
    "multi-head/bool.qk/mha/f32/b2h4q5k9d3v5/e10.11.13.7/bias.bhqk/dense",
)


def layers(level: str) -> list[LayerCase]:
    texts = {"smoke": CASES[:3], "standard": CASES}.get(level, CASES + FULL)
    return [LayerCase.parse(text) for text in texts]


@check(layers, LayerGradientCell, ("gradient",))
def test_layer_gradients(cell: LayerGradientCell) -> None:
    if not cell.has_parameters:
        raise NotElected("the layer takes no parameters: its gradients are no one's to know")
    answer, gradients = cell.differentiate()
    cell.judge(answer)
    cell.judge_gradients(gradients)

"""Faults that are off by so little, in one dtype or in long rows alone, that every element lies within
its bound."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Fused, Kernel
from attention_conformance.suite.faults.kernels.gradient import DifferentiableEager
from attention_conformance.suite.faults.kernels.layer import LayerCall, LayerEager
from attention_conformance.suite.faults.kernels.layer_gradient import Arrays, LayerDifferentiable
from attention_conformance.suite.spec.inputs import Inputs


def off(x: np.ndarray, dtype: str, only: str = "bf16", by: float = 1.01) -> np.ndarray:
    """x, larger by a factor in the dtype `only`."""
    return x * x.dtype.type(by) if dtype == only else x


def layer_scores_off(
    right: LayerEager, query: np.ndarray, key: np.ndarray, call: LayerCall
) -> np.ndarray:
    return off(right.scores(query, key, call), call.fmt.name)


def scale_off_by_athousandth(right: Fused, call: Call) -> float:
    return right.factor(call) * (1.001 if call.fmt.name == "f16" else 1.0)


def block_of_long_rows_off(
    right: Kernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    scores = right.scores(query, key, call)
    if call.sizes.Lk > 512 and call.fmt.name == "f32":
        scores[..., 256:320] += np.float32(0.002)
    return scores


def query_gradient_off(
    right: DifferentiableEager, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
) -> dict[str, np.ndarray | None]:
    gradients = right.backward(call, cotangent, wrt)
    assert gradients["query"] is not None
    return gradients | {"query": off(gradients["query"], call.fmt.name)}


class OneGradientOff(LayerDifferentiable):
    """The gradient called `of` is off by 1 % in bfloat16, in a layer that declares to store its steps."""

    numerics: Any = "eager"
    of = "query_kernel"

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {self.of: off(gradients[self.of], inputs.dtype.name)}


row = partial(deviation, family="numerics", right=LayerEager)

DEVIATIONS = [
    row("layer-output-off", "spread",
        "In bfloat16 a layer's heads are 1 % too large before the output projection.",
        "a factor on the bfloat16 path alone, as a gain rounded to two digits; compute it in float32",
        merge=lambda right, heads, call: off(right.merge(heads, call), call.fmt.name)),
    row("layer-scores-off", "spread", "In bfloat16 the scores of a layer are 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale", scores=layer_scores_off),
    row("scale-off-by-athousandth", "spread",
        "In float16 the scale is 0.1 % too large, in a kernel that stores its weights in float16.",
        "a scale with three digits on the float16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale", right=Fused, factor=scale_off_by_athousandth),
    row("block-of-long-rows-off", "spread",
        "In float32 rows of more than 512 keys the scores of one block are 0.002 too large.",
        "one block adds a term or rounds more than the others; treat all blocks of keys alike",
        right=Kernel, scores=block_of_long_rows_off),
    row("query-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the queries is 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; `dq = scale * ds @ k`",
        family="gradient", right=DifferentiableEager, backward=query_gradient_off),
    row("kernel-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the query projection's kernel is 1 % too large.",
        "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
        family="gradient", right=OneGradientOff),
    row("key-gradient-off", "gradient_spread",
        "In bfloat16 the gradient that a layer hands on to its keys is 1 % too large.",
        "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
        family="gradient", right=OneGradientOff, facts={"of": "key"}),
]  # fmt: skip

"""Faults that are off by so little, in one dtype or in long rows alone, that every element lies within
its bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Fused, Kernel
from attention_conformance.suite.faults.kernels.gradient import DifferentiableEager
from attention_conformance.suite.faults.kernels.layer import LayerCall, LayerEager
from attention_conformance.suite.faults.kernels.layer_gradient import Arrays, LayerDifferentiable
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "numerics"


def off(x: np.ndarray, dtype: str, only: str = "bf16", by: float = 1.01) -> np.ndarray:
    """x, larger by a factor in the dtype `only`."""
    return x * x.dtype.type(by) if dtype == only else x


@fault(
    "spread",
    "a factor on the bfloat16 path alone, as a gain rounded to two digits; compute it in float32",
)
class LayerOutputOff(LayerEager):
    """In bfloat16 a layer's heads are 1 % too large before the output projection."""

    def merge(self, heads: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().merge(heads, call), call.fmt.name)


@fault(
    "spread",
    "a scale with two digits on the bfloat16 path alone; compute `1 / sqrt(D)` in float32",
    family="scale",
)
class LayerScoresOff(LayerEager):
    """In bfloat16 the scores of a layer are 1 % too large."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().scores(query, key, call), call.fmt.name)


@fault(
    "spread",
    "a scale with three digits on the float16 path alone; compute `1 / sqrt(D)` in float32",
    family="scale",
)
class ScaleOffByAThousandth(Fused):
    """In float16 the scale is 0.1 % too large, in a kernel that stores its weights in float16."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.001 if call.fmt.name == "f16" else 1.0)


@fault(
    "spread",
    "one block adds a term or rounds more than the others; treat all blocks of keys alike",
)
class BlockOfLongRowsOff(Kernel):
    """In float32 rows of more than 512 keys the scores of one block are 0.002 too large."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if call.sizes.Lk > 512 and call.fmt.name == "f32":
            scores[..., 256:320] += np.float32(0.002)
        return scores


@fault(
    "gradient_spread",
    "a scale with two digits on the bfloat16 path alone; `dq = scale * ds @ k`",
    family="gradient",
)
class QueryGradientOff(DifferentiableEager):
    """In bfloat16 the gradient of the queries is 1 % too large."""

    def backward(
        self, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
    ) -> dict[str, np.ndarray | None]:
        gradients = super().backward(call, cotangent, wrt)
        assert gradients["query"] is not None
        return gradients | {"query": off(gradients["query"], call.fmt.name)}


class OneGradientOff(LayerDifferentiable):
    """The gradient called `of` is off by 1 % in bfloat16, in a layer that declares to store its steps."""

    numerics: Any = "eager"
    of = "query_kernel"

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {self.of: off(gradients[self.of], inputs.dtype.name)}


@fault(
    "gradient_spread",
    "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
    family="gradient",
)
class KernelGradientOff(OneGradientOff):
    """In bfloat16 the gradient of the query projection's kernel is 1 % too large."""


@fault(
    "gradient_spread",
    "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
    family="gradient",
)
class KeyGradientOff(OneGradientOff):
    """In bfloat16 the gradient that a layer hands on to its keys is 1 % too large."""

    of = "key"

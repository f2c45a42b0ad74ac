"""Faults that are off by so little, in one dtype or in long rows alone, that every element lies within
its bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Fused, Kernel
from suite.faults.kernels.gradient import DifferentiableEager
from suite.faults.kernels.layer import LayerCall, LayerEager
from suite.faults.kernels.layer_gradient import Arrays, LayerDifferentiable
from suite.spec.inputs import Inputs


def off(x: np.ndarray, dtype: str, only: str = "bf16", by: float = 1.01) -> np.ndarray:
    """x, larger by a factor in the dtype `only`."""
    return x * x.dtype.type(by) if dtype == only else x


@fault("spread")
class LayerOutputOff(LayerEager):
    """What a layer attends to is off by 1 % in bfloat16, before its last projection."""

    def merge(self, heads: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().merge(heads, call), call.fmt.name)


@fault("spread")
class LayerScoresOff(LayerEager):
    """The scores of a layer are off by 1 % in bfloat16."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().scores(query, key, call), call.fmt.name)


@fault("spread")
class ScaleOffByAThousandth(Fused):
    """The scale is off by 0.1 % in float16, in a kernel that stores its weights."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.001 if call.fmt.name == "f16" else 1.0)


@fault("spread")
class BlockOfLongRowsOff(Kernel):
    """In rows of more than 512 keys the scores of one block are off by 0.002, in float32."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if call.sizes.Lk > 512 and call.fmt.name == "f32":
            scores[..., 256:320] += np.float32(0.002)
        return scores


@fault("gradient_spread")
class QueryGradientOff(DifferentiableEager):
    """The gradient of the queries is off by 1 % in bfloat16."""

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


@fault("gradient_spread")
class KernelGradientOff(OneGradientOff):
    """The gradient of the kernel of queries is off by 1 % in bfloat16."""


@fault("gradient_spread")
class KeyGradientOff(OneGradientOff):
    """The gradient that a layer hands on to its keys is off by 1 % in bfloat16."""

    of = "key"

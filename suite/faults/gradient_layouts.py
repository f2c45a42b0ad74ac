"""Faults whose gradients depend on where operands lie in memory."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.layouts import (
    elements,
    of_cache,
    of_more_heads,
    shared,
    unaligned,
)

FAMILY = "gradient"


@fault("gradient_layouts", "`dk.sum(0)` for a stride of 0; after `expand` autograd sums by itself")
class SharedKeyGradientSummed(Differentiable):
    """Keys expanded along the batch get the gradient of all samples at each sample."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if shared(call.key.values, 0):
            gradients["key"] = np.repeat(np.asarray(gradients["key"]).sum(0)[None], call.sizes.B, 0)
        return gradients


class GradientLost(Differentiable):
    """The gradient of `operand` misses a part."""

    operand = "key"

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        gradient = np.array(gradients[self.operand])
        self.lose(gradient, getattr(call, self.operand).values)
        gradients[self.operand] = gradient
        return gradients

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        """Write zeros where the gradient is lost."""
        raise NotImplementedError


@fault(
    "gradient_layouts",
    "dk written by `k.stride()` of a longer cache; dk is an array of its own: `dk.stride()`",
)
class KeyGradientOfCacheLost(GradientLost):
    """Keys that are a slice of a longer cache get no gradient in heads after the first."""

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[:, 1:] *= not of_cache(values)


@fault(
    "gradient_layouts", "dv written by `v.stride()` of an array with more heads; use `dv.stride()`"
)
class ValueGradientOfMoreHeadsLost(GradientLost):
    """Values that are a slice of more heads get no gradient in samples after the first."""

    operand = "value"

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[1:] *= not of_more_heads(values)


@fault("gradient_layouts", "dq written by H * D for rows of a fused projection; use `dq.stride(2)`")
class QueryGradientOfFusedMisplaced(GradientLost):
    """The gradient of queries that are a slice of a fused projection is written one row off."""

    operand = "query"

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        _, heads, rows, _ = elements(values)
        if heads == values.shape[3] and rows > values.shape[1] * heads:
            gradient[:, :, 1:] = gradient[:, :, :-1].copy()


@fault(
    "gradient_layouts",
    "stores of 16 bytes; if `data_ptr() % 16` is not 0, store element by element",
)
class KeyGradientOfUnalignedLost(GradientLost):
    """Keys that begin at no multiple of 16 bytes get no gradient in the first component."""

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[..., 0] *= not unaligned(values)


@fault(
    "inner_gradient_layouts",
    "`empty_like(v)` has the strides of v, and is read as contiguous; use `dv.stride()`",
)
class ValueGradientInOrder(Differentiable):
    """The gradient of values that are a transposed view comes back transposed in memory."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if call.value.values.strides[-1] != call.value.values.itemsize:
            gradient = np.asarray(gradients["value"])
            gradients["value"] = gradient.swapaxes(-1, -2).reshape(gradient.shape)
        return gradients

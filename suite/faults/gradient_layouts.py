"""Faults whose gradients hang on where operands lie in memory."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.gradient import Differentiable
from suite.faults.layouts import elements, of_cache, of_more_heads, shared, unaligned


@fault("gradient_layouts")
class SharedKeyGradientSummed(Differentiable):
    """Keys with stride 0 along the batch get the gradient of all samples, as one key would."""

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


@fault("gradient_layouts")
class KeyGradientOfCacheLost(GradientLost):
    """Keys out of a longer cache get no gradient in the heads after the first."""

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[:, 1:] *= not of_cache(values)


@fault("gradient_layouts")
class ValueGradientOfMoreHeadsLost(GradientLost):
    """Values out of an array with more heads get no gradient in the samples after the first."""

    operand = "value"

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[1:] *= not of_more_heads(values)


@fault("gradient_layouts")
class QueryGradientOfFusedMisplaced(GradientLost):
    """The gradient of queries out of a fused projection is written as if they had been alone."""

    operand = "query"

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        _, heads, rows, _ = elements(values)
        if heads == values.shape[3] and rows > values.shape[1] * heads:
            gradient[:, :, 1:] = gradient[:, :, :-1].copy()


@fault("gradient_layouts")
class KeyGradientOfUnalignedLost(GradientLost):
    """Keys that begin at no multiple of 16 bytes get no gradient in the first component."""

    def lose(self, gradient: np.ndarray, values: np.ndarray) -> None:
        gradient[..., 0] *= not unaligned(values)


@fault("inner_gradient_layouts")
class ValueGradientInOrder(Differentiable):
    """The gradient of values is written in the order of their memory, and read as contiguous."""

    def backward(self, call, cotangent, wrt):
        gradients = super().backward(call, cotangent, wrt)
        if call.value.values.strides[-1] != call.value.values.itemsize:
            gradient = np.asarray(gradients["value"])
            gradients["value"] = gradient.swapaxes(-1, -2).reshape(gradient.shape)
        return gradients

"""Faults whose gradients depend on where operands lie in memory."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.layouts import (
    elements,
    of_cache,
    of_more_heads,
    shared,
    unaligned,
)


def shared_key_gradient_summed(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
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


def key_gradient_of_cache_lost(
    right: GradientLost, gradient: np.ndarray, values: np.ndarray
) -> None:
    gradient[:, 1:] *= not of_cache(values)


def value_gradient_of_more_heads_lost(
    right: GradientLost, gradient: np.ndarray, values: np.ndarray
) -> None:
    gradient[1:] *= not of_more_heads(values)


def query_gradient_of_fused_misplaced(
    right: GradientLost, gradient: np.ndarray, values: np.ndarray
) -> None:
    _, heads, rows, _ = elements(values)
    if heads == values.shape[3] and rows > values.shape[1] * heads:
        gradient[:, :, 1:] = gradient[:, :, :-1].copy()


def key_gradient_of_unaligned_lost(
    right: GradientLost, gradient: np.ndarray, values: np.ndarray
) -> None:
    gradient[..., 0] *= not unaligned(values)


def value_gradient_in_order(right: Differentiable, call, cotangent, wrt):
    gradients = right.backward(call, cotangent, wrt)
    if call.value.values.strides[-1] != call.value.values.itemsize:
        gradient = np.asarray(gradients["value"])
        gradients["value"] = gradient.swapaxes(-1, -2).reshape(gradient.shape)
    return gradients


row = partial(deviation, family="gradient", right=GradientLost)

DEVIATIONS = [
    row("shared-key-gradient-summed", "gradient_layouts",
        "Keys expanded along the batch get the gradient of all samples at each sample.",
        "`dk.sum(0)` for a stride of 0; after `expand` autograd sums by itself",
        right=Differentiable, backward=shared_key_gradient_summed),
    row("key-gradient-of-cache-lost", "gradient_layouts",
        "Keys that are a slice of a longer cache get no gradient in heads after the first.",
        "dk written by `k.stride()` of a longer cache; dk is an array of its own: `dk.stride()`",
        lose=key_gradient_of_cache_lost),
    row("value-gradient-of-more-heads-lost", "gradient_layouts",
        "Values that are a slice of more heads get no gradient in samples after the first.",
        "dv written by `v.stride()` of an array with more heads; use `dv.stride()`",
        facts={"operand": "value"}, lose=value_gradient_of_more_heads_lost),
    row("query-gradient-of-fused-misplaced", "gradient_layouts",
        "The gradient of queries that are a slice of a fused projection is written one row off.",
        "dq written by H * D for rows of a fused projection; use `dq.stride(2)`",
        facts={"operand": "query"}, lose=query_gradient_of_fused_misplaced),
    row("key-gradient-of-unaligned-lost", "gradient_layouts",
        "Keys that begin at no multiple of 16 bytes get no gradient in the first component.",
        "stores of 16 bytes; if `data_ptr() % 16` is not 0, store element by element",
        lose=key_gradient_of_unaligned_lost),
    row("value-gradient-in-order", "inner_gradient_layouts",
        "The gradient of values that are a transposed view comes back transposed in memory.",
        "`empty_like(v)` has the strides of v, and is read as contiguous; use `dv.stride()`",
        right=Differentiable, backward=value_gradient_in_order),
]  # fmt: skip

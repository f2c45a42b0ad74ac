"""Faults in rows that neither a causal flag nor a mask leaves without keys, but both together."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable

FAMILY = "mask"


def empty_together(kernel: Kernel, call: Call) -> Any:
    """The rows (B, H, Lq, 1) that are without keys by flag and mask together alone."""
    if call.mask is None or not call.causal:
        return False
    flag = kernel.causal(call)
    mask = np.broadcast_to(call.mask.values, (1, 1, *call.mask.shape)[-4:])
    flag_leaves, mask_leaves, both_leave = (
        seen.any(-1, keepdims=True) for seen in (flag, mask, flag & mask)
    )
    return flag_leaves & mask_leaves & ~both_leave


@fault(
    "values", "rows without keys are looked for in the mask alone; look after the flag is joined"
)
class EmptyTogetherIsTheMean(Kernel):
    """A row that flag and mask empty together is the mean of all values."""

    def compute(self, call: Call) -> np.ndarray:
        value = self.expand(self.load(call.value, call), call)
        mean = value.mean(2, keepdims=True) if call.sizes.Lk else call.work(0)
        empty = empty_together(self, call)
        return np.where(empty & (call.sinks is None), mean, super().compute(call))


@fault("values", "`torch.where(mask.any(-1), mask, causal)`; join both, then treat empty rows")
class EmptyTogetherIgnoresTheMask(Kernel):
    """A row that flag and mask empty together attends what the flag allows."""

    def allowed(self, call: Call) -> np.ndarray | None:
        allowed = super().allowed(call)
        if call.mask is None or not call.causal or allowed is None:
            return allowed
        return np.where(empty_together(self, call), self.causal(call), allowed)


@fault("values", "`mask.any(-1)` says which rows are empty; the flag must be joined before")
class EmptyTogetherIsNan(Kernel):
    """A row that flag and mask empty together divides by its sum of weights, which is zero."""

    def compute(self, call: Call) -> np.ndarray:
        empty = empty_together(self, call)
        return np.where(empty & (call.sinks is None), np.nan, super().compute(call))


@fault("gradients", "the backward pass finds empty rows by the mask alone; join the flag before")
class EmptyTogetherHasGradients(Differentiable):
    """The gradient of a row that flag and mask empty together reaches the values."""

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        keys = max(call.sizes.Lk, 1)
        shared = np.where(empty_together(self, call), call.work(1 / keys), weights)
        return super().value_gradient(shared, cotangent, call)

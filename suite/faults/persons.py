"""Faults whose answers nobody elects together: handed over by a person, who promises nothing. Those with
single answers that nobody elects are in `suite.faults.nobody`."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel

FAMILY = "mask"


class Persons(Kernel):
    """An honest kernel that a person handed over: what it elects is observed."""

    is_user_code = True
    elections = {}
    argument_names = ("query", "key", "value", "mask", "bias")


@fault("mask_beside_flag", "`if is_causal: mask = tril(...)`; both apply: `mask & tril(...)`")
class MaskIgnoredByFlag(Persons):
    """With the causal flag the mask has no effect."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return np.ones_like(mask) if call.causal else mask


@fault(
    "mask_beside_flag",
    "`if mask is not None: mask = mask & causal`; alone, too, the flag hides",
)
class FlagIgnoredWithoutMask(MultiHeadKernel):
    """The causal flag of a layer has an effect only beside a mask."""

    is_user_code = True
    elections = {}

    def causal(self, call: LayerCall) -> np.ndarray:
        hidden = super().causal(call)
        return np.ones_like(hidden) if call.mask is None else hidden


@fault(
    "forms_of_empty_rows",
    "a guard for fully masked rows reads the mask alone; a bias of -inf hides, too",
)
class EmptyByMaskAlone(Persons):
    """A row is zeros if a mask hides all its keys, and NaN if a bias of -inf does."""

    def compute(self, call: Call) -> np.ndarray:
        out = super().compute(call)
        if call.bias is None or call.sinks is not None:
            return out
        empty = np.isneginf(rank4_of(call)).all(-1, keepdims=True)
        return np.where(empty, np.nan, out)


@fault(
    "one_answer_in_all_dtypes",
    "a path for bfloat16 without the guard for fully masked rows",
)
class EmptyByDtype(Persons):
    """A fully masked row is NaN in bfloat16, and zeros in other dtypes."""

    def compute(self, call: Call) -> np.ndarray:
        out, allowed = super().compute(call), self.allowed(call)
        if call.fmt.name != "bf16" or allowed is None or call.sinks is not None:
            return out
        return np.where(allowed.any(-1, keepdims=True), out, np.nan)


@fault(
    "gradient_of_finite_rows",
    "`exp(s - m) / l` in backward where l is 0; use `where(l == 0, 0, ...)`, as in forward",
    family="gradient",
)
class EmptyRowsDivideByZero(Differentiable, Persons):
    """The backward pass divides the weights of a fully masked row by their sum, which is zero."""

    elections = {}

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        return raised / raised.sum(-1, keepdims=True)


@fault(
    "gradient_of_finite_rows",
    "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
    family="gradient",
)
class EmptyRowsShareGradients(Differentiable, Persons):
    """A fully masked row is zeros, but hands its gradient to all values in equal parts."""

    elections = {}

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        empty = (weights == 0).all(-1, keepdims=True)
        return super().value_gradient(np.where(empty, 1 / call.sizes.Lk, weights), cotangent, call)


def rank4_of(call: Call) -> np.ndarray:
    """The bias of a call, (B, H, Lq, Lk)."""
    s = call.sizes
    assert call.bias is not None
    return np.broadcast_to(call.bias.values, (s.B, s.H, s.Lq, s.Lk))

"""Faults of the range and the order of scores: rows far from 0, maxima that rise and fall."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.merge import MergeKernel

FAMILY = "numerics"


@fault(
    "values",
    "`m = full(..., -50000.0)` at the start of the online softmax; begin with -inf",
    family="softmax",
)
class MaximumFromMinus50000(Online):
    """The running maximum begins at -50000, so that rows wholly below it underflow."""

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        return np.maximum(largest, largest.dtype.type(-5e4))


@fault(
    "values",
    "m from scores without the bias; a bias may raise scores, too: take m of their sum",
    family="softmax",
)
class BiasTakenForPenalty(Kernel):
    """The subtracted maximum is at most that of the scores before the bias: a large bias overflows."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.unbiased = scores
        return super().biased(scores, call)

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        if scores.shape != self.unbiased.shape:  # with a sink
            return super().shifted(scores)
        seen = np.where(np.isneginf(scores), scores, self.unbiased)
        limit = seen.max(-1, keepdims=True, initial=-np.inf)
        maximum = np.minimum(scores.max(-1, keepdims=True, initial=-np.inf), limit)
        return scores - np.where(np.isneginf(maximum), 0, maximum)


@fault(
    "values",
    "m of the first tile is kept; update it in every tile: `m = maximum(m, s.amax(-1))`",
    family="softmax",
)
class MaximumOfFirstTile(Online):
    """The maximum of the first 16 keys is subtracted from all, so that larger scores overflow."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        self.first = scores[..., :16].max(-1, keepdims=True, initial=-np.inf)
        return super().attend(scores, value, call)

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        return super().anchor(self.first)


@fault(
    "values",
    "`m = s.amax(-1)` in every tile; a running maximum never falls: `maximum(m, s.amax(-1))`",
    family="softmax",
)
class MaximumForgets(Kernel):
    """Each tile of 16 keys takes its own maximum: where it falls by 100, rescaling overflows."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        total, out, before = np.zeros((*scores.shape[:-1], 1)), 0.0, None
        for start in range(0, scores.shape[-1], 16):
            s = scores[..., start : start + 16]
            largest = s.max(-1, keepdims=True)
            largest = np.where(np.isneginf(largest), 0 if before is None else before, largest)
            moved = 1.0 if before is None else np.exp(before - largest)
            raised = np.exp(s - largest)
            total = (total * moved).astype(call.work) + raised.sum(-1, keepdims=True)
            out = out * moved + raised @ value[..., start : start + 16, :]
            before = largest
        return out / np.where(total == 0, 1, total)


@fault("values", "`bias.clamp(min=-1e4)`; add the bias as it is", family="scores")
class BiasClampedAtMinus10000(Kernel):
    """A bias below -10000 counts as -10000."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.bias is None:
            return super().biased(scores, call)
        return scores + np.maximum(super().biased(np.zeros_like(scores), call), call.work(-1e4))


@fault("gradients", "`lse.clamp(min=-5e4)`; a log-sum-exp may be any number", family="gradient")
class StatisticsFromMinus50000(Differentiable):
    """The backward pass takes no log-sum-exp below -50000."""

    def backward_weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = self.log_sum_exp(scores, call)[..., None]
        return np.exp(scores - np.maximum(lse, call.work(-5e4)))


@fault(
    "values",
    "`lse < -1000` as a test for parts without keys; only these have `lse == -inf`",
    family="merge",
)
class MergeBelowMinus1000IsEmpty(MergeKernel):
    """A part whose log-sum-exp is below -1000 counts as one without keys."""

    def weights(self, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super().weights(np.where(lse < -1000, -np.inf, lse))

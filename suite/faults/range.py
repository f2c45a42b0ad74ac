"""Faults of the range and the order of scores: rows far from 0, maxima that rise and fall."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.merge import MergeKernel

FAMILY = "numerics"


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


def maximum_forgets(right: Kernel, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
    value = right.visible(value, scores)
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


def bias_clamped_at_minus10000(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is None:
        return right.biased(scores, call)
    return scores + np.maximum(right.biased(np.zeros_like(scores), call), call.work(-1e4))


def statistics_from_minus50000(right: Differentiable, scores: np.ndarray, call: Call) -> np.ndarray:
    lse = right.log_sum_exp(scores, call)[..., None]
    return np.exp(scores - np.maximum(lse, call.work(-5e4)))


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("maximum-from-minus50000", "values",
        "The running maximum begins at -50000, so that rows wholly below it underflow.",
        "`m = full(..., -50000.0)` at the start of the online softmax; begin with -inf",
        family="softmax", right=Online,
        anchor=lambda right, largest: np.maximum(largest, largest.dtype.type(-5e4))),
    row("maximum-forgets", "values",
        "Each tile of 16 keys takes its own maximum: where it falls by 100, rescaling overflows.",
        "`m = s.amax(-1)` in every tile; a running maximum never falls: `maximum(m, s.amax(-1))`",
        family="softmax", attend=maximum_forgets),
    row("bias-clamped-at-minus10000", "values", "A bias below -10000 counts as -10000.",
        "`bias.clamp(min=-1e4)`; add the bias as it is", family="scores",
        biased=bias_clamped_at_minus10000),
    row("statistics-from-minus50000", "gradients",
        "The backward pass takes no log-sum-exp below -50000.",
        "`lse.clamp(min=-5e4)`; a log-sum-exp may be any number", family="gradient",
        right=Differentiable, backward_weights=statistics_from_minus50000),
    row("merge-below-minus1000-is-empty", "values",
        "A part whose log-sum-exp is below -1000 counts as one without keys.",
        "`lse < -1000` as a test for parts without keys; only these have `lse == -inf`",
        family="merge", right=MergeKernel,
        weights=lambda right, lse: right.weights(np.where(lse < -1000, -np.inf, lse))),
]  # fmt: skip

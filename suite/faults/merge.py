"""Faults of merging partial answers."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.merge import MergeInTurn, MergeKernel
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "merge"

Merged = tuple[np.ndarray, np.ndarray]


@fault("values", "`exp(lse)`; subtract the largest: `exp(lse - lse.amax(0))`")
class MergeWithoutMaximum(MergeKernel):
    """The largest log-sum-exp is not subtracted before the exponential, which overflows."""

    def largest(self, lse: np.ndarray) -> np.ndarray:
        return np.zeros(lse.shape[1:], lse.dtype)


@fault("values", "`out.mean(0)`; it is `(exp(lse - logsumexp(lse, 0))[..., None] * out).sum(0)`")
class MergeWithoutRescaling(MergeKernel):
    """Partial outputs are averaged: their log-sum-exps are ignored."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return outputs.mean(0), super().merged(outputs, lse, fmt)[1]


@fault("values", "`exp(lse - lse.amax(0))` as weights; divide by their sum")
class MergeNotNormalised(MergeKernel):
    """The weights of the parts are not divided by their sum."""

    def weights(self, lse: np.ndarray) -> Merged:
        _, total = super().weights(lse)
        return np.exp(lse - self.largest(lse)), total


@fault("values", "`-inf - -inf` is NaN; take 0 for a maximum of -inf")
class MergeTwiceEmptyIsNaN(MergeKernel):
    """If no part has a key for a row, the row is NaN."""

    def largest(self, lse: np.ndarray) -> np.ndarray:
        maximum: np.ndarray = lse.max(0)
        return maximum


@fault("values", "`total.clamp(min=...)` or a division that gives 1; a row without keys is 0")
class MergeTwiceEmptyIsUniform(MergeKernel):
    """If no part has a key for a row, the row is 1, not 0."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        return np.where(np.asarray(np.isneginf(lse).all(0))[..., None], 1.0, output), total


@fault("values", "`return lse.amax(0)`; the merged one is `logsumexp(lse, 0)`", family="lse")
class MergeLseOfTheLargest(MergeKernel):
    """The largest partial log-sum-exp comes back in place of the merged one."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return super().merged(outputs, lse, fmt)[0], lse.max(0)


@fault("values", "`lse.bfloat16()`; keep log-sum-exps in float32", family="numerics")
class MergeLseInBfloat16(MergeKernel):
    """Log-sum-exps are rounded to bfloat16 before they are compared."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return super().merged(outputs, round_to(lse, DTYPES["bf16"]).astype(lse.dtype), fmt)


@fault("values", "`lse.to(out.dtype)`; keep log-sum-exps in float32", family="numerics")
class MergeLseInTheDtype(MergeKernel):
    """The merged log-sum-exp is rounded to the 16-bit dtype of the outputs."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        return output, round_to(total, fmt)


@fault("values", "`range(1, parts - 1)`; the last part counts, too: `range(1, parts)`")
class MergeLastPartMissing(MergeKernel):
    """Of more than two parts the last is left out."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        kept = slice(None, -1) if len(lse) > 2 else slice(None)
        return super().merged(outputs[kept], lse[kept], fmt)


@fault("values", "`exp2(lse - m)`; log-sum-exps are natural: `exp(lse - m)`")
class MergeByBaseTwo(MergeKernel):
    """Log-sum-exps are read as logarithms to the base 2."""

    def weights(self, lse: np.ndarray) -> Merged:
        return super().weights(lse * lse.dtype.type(np.log(2)))[0], super().weights(lse)[1]


@fault("values", "`lse[:, :, :1]` for all heads; head h has `lse[:, :, h]`", family="heads")
class MergeOfTheFirstHead(MergeKernel):
    """All heads weight their parts as the first one does."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        weights, _ = self.weights(np.broadcast_to(lse[:, :, :1], lse.shape))
        return (weights[..., None] * outputs).sum(0), self.weights(lse)[1]


@fault(
    "nesting",
    "a number of parts kept from the call before; take it from the arrays of this call",
    family="state",
)
class MergePairsShifted(MergeKernel):
    """After a call with four parts the log-sum-exp of two is off by a hundredth."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        after = self.__dict__.get("parts", 0) == 4 and len(lse) == 2
        self.__dict__["parts"] = 4 if after else len(lse)
        return output, total + lse.dtype.type(0.01 * after)


@fault(
    "gradients",
    "`lse.detach()`, or zeros in backward; the weights depend on the log-sum-exps",
    family="gradient",
)
class MergeLseWithoutGradient(MergeInTurn):
    """The partial log-sum-exps get no gradient."""

    def gradients(
        self, outputs: np.ndarray, lse: np.ndarray, cotangent: np.ndarray
    ) -> dict[str, np.ndarray]:
        gradients = super().gradients(outputs, lse, cotangent)
        return {**gradients, "partial_lse": np.zeros_like(lse)}


@fault(
    "gradients",
    "`exp(lse)` in backward; subtract the largest there, too: `exp(lse - lse.amax(0))`",
    family="gradient",
)
class MergeGradientWithoutMaximum(MergeInTurn):
    """The backward pass makes its weights anew, without taking off the largest log-sum-exp."""

    def gradients(
        self, outputs: np.ndarray, lse: np.ndarray, cotangent: np.ndarray
    ) -> dict[str, np.ndarray]:
        return MergeWithoutMaximum(self.backend).gradients(outputs, lse, cotangent)

"""Faults of merging partial answers."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.merge import MergeInTurn, MergeKernel
from suite.spec.dtypes import DTYPES, DType, round_to

Merged = tuple[np.ndarray, np.ndarray]


@fault("values")
class MergeWithoutMaximum(MergeKernel):
    """The largest log-sum-exp is not taken off before the exponential."""

    def largest(self, lse: np.ndarray) -> np.ndarray:
        return np.zeros(lse.shape[1:], lse.dtype)


@fault("values")
class MergeWithoutRescaling(MergeKernel):
    """Partial outputs are averaged: their log-sum-exps are ignored."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return outputs.mean(0), super().merged(outputs, lse, fmt)[1]


@fault("values")
class MergeNotNormalised(MergeKernel):
    """Weights are not divided by their sum."""

    def weights(self, lse: np.ndarray) -> Merged:
        _, total = super().weights(lse)
        return np.exp(lse - self.largest(lse)), total


@fault("values")
class MergeTwiceEmptyIsNaN(MergeKernel):
    """Where all parts are empty, -inf is taken off -inf."""

    def largest(self, lse: np.ndarray) -> np.ndarray:
        maximum: np.ndarray = lse.max(0)
        return maximum


@fault("values")
class MergeTwiceEmptyIsUniform(MergeKernel):
    """Where all parts are empty, the answer is one, and not 0."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        return np.where(np.asarray(np.isneginf(lse).all(0))[..., None], 1.0, output), total


@fault("values")
class MergeLseOfTheLargest(MergeKernel):
    """The log-sum-exp that comes back is the largest one."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return super().merged(outputs, lse, fmt)[0], lse.max(0)


@fault("values")
class MergeLseInBfloat16(MergeKernel):
    """Log-sum-exps are stored in bfloat16 before they are compared."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        return super().merged(outputs, round_to(lse, DTYPES["bf16"]).astype(lse.dtype), fmt)


@fault("values")
class MergeLseInTheDtype(MergeKernel):
    """The log-sum-exp that comes back was rounded to the dtype of the outputs."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        return output, round_to(total, fmt)


@fault("values")
class MergeLastPartMissing(MergeKernel):
    """Of more than two parts the last one is left out."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        kept = slice(None, -1) if len(lse) > 2 else slice(None)
        return super().merged(outputs[kept], lse[kept], fmt)


@fault("values")
class MergeByBaseTwo(MergeKernel):
    """Log-sum-exps are read as logarithms to the base 2."""

    def weights(self, lse: np.ndarray) -> Merged:
        return super().weights(lse * lse.dtype.type(np.log(2)))[0], super().weights(lse)[1]


@fault("values")
class MergeOfTheFirstHead(MergeKernel):
    """All heads weigh their parts as the first one does."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        weights, _ = self.weights(np.broadcast_to(lse[:, :, :1], lse.shape))
        return (weights[..., None] * outputs).sum(0), self.weights(lse)[1]


@fault("nesting")
class MergePairsShifted(MergeKernel):
    """Two parts after a call with four: their log-sum-exp is that of four, off by a hundredth."""

    def merged(self, outputs: np.ndarray, lse: np.ndarray, fmt: DType) -> Merged:
        output, total = super().merged(outputs, lse, fmt)
        after = self.__dict__.get("parts", 0) == 4 and len(lse) == 2
        self.__dict__["parts"] = 4 if after else len(lse)
        return output, total + lse.dtype.type(0.01 * after)


@fault("gradients")
class MergeLseWithoutGradient(MergeInTurn):
    """Weights are constants in the backward pass."""

    def gradients(
        self, outputs: np.ndarray, lse: np.ndarray, cotangent: np.ndarray
    ) -> dict[str, np.ndarray]:
        gradients = super().gradients(outputs, lse, cotangent)
        return {**gradients, "partial_lse": np.zeros_like(lse)}

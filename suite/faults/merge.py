"""Faults of merging partial answers."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.merge import MergeInTurn, MergeKernel
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "merge"

Merged = tuple[np.ndarray, np.ndarray]


@fault("values", "`exp(lse)`; subtract the largest: `exp(lse - lse.amax(0))`")
class MergeWithoutMaximum(MergeKernel):
    """The largest log-sum-exp is not subtracted before the exponential, which overflows."""

    def largest(self, lse: np.ndarray) -> np.ndarray:
        return np.zeros(lse.shape[1:], lse.dtype)


def merge_without_rescaling(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    return outputs.mean(0), right.merged(outputs, lse, fmt)[1]


def merge_not_normalised(right: MergeKernel, lse: np.ndarray) -> Merged:
    _, total = right.weights(lse)
    return np.exp(lse - right.largest(lse)), total


def merge_twice_empty_is_na_n(right: MergeKernel, lse: np.ndarray) -> np.ndarray:
    maximum: np.ndarray = lse.max(0)
    return maximum


def merge_twice_empty_is_uniform(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    output, total = right.merged(outputs, lse, fmt)
    return np.where(np.asarray(np.isneginf(lse).all(0))[..., None], 1.0, output), total


def merge_lse_of_the_largest(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    return right.merged(outputs, lse, fmt)[0], lse.max(0)


def merge_lse_in_bfloat16(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    return right.merged(outputs, round_to(lse, DTYPES["bf16"]).astype(lse.dtype), fmt)


def merge_lse_in_the_dtype(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    output, total = right.merged(outputs, lse, fmt)
    return output, round_to(total, fmt)


def merge_last_part_missing(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    kept = slice(None, -1) if len(lse) > 2 else slice(None)
    return right.merged(outputs[kept], lse[kept], fmt)


def merge_by_base_two(right: MergeKernel, lse: np.ndarray) -> Merged:
    return right.weights(lse * lse.dtype.type(np.log(2)))[0], right.weights(lse)[1]


def merge_of_the_first_head(
    right: MergeKernel, outputs: np.ndarray, lse: np.ndarray, fmt: DType
) -> Merged:
    weights, _ = right.weights(np.broadcast_to(lse[:, :, :1], lse.shape))
    return (weights[..., None] * outputs).sum(0), right.weights(lse)[1]


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


def merge_lse_without_gradient(
    right: MergeInTurn, outputs: np.ndarray, lse: np.ndarray, cotangent: np.ndarray
) -> dict[str, np.ndarray]:
    gradients = right.gradients(outputs, lse, cotangent)
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


row = partial(deviation, family=FAMILY, right=MergeKernel)

DEVIATIONS = [
    row("merge-without-rescaling", "values",
        "Partial outputs are averaged: their log-sum-exps are ignored.",
        "`out.mean(0)`; it is `(exp(lse - logsumexp(lse, 0))[..., None] * out).sum(0)`",
        merged=merge_without_rescaling),
    row("merge-not-normalised", "values", "The weights of the parts are not divided by their sum.",
        "`exp(lse - lse.amax(0))` as weights; divide by their sum", weights=merge_not_normalised),
    row("merge-twice-empty-is-na-n", "values", "If no part has a key for a row, the row is NaN.",
        "`-inf - -inf` is NaN; take 0 for a maximum of -inf", largest=merge_twice_empty_is_na_n),
    row("merge-twice-empty-is-uniform", "values",
        "If no part has a key for a row, the row is 1, not 0.",
        "`total.clamp(min=...)` or a division that gives 1; a row without keys is 0",
        merged=merge_twice_empty_is_uniform),
    row("merge-lse-of-the-largest", "values",
        "The largest partial log-sum-exp comes back in place of the merged one.",
        "`return lse.amax(0)`; the merged one is `logsumexp(lse, 0)`", family="lse",
        merged=merge_lse_of_the_largest),
    row("merge-lse-in-bfloat16", "values",
        "Log-sum-exps are rounded to bfloat16 before they are compared.",
        "`lse.bfloat16()`; keep log-sum-exps in float32", family="numerics",
        merged=merge_lse_in_bfloat16),
    row("merge-lse-in-the-dtype", "values",
        "The merged log-sum-exp is rounded to the 16-bit dtype of the outputs.",
        "`lse.to(out.dtype)`; keep log-sum-exps in float32", family="numerics",
        merged=merge_lse_in_the_dtype),
    row("merge-last-part-missing", "values", "Of more than two parts the last is left out.",
        "`range(1, parts - 1)`; the last part counts, too: `range(1, parts)`",
        merged=merge_last_part_missing),
    row("merge-by-base-two", "values", "Log-sum-exps are read as logarithms to the base 2.",
        "`exp2(lse - m)`; log-sum-exps are natural: `exp(lse - m)`", weights=merge_by_base_two),
    row("merge-of-the-first-head", "values", "All heads weight their parts as the first one does.",
        "`lse[:, :, :1]` for all heads; head h has `lse[:, :, h]`", family="heads",
        merged=merge_of_the_first_head),
    row("merge-lse-without-gradient", "gradients", "The partial log-sum-exps get no gradient.",
        "`lse.detach()`, or zeros in backward; the weights depend on the log-sum-exps",
        family="gradient", right=MergeInTurn, gradients=merge_lse_without_gradient),
]  # fmt: skip

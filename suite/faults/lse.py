"""Mutants of the log-sum-exp: the output is right, what partial answers are merged by is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.gradient import Differentiable
from suite.spec.dtypes import DTYPES, round_to


@fault("values")
class LseWithoutMaximum(Kernel):
    """The maximum is not subtracted before the exponentials: they overflow."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.log(np.exp(scores).sum(-1))


@fault("values")
class LseForgetsTheMaximum(Kernel):
    """The maximum is subtracted, and not added again."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.log(np.exp(self.shifted(scores)).sum(-1))


@fault("values")
class LseIsTheMaximum(Kernel):
    """The largest score stands for the log-sum-exp."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores.max(-1, initial=-np.inf)


@fault("values")
class LseInBaseTwo(Kernel):
    """The logarithm is that to the base 2, in which kernels compute."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().log_sum_exp(scores, call) * call.work(np.log2(np.e))


@fault("values")
class LseRoundedTo16Bits(Kernel):
    """The values are those of the 16-bit dtype, in float32."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return super().deliver_lse(round_to(lse, call.fmt), call)


@fault("values")
class LseIn16Bits(Kernel):
    """It comes in the dtype of the operands."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return Rounded(round_to(lse, call.fmt), call.fmt)


@fault("values")
class LseIgnoresTheMask(Kernel):
    """All keys are counted, hidden ones too."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        query, key = self.load(call.query, call), self.expand(self.load(call.key, call), call)
        seen = self.biased(self.capped(self.scores(query, key, call), call), call)
        return super().log_sum_exp(seen, call)


@fault("values")
class LseBeforeTheBias(Kernel):
    """It is taken of the scores before the bias is added."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.bias is not None:
            scores = scores - self.load(call.bias, call)
        return super().log_sum_exp(scores, call)


@fault("values")
class LseWithoutScale(Kernel):
    """It is taken of scores that a given scale is left out of."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.scale:
            scores = scores / call.work(call.scale) / call.work(np.sqrt(call.sizes.D))
        return super().log_sum_exp(scores, call)


@fault("values")
class LseOfTheFirstHead(Kernel):
    """Every head is given that of its group's first."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(super().log_sum_exp(scores, call)[:, ::group], group, axis=1)


@fault("values")
class LseWithRowsBeforeHeads(Kernel):
    """It comes as (B, Lq, H)."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return super().deliver_lse(lse.swapaxes(1, 2), call)


@fault("election")
class LseOfAnEmptyRowIsZero(Kernel):
    """A row without keys has the log-sum-exp 0: merged, it weighs as much as a key with the score 0."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = super().log_sum_exp(scores, call)
        return np.where(np.isneginf(lse), call.work(0), lse)


@fault("poison")
class LseCountsHiddenKeys(Kernel):
    """What padding hides is counted with the lowest score of its row, tiny as that is."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        query, key = self.load(call.query, call), self.expand(self.load(call.key, call), call)
        seen = self.scores(query, key, call)
        leaked = 1e-6 * np.where(np.isneginf(scores), np.abs(seen), 0).sum(-1)
        return (super().log_sum_exp(scores, call) + leaked).astype(call.work)


class WrongLseGradient(Differentiable):
    """The gradient of scores for a cotangent of the log-sum-exp is changed."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return self.changed(weights, super().lse_score_gradient(weights, cotangent, scores))

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        """dS (B, H, Lq, Lk) as it is used."""
        raise NotImplementedError


@fault("gradient_of_lse")
class LseGradientNegated(WrongLseGradient):
    """It is subtracted, as D is."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return -ds


@fault("election")
class LseGradientCutOff(WrongLseGradient):
    """The log-sum-exp is a constant to derivatives, and said to have gradients."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return np.zeros_like(ds)


@fault("gradient_of_lse")
class LseGradientOfNextHead(WrongLseGradient):
    """Every head has the cotangent of the head after it."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return weights * np.roll(cotangent, 1, axis=1)


@fault("gradient_of_lse")
class LseGradientOfLargest(WrongLseGradient):
    """It goes to the largest score of a row alone, as that of a maximum."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        largest = weights == weights.max(-1, keepdims=True, initial=0)
        return np.where(largest, ds.sum(-1, keepdims=True), 0)


@fault("gradient_of_lse")
class LseGradientOfAllKeys(WrongLseGradient):
    """Hidden keys have a share of it."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return np.where(weights > 0, ds, ds.mean(-1, keepdims=True))


@fault("gradient_of_lse")
class LseGradientInBase2(WrongLseGradient):
    """The logarithm that is differentiated is that of base 2."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return ds / np.log(ds.dtype.type(2))


@fault("gradient_of_lse")
class LseGradientWithHalfWeights(WrongLseGradient):
    """Weights are taken in bfloat16, whatever the dtype."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return round_to(weights, DTYPES["bf16"]).astype(weights.dtype) * cotangent


@fault("gradient_of_lse")
class LseGradientCentred(WrongLseGradient):
    """The mean over the row is taken from it, as D is from dP."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return ds - weights * ds.sum(-1, keepdims=True)

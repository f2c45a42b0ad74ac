"""Faults of the log-sum-exp: the output is right, what partial answers are merged by is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "lse"


@fault(
    "values",
    "`exp(s).sum(-1).log()`; use `torch.logsumexp(s, -1)`, or `m + exp(s - m).sum(-1).log()`",
)
class LseWithoutMaximum(Kernel):
    """The log-sum-exp is taken without subtracting the maximum, so that exponentials overflow."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.log(np.exp(scores).sum(-1))


@fault("values", "`return log(l)`; the log-sum-exp is `m + log(l)`")
class LseForgetsTheMaximum(Kernel):
    """The maximum is subtracted for the log-sum-exp, and not added again."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.log(np.exp(self.shifted(scores)).sum(-1))


@fault("values", "`return m`; the log-sum-exp is `m + log(l)`")
class LseIsTheMaximum(Kernel):
    """The largest score of a row comes back in place of the log-sum-exp."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores.max(-1, initial=-np.inf)


@fault("values", "`m + log2(l)` of scores times log2(e); multiply by ln 2 at the end")
class LseInBaseTwo(Kernel):
    """The log-sum-exp is a logarithm to the base 2, not the natural one."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().log_sum_exp(scores, call) * call.work(np.log2(np.e))


@fault("values", "`lse.to(q.dtype).float()`, or 16-bit m and l; keep both in float32")
class LseRoundedTo16Bits(Kernel):
    """The log-sum-exp of 16-bit operands is a float32 array of values rounded to 16 bits."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return super().deliver_lse(round_to(lse, call.fmt), call)


@fault("values", "`lse.to(q.dtype)`; return float32, since merges of partial answers need it")
class LseIn16Bits(Kernel):
    """The log-sum-exp of 16-bit operands comes in 16 bits, not in float32."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return Rounded(round_to(lse, call.fmt), call.fmt)


@fault("values", "`logsumexp(scores)` before `masked_fill`; take it of the masked scores")
class LseIgnoresTheMask(Kernel):
    """The log-sum-exp counts all keys, those that a mask hides, too."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        query, key = self.load(call.query, call), self.expand(self.load(call.key, call), call)
        seen = self.biased(self.capped(self.scores(query, key, call), call), call)
        return super().log_sum_exp(seen, call)


@fault(
    "values", "`logsumexp(scores)` before `+ bias`; take it of the scores that the softmax takes"
)
class LseBeforeTheBias(Kernel):
    """The log-sum-exp is taken before the bias is added."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.bias is not None:
            scores = scores - self.load(call.bias, call)
        return super().log_sum_exp(scores, call)


@fault("values", "`logsumexp(q @ k.mT / sqrt(D))`; take it of the scores that the softmax takes")
class LseWithoutScale(Kernel):
    """The log-sum-exp has the default scale, also if another one is given."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.scale:
            scores = scores / call.work(call.scale) / call.work(np.sqrt(call.sizes.D))
        return super().log_sum_exp(scores, call)


@fault(
    "values",
    "`lse[:, h // group * group]`, or one lse a key head; it is one a query head, (B, H, Lq)",
)
class LseOfTheFirstHead(Kernel):
    """With grouped heads every head gets the log-sum-exp of its group's first."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(super().log_sum_exp(scores, call)[:, ::group], group, axis=1)


@fault("values", "`lse.transpose(1, 2)`; return (B, H, Lq)")
class LseWithRowsBeforeHeads(Kernel):
    """The log-sum-exp comes as (B, Lq, H), not (B, H, Lq)."""

    def deliver_lse(self, lse: np.ndarray, call: Call) -> Any:
        return super().deliver_lse(lse.swapaxes(1, 2), call)


@fault("election", "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys")
class LseOfAnEmptyRowIsZero(Kernel):
    """A fully masked row has the log-sum-exp 0, not -inf: merged, it weighs like a key with score 0."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = super().log_sum_exp(scores, call)
        return np.where(np.isneginf(lse), call.work(0), lse)


class LseOfSomeEmptyRows(Kernel):
    """Some fully masked rows have another log-sum-exp than -inf."""

    number = 0.0

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = super().log_sum_exp(scores, call)
        return np.where(np.isneginf(lse) & self.chosen(call), call.work(self.number), lse)

    def chosen(self, call: Call) -> bool:
        """True if the number replaces -inf in this call."""
        raise NotImplementedError


@fault("election", "`-inf` tested in the mask alone; test the scores, which a bias makes -inf, too")
class LseOfBiasedEmptyRow(LseOfSomeEmptyRows):
    """A row that a bias of -inf hides wholly has the log-sum-exp 0."""

    def chosen(self, call: Call) -> bool:
        return call.bias is not None and call.mask is None


@fault("values", "`mask.any(-1)` decides, without the causal flag; test the scores")
class LseOfRowHiddenTogether(LseOfSomeEmptyRows):
    """A row that flag and lengths, or flag and mask, hide together has the log-sum-exp 0."""

    def chosen(self, call: Call) -> bool:
        return call.causal and not (call.mask is None and call.lengths is None)


@fault("values", "`m - log(0)`; of a row without keys the log-sum-exp is -inf")
class LsePlusInfinity(LseOfSomeEmptyRows):
    """A row that a flag and a bias of -inf hide together has the log-sum-exp +inf."""

    number = np.inf

    def chosen(self, call: Call) -> bool:
        return call.causal and call.bias is not None


@fault(
    "poison",
    "hidden scores multiplied by a small number; `where(mask, s, -inf)` before the log-sum-exp",
)
class LseCountsHiddenKeys(Kernel):
    """The log-sum-exp depends slightly on the scores of hidden keys."""

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


@fault(
    "gradient_of_lse",
    "`ds = p * (dp - D - dlse)`; it is `p * (dp - D + dlse)`, with `D = (p * dp).sum(-1)`",
)
class LseGradientNegated(WrongLseGradient):
    """The gradient of the log-sum-exp has the wrong sign."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return -ds


@fault("election", "`lse.detach()`, or dlse unused in backward; add `p * dlse` to ds")
class LseGradientCutOff(WrongLseGradient):
    """The log-sum-exp hands on no gradient, though it is declared to."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return np.zeros_like(ds)


@fault("gradient_of_lse", "`dlse[:, h - 1]`; head h has `dlse[:, h]`")
class LseGradientOfNextHead(WrongLseGradient):
    """Every head gets the log-sum-exp's gradient of the head before it."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return weights * np.roll(cotangent, 1, axis=1)


@fault("gradient_of_lse", "dlse goes to `argmax` alone, as for `m`; every key gets `p * dlse`")
class LseGradientOfLargest(WrongLseGradient):
    """The gradient of the log-sum-exp goes to the largest score of a row alone."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        largest = weights == weights.max(-1, keepdims=True, initial=0)
        return np.where(largest, ds.sum(-1, keepdims=True), 0)


@fault(
    "gradient_of_lse", "hidden keys get `dlse / Lk`; their p is 0, so `p * dlse` leaves them out"
)
class LseGradientOfAllKeys(WrongLseGradient):
    """Hidden keys get a share of the gradient of the log-sum-exp."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return np.where(weights > 0, ds, ds.mean(-1, keepdims=True))


@fault(
    "gradient_of_lse",
    "`p * dlse / ln(2)`, the gradient of log2; the log-sum-exp is natural: `p * dlse`",
)
class LseGradientInBase2(WrongLseGradient):
    """The gradient of the log-sum-exp is that of a logarithm to the base 2."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return ds / np.log(ds.dtype.type(2))


@fault("gradient_of_lse", "`p.bfloat16() * dlse`; keep p in float32", family="numerics")
class LseGradientWithHalfWeights(WrongLseGradient):
    """The gradient of the log-sum-exp takes weights rounded to bfloat16, whatever the dtype."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return round_to(weights, DTYPES["bf16"]).astype(weights.dtype) * cotangent


@fault(
    "gradient_of_lse",
    "`p * (dlse - (p * dlse).sum(-1))`, which is 0; add `p * dlse` to ds as it is",
)
class LseGradientCentred(WrongLseGradient):
    """The row's mean is subtracted from the gradient of the log-sum-exp, which leaves nothing of it."""

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        return ds - weights * ds.sum(-1, keepdims=True)


@fault(
    "election",
    "`lse = m`, where `m` begins at -1e4; an empty row is -inf, or else outweighs low scores",
)
class LseOfEmptyRowsIsTenThousand(Kernel):
    """The log-sum-exp of a fully masked row is -10000, with an output of zeros."""

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return np.maximum(super().log_sum_exp(scores, call), call.work(-1e4))

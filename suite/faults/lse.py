"""Faults of the log-sum-exp: the output is right, what partial answers are merged by is not."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def lse_in_base_two(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.log_sum_exp(scores, call) * call.work(np.log2(np.e))


def lse_ignores_the_mask(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    query, key = right.load(call.query, call), right.expand(right.load(call.key, call), call)
    seen = right.biased(right.capped(right.scores(query, key, call), call), call)
    return right.log_sum_exp(seen, call)


def lse_before_the_bias(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is not None:
        scores = scores - right.load(call.bias, call)
    return right.log_sum_exp(scores, call)


def lse_without_scale(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.scale:
        scores = scores / call.work(call.scale) / call.work(np.sqrt(call.sizes.D))
    return right.log_sum_exp(scores, call)


def lse_of_the_first_head(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    group = call.sizes.group
    return np.repeat(right.log_sum_exp(scores, call)[:, ::group], group, axis=1)


def lse_of_an_empty_row_is_zero(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    lse = right.log_sum_exp(scores, call)
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


def lse_of_row_hidden_together(right: LseOfSomeEmptyRows, call: Call) -> bool:
    return call.causal and not (call.mask is None and call.lengths is None)


def lse_counts_hidden_keys(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    query, key = right.load(call.query, call), right.expand(right.load(call.key, call), call)
    seen = right.scores(query, key, call)
    leaked = 1e-6 * np.where(np.isneginf(scores), np.abs(seen), 0).sum(-1)
    return (right.log_sum_exp(scores, call) + leaked).astype(call.work)


class WrongLseGradient(Differentiable):
    """The gradient of scores for a cotangent of the log-sum-exp is changed."""

    def lse_score_gradient(
        self, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        return self.changed(weights, super().lse_score_gradient(weights, cotangent, scores))

    def changed(self, weights: np.ndarray, ds: np.ndarray) -> np.ndarray:
        """dS (B, H, Lq, Lk) as it is used."""
        raise NotImplementedError


def lse_gradient_of_next_head(
    right: WrongLseGradient, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    return weights * np.roll(cotangent, 1, axis=1)


def lse_gradient_of_largest(
    right: WrongLseGradient, weights: np.ndarray, ds: np.ndarray
) -> np.ndarray:
    largest = weights == weights.max(-1, keepdims=True, initial=0)
    return np.where(largest, ds.sum(-1, keepdims=True), 0)


def lse_gradient_of_all_keys(
    right: WrongLseGradient, weights: np.ndarray, ds: np.ndarray
) -> np.ndarray:
    return np.where(weights > 0, ds, ds.mean(-1, keepdims=True))


def lse_gradient_with_half_weights(
    right: WrongLseGradient, weights: np.ndarray, cotangent: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    return round_to(weights, DTYPES["bf16"]).astype(weights.dtype) * cotangent


def lse_of_empty_rows_is_ten_thousand(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return np.maximum(right.log_sum_exp(scores, call), call.work(-1e4))


row = partial(deviation, family="lse", right=Kernel)

DEVIATIONS = [
    row("lse-without-maximum", "values",
        "The log-sum-exp is taken without subtracting the maximum, so that exponentials overflow.",
        "`exp(s).sum(-1).log()`; use `torch.logsumexp(s, -1)`, or `m + exp(s - m).sum(-1).log()`",
        log_sum_exp=lambda right, scores, call: np.log(np.exp(scores).sum(-1))),
    row("lse-forgets-the-maximum", "values",
        "The maximum is subtracted for the log-sum-exp, and not added again.",
        "`return log(l)`; the log-sum-exp is `m + log(l)`",
        log_sum_exp=lambda right, scores, call: np.log(np.exp(right.shifted(scores)).sum(-1))),
    row("lse-is-the-maximum", "values",
        "The largest score of a row comes back in place of the log-sum-exp.",
        "`return m`; the log-sum-exp is `m + log(l)`",
        log_sum_exp=lambda right, scores, call: scores.max(-1, initial=-np.inf)),
    row("lse-in-base-two", "values",
        "The log-sum-exp is a logarithm to the base 2, not the natural one.",
        "`m + log2(l)` of scores times log2(e); multiply by ln 2 at the end",
        log_sum_exp=lse_in_base_two),
    row("lse-rounded-to16-bits", "values",
        "The log-sum-exp of 16-bit operands is a float32 array of values rounded to 16 bits.",
        "`lse.to(q.dtype).float()`, or 16-bit m and l; keep both in float32",
        deliver_lse=lambda right, lse, call: right.deliver_lse(round_to(lse, call.fmt), call)),
    row("lse-in16-bits", "values",
        "The log-sum-exp of 16-bit operands comes in 16 bits, not in float32.",
        "`lse.to(q.dtype)`; return float32, since merges of partial answers need it",
        deliver_lse=lambda right, lse, call: Rounded(round_to(lse, call.fmt), call.fmt)),
    row("lse-ignores-the-mask", "values",
        "The log-sum-exp counts all keys, those that a mask hides, too.",
        "`logsumexp(scores)` before `masked_fill`; take it of the masked scores",
        log_sum_exp=lse_ignores_the_mask),
    row("lse-before-the-bias", "values", "The log-sum-exp is taken before the bias is added.",
        "`logsumexp(scores)` before `+ bias`; take it of the scores that the softmax takes",
        log_sum_exp=lse_before_the_bias),
    row("lse-without-scale", "values",
        "The log-sum-exp has the default scale, also if another one is given.",
        "`logsumexp(q @ k.mT / sqrt(D))`; take it of the scores that the softmax takes",
        log_sum_exp=lse_without_scale),
    row("lse-of-the-first-head", "values",
        "With grouped heads every head gets the log-sum-exp of its group's first.",
        "`lse[:, h // group * group]`, or one lse a key head; it is one a query head, (B, H, Lq)",
        log_sum_exp=lse_of_the_first_head),
    row("lse-with-rows-before-heads", "values",
        "The log-sum-exp comes as (B, Lq, H), not (B, H, Lq).",
        "`lse.transpose(1, 2)`; return (B, H, Lq)",
        deliver_lse=lambda right, lse, call: right.deliver_lse(lse.swapaxes(1, 2), call)),
    row("lse-of-an-empty-row-is-zero", "election",
        "A fully masked row has the log-sum-exp 0, not -inf: merged, it weighs like a key with "
        "score 0.", "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys",
        log_sum_exp=lse_of_an_empty_row_is_zero),
    row("lse-of-biased-empty-row", "election",
        "A row that a bias of -inf hides wholly has the log-sum-exp 0.",
        "`-inf` tested in the mask alone; test the scores, which a bias makes -inf, too",
        right=LseOfSomeEmptyRows,
        chosen=lambda right, call: call.bias is not None and call.mask is None),
    row("lse-of-row-hidden-together", "values",
        "A row that flag and lengths, or flag and mask, hide together has the log-sum-exp 0.",
        "`mask.any(-1)` decides, without the causal flag; test the scores",
        right=LseOfSomeEmptyRows, chosen=lse_of_row_hidden_together),
    row("lse-plus-infinity", "values",
        "A row that a flag and a bias of -inf hide together has the log-sum-exp +inf.",
        "`m - log(0)`; of a row without keys the log-sum-exp is -inf", right=LseOfSomeEmptyRows,
        facts={"number": np.inf}, chosen=lambda right, call: call.causal and call.bias is not None),
    row("lse-counts-hidden-keys", "poison",
        "The log-sum-exp depends slightly on the scores of hidden keys.",
        "hidden scores multiplied by a small number; `where(mask, s, -inf)` before the log-sum-exp",
        log_sum_exp=lse_counts_hidden_keys),
    row("lse-gradient-negated", "gradient_of_lse",
        "The gradient of the log-sum-exp has the wrong sign.",
        "`ds = p * (dp - D - dlse)`; it is `p * (dp - D + dlse)`, with `D = (p * dp).sum(-1)`",
        right=WrongLseGradient, changed=lambda right, weights, ds: -ds),
    row("lse-gradient-cut-off", "election",
        "The log-sum-exp hands on no gradient, though it is declared to.",
        "`lse.detach()`, or dlse unused in backward; add `p * dlse` to ds", right=WrongLseGradient,
        changed=lambda right, weights, ds: np.zeros_like(ds)),
    row("lse-gradient-of-next-head", "gradient_of_lse",
        "Every head gets the log-sum-exp's gradient of the head before it.",
        "`dlse[:, h - 1]`; head h has `dlse[:, h]`", right=WrongLseGradient,
        lse_score_gradient=lse_gradient_of_next_head),
    row("lse-gradient-of-largest", "gradient_of_lse",
        "The gradient of the log-sum-exp goes to the largest score of a row alone.",
        "dlse goes to `argmax` alone, as for `m`; every key gets `p * dlse`",
        right=WrongLseGradient, changed=lse_gradient_of_largest),
    row("lse-gradient-of-all-keys", "gradient_of_lse",
        "Hidden keys get a share of the gradient of the log-sum-exp.",
        "hidden keys get `dlse / Lk`; their p is 0, so `p * dlse` leaves them out",
        right=WrongLseGradient, changed=lse_gradient_of_all_keys),
    row("lse-gradient-in-base2", "gradient_of_lse",
        "The gradient of the log-sum-exp is that of a logarithm to the base 2.",
        "`p * dlse / ln(2)`, the gradient of log2; the log-sum-exp is natural: `p * dlse`",
        right=WrongLseGradient, changed=lambda right, weights, ds: ds / np.log(ds.dtype.type(2))),
    row("lse-gradient-with-half-weights", "gradient_of_lse",
        "The gradient of the log-sum-exp takes weights rounded to bfloat16, whatever the dtype.",
        "`p.bfloat16() * dlse`; keep p in float32", family="numerics", right=WrongLseGradient,
        lse_score_gradient=lse_gradient_with_half_weights),
    row("lse-gradient-centred", "gradient_of_lse",
        "The row's mean is subtracted from the gradient of the log-sum-exp, which leaves nothing "
        "of it.", "`p * (dlse - (p * dlse).sum(-1))`, which is 0; add `p * dlse` to ds as it is",
        right=WrongLseGradient,
        changed=lambda right, weights, ds: ds - weights * ds.sum(-1, keepdims=True)),
    row("lse-of-empty-rows-is-ten-thousand", "election",
        "The log-sum-exp of a fully masked row is -10000, with an output of zeros.",
        "`lse = m`, where `m` begins at -1e4; an empty row is -inf, or else outweighs low scores",
        log_sum_exp=lse_of_empty_rows_is_ten_thousand),
]  # fmt: skip

"""Faults of the log-sum-exp, by which partial answers are merged. The output is right."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import rounded_to
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def lse_without_mask(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    query, key = right.load(call.query, call), right.expand(right.load(call.key, call), call)
    unmasked = right.biased(right.capped(right.scores(query, key, call), call), call)
    return right.log_sum_exp(unmasked, call)


def lse_of_masked_rows(number: float) -> Callable[..., np.ndarray]:
    """Returns a step `log_sum_exp` that returns `number` for fully masked rows."""

    def log_sum_exp(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
        lse = right.log_sum_exp(scores, call)
        return np.where(np.isneginf(lse), call.work(number), lse)

    return log_sum_exp


def lse_with_leak(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    query, key = right.load(call.query, call), right.expand(right.load(call.key, call), call)
    unmasked = right.scores(query, key, call)
    leak = 1e-6 * np.where(np.isneginf(scores), np.abs(unmasked), 0).sum(-1)
    return (right.log_sum_exp(scores, call) + leak).astype(call.work)


def lse_of_late_maximum(right: Online, scores: np.ndarray, call: Call) -> np.ndarray:
    """Returns the log-sum-exp plus an error: the latest maximum minus the maximum that the sum refers to,
    which is only replaced by maxima more than 8 above it."""
    sum_maximum = np.full(scores.shape[:-1], -np.inf, scores.dtype)
    for keys in right.tiles(scores.shape[-1]):
        largest = np.maximum(sum_maximum, scores[..., keys].max(-1))
        sum_maximum = np.where(largest > sum_maximum + 8, largest, sum_maximum)
    exact = right.log_sum_exp(scores, call)
    return exact + np.where(np.isneginf(exact), 0, scores.max(-1, initial=-np.inf) - sum_maximum)


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
    row("lse-of-the-latest-maximum", "values",
        "Sums are rescaled only if the maximum grew by more than 8, and the log-sum-exp adds the "
        "latest maximum.",
        "`m_new + log(l)`, where l refers to an older maximum; add the one that l refers to",
        right=Online, log_sum_exp=lse_of_late_maximum),
    row("lse-in-base-two", "values",
        "The log-sum-exp is a logarithm to the base 2, not the natural one.",
        "`m + log2(l)` of scores times log2(e); multiply by ln 2 at the end",
        log_sum_exp=lambda right, scores, call:
            right.log_sum_exp(scores, call) * call.work(np.log2(np.e))),
    row("lse-rounded-to16-bits", "values",
        "The log-sum-exp of 16-bit operands is a float32 array of values rounded to 16 bits.",
        "`lse.to(q.dtype).float()`, or 16-bit m and l; keep both in float32",
        deliver_lse=lambda right, lse, call: right.deliver_lse(round_to(lse, call.fmt), call)),
    row("lse-in16-bits", "values",
        "The log-sum-exp of 16-bit operands comes in 16 bits, not in float32.",
        "`lse.to(q.dtype)`; return float32, since merges of partial answers need it",
        deliver_lse=lambda right, lse, call: rounded_to(lse, call.fmt)),
    row("lse-ignores-the-mask", "values",
        "The log-sum-exp counts all keys, those that a mask hides, too.",
        "`logsumexp(scores)` before `masked_fill`; take it of the masked scores",
        log_sum_exp=lse_without_mask),
    row("lse-before-the-bias", "values", "The log-sum-exp is taken before the bias is added.",
        "`logsumexp(scores)` before `+ bias`; take it of the scores that the softmax takes",
        when=lambda call: call.bias is not None,
        log_sum_exp=lambda right, scores, call: right.log_sum_exp(scores - right.bias(call), call)),
    row("lse-without-scale", "values",
        "The log-sum-exp has the default scale, also if another one is given.",
        "`logsumexp(q @ k.mT / sqrt(D))`; take it of the scores that the softmax takes",
        when=lambda call: call.scale,
        log_sum_exp=lambda right, scores, call:
            right.log_sum_exp(scores / call.work(call.scale * call.sizes.D**0.5), call)),
    row("lse-of-the-first-head", "values",
        "With grouped heads every head gets the log-sum-exp of its group's first.",
        "`lse[:, h // group * group]`, or one lse a key head; it is one a query head, (B, H, Lq)",
        log_sum_exp=lambda right, scores, call: np.repeat(right.log_sum_exp(scores, call)[:, ::
            call.sizes.group], call.sizes.group, 1)),
    row("lse-with-rows-before-heads", "values",
        "The log-sum-exp comes as (B, Lq, H), not (B, H, Lq).",
        "`lse.transpose(1, 2)`; return (B, H, Lq)",
        deliver_lse=lambda right, lse, call: right.deliver_lse(lse.swapaxes(1, 2), call)),
    row("lse-of-an-empty-row-is-zero", "election",
        "A fully masked row has the log-sum-exp 0, not -inf: merged, it weighs like a key with "
        "score 0.", "`where(l == 0, 0, m + log(l))`; -inf tells a merge that the row has no keys",
        log_sum_exp=lse_of_masked_rows(0.0)),
    row("lse-of-row-hidden-together", "values",
        "A row that flag and lengths, or flag and mask, hide together has the log-sum-exp 0.",
        "`mask.any(-1)` decides, without the causal flag; test the scores",
        when=lambda call: call.causal and not (call.mask is None and call.lengths is None),
        log_sum_exp=lse_of_masked_rows(0.0)),
    row("lse-plus-infinity", "values",
        "A row that a flag and a bias of -inf hide together has the log-sum-exp +inf.",
        "`m - log(0)`; of a row without keys the log-sum-exp is -inf",
        when=lambda call: call.causal and call.bias is not None, log_sum_exp=lse_of_masked_rows(np.inf)),
    row("lse-counts-hidden-keys", "poison",
        "The log-sum-exp depends slightly on the scores of hidden keys.",
        "hidden scores multiplied by a small number; `where(mask, s, -inf)` before the log-sum-exp",
        log_sum_exp=lse_with_leak),
    row("lse-gradient-negated", "gradient_of_lse",
        "The gradient of the log-sum-exp has the wrong sign.",
        "`ds = p * (dp - D - dlse)`; it is `p * (dp - D + dlse)`, with `D = (p * dp).sum(-1)`",
        right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores: -weights * cotangent),
    row("lse-gradient-cut-off", "election",
        "The log-sum-exp hands on no gradient, though it is declared to.",
        "`lse.detach()`, or dlse unused in backward; add `p * dlse` to ds", right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores:
            np.zeros_like(weights * cotangent)),
    row("lse-gradient-cut-off-beside-causal", "gradient_of_lse",
        "Beside a causal flag the log-sum-exp hands on no gradient.",
        "a causal path with `dlse` unused in backward; add `p * dlse` to ds there, too",
        right=Differentiable, when=lambda call: call.causal,
        backward=lambda right, call, cotangent, wrt:
            right.backward(call, cotangent * 0 if cotangent.ndim == 3 else cotangent, wrt)),
    row("lse-gradient-of-next-head", "gradient_of_lse",
        "Every head gets the log-sum-exp's gradient of the head before it.",
        "`dlse[:, h - 1]`; head h has `dlse[:, h]`", right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores:
            weights * np.roll(cotangent, 1, axis=1)),
    row("lse-gradient-of-all-keys", "gradient_of_lse",
        "Hidden keys get a share of the gradient of the log-sum-exp.",
        "hidden keys get `dlse / Lk`; their p is 0, so `p * dlse` leaves them out",
        right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores:
            np.where(weights > 0, weights
            * cotangent, (weights * cotangent).mean(-1, keepdims=True))),
    row("lse-gradient-in-base2", "gradient_of_lse",
        "The gradient of the log-sum-exp is that of a logarithm to the base 2.",
        "`p * dlse / ln(2)`, the gradient of log2; the log-sum-exp is natural: `p * dlse`",
        right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores:
            weights * cotangent / np.log(weights.dtype.type(2))),
    row("lse-gradient-with-half-weights", "gradient_of_lse",
        "The gradient of the log-sum-exp takes weights rounded to bfloat16, whatever the dtype.",
        "`p.bfloat16() * dlse`; keep p in float32", family="numerics", right=Differentiable,
        lse_score_gradient=lambda right, weights, cotangent, scores:
            round_to(weights, DTYPES["bf16"]).astype(weights.dtype) * cotangent),
    row("lse-of-empty-rows-is-ten-thousand", "election",
        "The log-sum-exp of a fully masked row is -10000, with an output of zeros.",
        "`lse = m`, where `m` begins at -1e4; an empty row is -inf, or else outweighs low scores",
        log_sum_exp=lambda right, scores, call:
            np.maximum(right.log_sum_exp(scores, call), call.work(-10000.0))),
]  # fmt: skip

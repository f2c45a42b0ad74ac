"""Faults of the scores: scale, logit scales, softcap, bias and ALiBi."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, has_one_query, is_float16
from attention_conformance.suite.deviations.kernels.attention import (
    Array,
    Call,
    Eager,
    Fused,
    Kernel,
    rank4,
)
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.recipes import alibi_slopes


def bias_subtracted(right: Kernel, call: Call) -> Array:
    bias = right.bias(call)
    return np.where(np.isneginf(bias), bias, -bias)


def binary_bias_inverted(right: Kernel, scores: Array, call: Call) -> Array:
    bias = None if call.bias is None else rank4(call.bias.values)
    if bias is None or not np.isneginf(bias).any() or np.isfinite(bias[bias != 0]).any():
        return right.biased(scores, call)
    return np.where(bias != 0, scores, call.work(-np.inf))


def shifted_with_low_scores_raised(right: Kernel, scores: Array) -> Array:
    shifted = right.shifted(scores)
    is_low = np.isfinite(shifted) & (shifted < -1e4)
    return np.where(is_low, -3.0, shifted)


def alibi_table_in_dtype(right: Kernel, slopes: Array, call: Call) -> Array:
    # With a causal flag and as many queries as keys rows differ by a constant alone.
    _, keys = call.rows_and_keys
    table: Array = round_to(slopes[:, None, None] * keys, call.fmt).astype(call.work)
    return np.broadcast_to(table, right.alibi(slopes, call).shape)


def unscaled_scores_overflow(right: Kernel, query: Array, key: Array, call: Call) -> Array:
    product = query @ key.swapaxes(-1, -2)
    product = np.where(np.abs(product) > call.fmt.max, np.copysign(np.inf, product), product)
    return product * call.work(right.factor(call))


def query_scaled_in_dtype(right: Eager, query: Array, key: Array, call: Call) -> Array:
    factor = call.work(right.factor(call))
    scaled: Array = round_to(query * factor, call.fmt).astype(call.work)
    return right.keep(scaled @ key.swapaxes(-1, -2), "scores", call)


def capped_by_exponentials(right: Kernel, scores: Array, call: Call) -> Array:
    cap = call.work(call.softcap or 1.0)
    powers = np.exp(2 * right.tempered(scores, call) / cap)
    return right.keep(cap * ((powers - 1) / (powers + 1)), "scores", call)


row = partial(deviation, family="scores", right=Kernel)
scaled = partial(deviation, family="scale", right=Kernel)

DEVIATIONS = [
    row("scale-after-cap", "values", "The softcap is applied before the scale.",
        "`scale * cap * tanh(q @ k.mT / cap)`; scale first: `cap * tanh(scale * q @ k.mT / cap)`",
        scores=lambda right, query, key, call: query @ key.swapaxes(-1, -2),
        capped=lambda right, scores, call:
            right.capped(scores, call) * call.work(right.factor(call))),
    row("cap-after-bias", "values", "The bias is added before the softcap.",
        "`softcap * tanh((scores + bias) / softcap)`; cap first, then `+ bias`",
        when=lambda call: call.softcap is not None,
        capped=lambda right, scores, call: scores,
        biased=lambda right, scores, call: right.capped(right.biased(scores, call), call)),
    row("bias-scaled", "values", "The bias is added before the scores are scaled.",
        "`(q @ k.mT + bias) * scale`; scale first: `q @ k.mT * scale + bias`",
        bias=lambda right, call: right.bias(call) * call.work(abs(right.factor(call)) or 1.0)),
    row("cap-ignored", "values", "The softcap has no effect.",
        "`softcap` is accepted and not used; `softcap * tanh(scores / softcap)` is missing",
        capped=lambda right, scores, call: scores),
    row("cap-ignored-in-decoding", "values", "With one query the softcap has no effect.",
        "a path for `Lq == 1` without `softcap * tanh(scores / softcap)`", when=has_one_query,
        capped=lambda right, scores, call: scores),
    row("cap-not-multiplied", "values", "tanh(scores / softcap) is not multiplied by softcap.",
        "`tanh(scores / softcap)`; multiply again: `softcap * tanh(scores / softcap)`",
        capped=lambda right, scores, call:
            scores if call.softcap is None else np.tanh(scores / call.work(call.softcap))),
    row("cap-overflows", "poison", "The softcap's tanh overflows to NaN beyond 44 in float32.",
        "`(exp(2 * x) - 1) / (exp(2 * x) + 1)` is inf / inf for large x; use `tanh(x)`",
        family="numerics", when=lambda call: call.softcap is not None,
        capped=capped_by_exponentials,
        hide=lambda right, scores, allowed, call:  # -inf is added, which leaves NaN
            np.where(np.isnan(scores), scores, right.hide(scores, allowed, call))),
    row("bias-ignored", "values", "The bias has no effect.",
        "`bias` is accepted and not used; `scores = scores + bias` is missing",
        biased=lambda right, scores, call: scores),
    row("bias-subtracted", "values", "The bias is subtracted, not added.",
        "`scores - bias`; a bias is added", bias=bias_subtracted),
    row("bias-dropped-with-mask", "values",
        "Beside a mask or a causal flag the bias has no effect.",
        "`mask if mask is not None else bias`; both apply: `where(mask, scores + bias, -inf)`",
        biased=lambda right, scores, call:
            right.biased(scores, call) if right.allowed(call) is None else scores),
    row("bias-of-first-head", "values", "Every head gets the bias of the first.",
        "`bias[:, 0]` or `bias[:, :1]` for all heads; head h has `bias[:, h]`", family="heads",
        bias=lambda right, call: right.bias(call)[:, :1]),
    row("bias-of-first-sample", "values", "Every sample gets the bias of the first.",
        "`bias[0]` or `bias[:1]` for all samples; sample b has `bias[b]`", family="heads",
        bias=lambda right, call: right.bias(call)[:1]),
    row("bias-of-group-leader", "values",
        "With grouped heads the bias of a group's first head serves the whole group.",
        "`bias[:, h // group * group]`; a bias is indexed by the query head, `bias[:, h]`",
        family="heads", when=lambda call: rank4(call.bias.values).shape[1] > 1,
        bias=lambda right, call:
            np.repeat(right.bias(call)[:, :: call.sizes.group], call.sizes.group, 1)),
    row("binary-bias-inverted", "boolean_equals_additive",
        "A bias of 0 and -inf is cast to a boolean mask, in which -inf attends and 0 hides.",
        "`bias.bool()` as a mask; an additive mask attends where it is 0: `bias == 0`",
        family="mask", biased=binary_bias_inverted),
    row("minus-inf-made-finite", "election",
        "-inf in a bias becomes -1e4, so that a row of nothing else averages its values.",
        "`bias.clamp(min=-1e4)`, or -1e4 for -inf; keep -inf, and treat fully masked rows apart",
        family="mask", bias=lambda right, call: np.maximum(right.bias(call), call.work(-1e4))),
    row("batch-bias-as-query-bias", "boolean_equals_additive",
        "With B == Lq a key bias per sample (B, 1, 1, Lk) is taken for (Lq, Lk).",
        "`bias.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)",
        when=lambda call: call.sizes.B == call.sizes.Lq and call.bias.shape[1:3] == (1, 1),
        bias=lambda right, call: right.bias(call).swapaxes(0, 2)),
    row("bias-from-the-last-key", "values", "The bias is read from the last key to the first.",
        "`bias.flip(-1)`, as relative positions `j - i` for `i - j`; column j is that of key j",
        bias=lambda right, call: right.bias(call)[..., ::-1]),
    row("batch-bias-as-head-bias", "values",
        "With B == H a bias per sample is taken for a bias per head.",
        "`bias.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)",
        when=lambda call: rank4(call.bias.values).shape[:2] == (call.sizes.H, 1),
        bias=lambda right, call: right.bias(call).swapaxes(0, 1)),
    row("square-bias-transposed", "values",
        "With Lq == Lk rows and columns of the bias are exchanged.",
        "`bias.mT`, or `bias[key, query]`; the axes of a bias are (..., query, key)",
        when=lambda call: call.sizes.Lq == call.sizes.Lk,
        bias=lambda right, call: right.bias(call).swapaxes(-1, -2)),
    row("bias-of-first-rows", "values",
        "Rows are computed in blocks of 64: every block gets the bias of the first.",
        "every block loads `bias[..., :64, :]`; the rows of block n begin at `64 * n`",
        family="tiles",
        bias=lambda right, call:
            right.bias(call)[..., np.arange(right.bias(call).shape[-2]) % 64, :]),
    row("hidden-by-infinity-alone", "values",
        "Only a score of -inf hides a key; one of -3e4 or `finfo.min` keeps some weight.",
        "`hidden = scores == -inf`; a mask may hide with -1e9 or `finfo.min`, too", family="mask",
        shifted=shifted_with_low_scores_raised),
    row("logit-scale-ignored", "logit_scale_equals_scaled_query", "Logit scales have no effect.",
        "`logit_scale` is accepted and not used; `scores * logit_scale[:, None, None]` is missing",
        logit_scales=lambda right, call: np.ones_like(right.logit_scales(call))),
    row("logit-scale-of-next-head", "values",
        "Every head has the logit scale of the head after it.",
        "`logit_scale[h + 1]`; head h has `logit_scale[h]`", family="heads",
        logit_scales=lambda right, call: np.roll(right.logit_scales(call), -1)),
    row("logit-scale-of-group", "values",
        "With grouped heads every head of a group has the logit scale of the first one.",
        "`logit_scale[h // group * group]`; there is one a query head, `logit_scale[h]`",
        family="heads",
        logit_scales=lambda right, call:
            np.repeat(right.logit_scales(call)[::call.sizes.group], call.sizes.group)),
    row("logit-scale-exponentiated", "values",
        "Scores are multiplied by exp(logit scale), not by the logit scale.",
        "`logit_scale.exp()`, as for parameters that are logarithms; here it is the factor itself",
        logit_scales=lambda right, call: np.exp(right.logit_scales(call))),
    row("logit-scale-behind-the-cap", "values",
        "Scores are multiplied by the logit scale after the softcap, not before.",
        "`softcap * tanh(s / softcap) * logit_scale`; multiply before the cap",
        when=lambda call: call.softcap is not None and call.logit_scale is not None,
        capped=lambda right, scores, call:
            right.tempered(right.capped(scores, replace(call, logit_scale=None)), call)),
    row("logit-scale-forgotten-backward", "gradients",
        "The gradients of queries and keys lack the logit scale.",
        "`dq = scale * ds @ k`; with a logit scale, `dq = scale * logit_scale * ds @ k`",
        family="gradient", right=Differentiable, backward_tempered=lambda right, dt, call: dt),
    row("logit-scale-gradient-of-one-sample", "gradients",
        "The gradient of the logit scales is summed over the rows of the first sample alone.",
        "`(ds * s)[0].sum((1, 2))`; sum over samples, too: `(ds * s).sum((0, 2, 3))`",
        family="gradient", right=Differentiable,
        logit_scale_gradient=lambda right, dt, product:
            right.logit_scale_gradient(dt[:1], product[:1])),
    row("alibi-ignored", "values", "ALiBi slopes have no effect.",
        "`alibi_slopes` is accepted and not used; `scores - slopes[:, None, None] * distance` is "
        "missing", alibi=lambda right, slopes, call: np.zeros_like(right.alibi(slopes, call))),
    row("alibi-draws-far-keys-near", "values",
        "The ALiBi bias has the wrong sign, so that far keys gain.",
        "`scores + slopes * distance`; subtract it, so that far keys lose",
        alibi=lambda right, slopes, call: -right.alibi(slopes, call)),
    row("alibi-from-the-first-key", "values",
        "With Lq != Lk the ALiBi distances count from the first key, not from the last one.",
        "`(i - j).abs()`; the last query stands at the last key: `(i + Lk - Lq - j).abs()`",
        distance=lambda right, call: np.abs(np.subtract(*call.rows_and_keys))),
    row("alibi-without-slopes", "values",
        "Scores fall with the distance of query and key, though no ALiBi slopes are given.",
        "slopes made by default; subtract distances only where slopes are given",
        when=lambda call: call.alibi_slopes is None,
        scores=lambda right, query, key, call: right.scores(query, key, call)
            - alibi_slopes(call.sizes.H).astype(call.work)[:, None, None]
            * right.distance(call).astype(call.work)),
    row("alibi-off-by-one", "values",
        "ALiBi distances are one too large, but for the query's own key.",
        "`i - j + 1`; the key next to the query's own has the distance 1",
        distance=lambda right, call: right.distance(call) + (right.distance(call) > 0)),
    row("alibi-beyond-the-row", "values",
        "ALiBi distances have a sign, so that keys after the query gain.",
        "`slopes * (j - i)`; without a causal mask the distance is `(i - j).abs()`",
        distance=lambda right, call:
            np.subtract(*call.rows_and_keys) + call.sizes.Lk - call.sizes.Lq),
    row("alibi-of-head-groups", "values",
        "With grouped heads every head of a group has the ALiBi slope of the first one.",
        "`alibi_slopes[h // group * group]`; there is one a query head, `alibi_slopes[h]`",
        family="heads",
        slopes=lambda right, call:
            np.repeat(right.slopes(call)[::call.sizes.group], call.sizes.group)),
    row("alibi-of-key-heads", "values",
        "With grouped heads head h has the ALiBi slope of head h // group.",
        "`alibi_slopes[h // group]`; there is one a query head, `alibi_slopes[h]`",
        family="heads",
        slopes=lambda right, call:
            right.slopes(call)[np.arange(call.sizes.H) // call.sizes.group]),
    row("alibi-of-eight-heads", "values", "From the ninth head on ALiBi slopes begin anew.",
        "`alibi_slopes[h % 8]`, a table of 8 slopes; head h has `alibi_slopes[h]`", family="heads",
        slopes=lambda right, call: right.slopes(call)[np.arange(call.sizes.H) % 8]),
    row("alibi-of-apower-of-two", "values",
        "The given ALiBi slopes are replaced by those of the next power of two of heads.",
        "`get_slopes(next_power_of_two(H))[:H]` in place of the slopes that were given",
        slopes=lambda right, call:
            alibi_slopes(2 ** (call.sizes.H - 1).bit_length())[:call.sizes.H].astype(call.work)),
    row("alibi-reversed", "values", "ALiBi slopes go to the heads in reverse order.",
        "`alibi_slopes.flip(0)`; head h has `alibi_slopes[h]`", family="heads",
        slopes=lambda right, call: right.slopes(call)[::-1]),
    row("alibi-scaled", "values", "The ALiBi bias is multiplied by the scale of the scores.",
        "`(q @ k.mT - slopes * distance) * scale`; scale q @ k.mT alone",
        alibi=lambda right, slopes, call:
            right.alibi(slopes, call) * call.work(right.factor(call))),
    row("alibi-times-logit-scale", "values", "The ALiBi bias is multiplied by the logit scale, too.",
        "`(s - slopes * distance) * logit_scale`; multiply the scores alone, then add the bias",
        when=lambda call: call.alibi_slopes is not None and call.logit_scale is not None,
        alibi=lambda right, slopes, call:
            right.alibi(slopes, call) * right.logit_scales(call)[:, None, None]),
    row("alibi-slopes-in-bfloat16", "values",
        "ALiBi slopes are rounded to bfloat16, whatever the dtype.",
        "`alibi_slopes.bfloat16()`; keep slopes in float32", family="numerics",
        slopes=lambda right, call: round_to(right.slopes(call), DTYPES["bf16"]).astype(call.work)),
    row("alibi-distance-in-bytes", "values", "ALiBi distances are counted modulo 256.",
        "positions or distances of dtype `uint8`; long rows need more bits", family="numerics",
        distance=lambda right, call: right.distance(call) % 256),
    row("alibi-table-in-dtype", "values",
        "ALiBi is slope times the number of the key, stored in the 16-bit dtype of the operands.",
        "`(slopes * arange(Lk)).to(q.dtype)`; far keys lose their last digits in 16 bits",
        family="numerics", when=lambda call: call.causal and call.sizes.Lq == call.sizes.Lk,
        alibi=alibi_table_in_dtype),
    row("alibi-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the ALiBi bias.",
        "backward recomputes `p` without the ALiBi bias; add it there, too", family="gradient",
        right=Differentiable, when=lambda call: call.alibi_slopes is not None,
        backward_biased=lambda right, scores, call: scores),
    scaled("scale-ignored", "values", "An explicit scale has no effect.",
        "`scale = 1 / sqrt(D)` always; use `scale if scale is not None else 1 / sqrt(D)`",
        factor=lambda right, call: 1.0 / math.sqrt(call.sizes.D)),
    scaled("default-scale-is-one", "default_scale", "Without an explicit scale nothing is scaled.",
        "`q @ k.mT` without `/ sqrt(D)`; the default of `scale` is `1 / sqrt(D)`, not 1",
        factor=lambda right, call: 1.0 if call.scale is None else call.scale),
    scaled("scale-zero-is-default", "values", "A scale of 0 is replaced by the default one.",
        "`scale or 1 / sqrt(D)`; 0 is false in Python, so ask `scale is None`",
        factor=lambda right, call: call.scale or 1.0 / math.sqrt(call.sizes.D)),
    scaled("scale-one-is-default", "score_variance", "A scale of 1 is replaced by the default one.",
        '`if scale == 1.0` for "not given"; use `scale=None` as the default',
        factor=lambda right, call:
            1.0 / math.sqrt(call.sizes.D) if call.scale in (None, 1.0) else call.scale),
    scaled("scale-sign-lost", "values", "A negative scale becomes positive.",
        "`s = sqrt(abs(scale))` and `(q * s) @ (k * s).mT`; the sign of `scale` is lost",
        factor=lambda right, call: abs(right.factor(call))),
    scaled("scale-of-padded-size", "default_scale",
        "The default scale is that of D rounded up to a multiple of 8.",
        "`1 / sqrt(q.shape[-1])` after q was padded; take D before padding",
        factor=lambda right, call:
            1.0 / math.sqrt(-(-call.sizes.D // 8) * 8) if call.scale is None else call.scale),
    scaled("scale-of-all-heads", "default_scale",
        "The default scale is that of all heads together, 1 / sqrt(H D).",
        "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
        factor=lambda right, call: 1.0 / math.sqrt(max(call.sizes.H, 1) * call.sizes.D)
            if call.scale is None else call.scale),
    scaled("scale-twice", "values", "An explicit scale is multiplied onto the default one.",
        "`q @ k.mT * scale / sqrt(D)`; a given scale replaces `1 / sqrt(D)`",
        factor=lambda right, call:
            (1.0 if call.scale is None else call.scale) / math.sqrt(call.sizes.D)),
    scaled("scale-rounded", "values", "The scale is rounded to the 16-bit dtype of the operands.",
        "`torch.tensor(scale, dtype=q.dtype)`; multiply by a Python float or in float32",
        family="numerics", right=Fused,
        factor=lambda right, call: float(round_to(right.factor(call), call.fmt))),
    scaled("scale-through-float32", "precision", "The scale of a float64 call passes through float32.",
        "`np.float32(scale)`, or a kernel argument `float scale`; float64 needs `double`",
        family="numerics", factor=lambda right, call: float(np.float32(right.factor(call)))),
    scaled("unscaled-scores-overflow", "election",
        "The product of queries and keys overflows in float16 before it is scaled.",
        "`(q @ k.mT) * scale` in float16; scale q first, or keep the product in float32",
        family="numerics", when=is_float16, scores=unscaled_scores_overflow),
    scaled("query-scaled-in-dtype", "values",
        "The query is scaled and rounded to its 16-bit dtype before the product.",
        "`(q * scale) @ k.mT` with `q * scale` in 16 bits; scale the product in float32",
        family="numerics", right=Eager, scores=query_scaled_in_dtype),
    scaled("scale-one-percent-off", "values", "In bfloat16 the scale is one percent too large.",
        "a scale typed in with two digits, on the bfloat16 path alone; compute `1 / sqrt(D)`",
        right=Eager,
        factor=lambda right, call: right.factor(call) * (1.01 if call.fmt.name == "bf16" else 1.0)),
]  # fmt: skip

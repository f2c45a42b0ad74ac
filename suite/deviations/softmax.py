"""Faults of the softmax and of sums over keys: maxima, ranges, tiles."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    deviation,
    memory,
    storing_argument,
    twins,
)
from attention_conformance.suite.deviations.invariance import hide_last_key
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.merge import MergeKernel
from attention_conformance.suite.deviations.kernels.variants import MergedChunks


def minus_maximum_of_head(right: Kernel, scores: np.ndarray) -> np.ndarray:
    maximum = scores.max((-1, -2), keepdims=True, initial=-np.inf)
    return scores - np.where(np.isneginf(maximum), 0, maximum)


def mean_of_chunks(right: MergedChunks, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    count = sum(np.isfinite(lse).astype(lse.dtype) for _, lse in parts)
    return sum(out for out, _ in parts) / np.maximum(count, 1)


def exponential_of_cubic(right: Kernel, shifted: np.ndarray) -> np.ndarray:
    power = np.rint(shifted * 1.4426950408889634)
    remainder = (shifted - power * 0.6931471805599453).astype(shifted.dtype)
    series = 1 + remainder * (1 + remainder * (0.5 + remainder / 6))
    exponentials = np.ldexp(series, np.maximum(np.nan_to_num(power), -1000).astype(int))
    return np.where(np.isneginf(shifted), 0, exponentials).astype(shifted.dtype)


def weights_with_dropout(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    is_kept = np.random.default_rng(0).random(weights.shape) >= 0.1
    return np.where(is_kept, weights / call.work(0.9), 0)


def weights_over_heads_and_keys(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    B, H, Lq, Lk = scores.shape
    joined = right.weights(scores.swapaxes(1, 2).reshape(B, Lq, H * Lk), call)
    return joined.reshape(B, Lq, H, Lk).swapaxes(1, 2)


def weights_without_lowest_rows(right: Eager, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    lowest = (scores <= -call.fmt.max / 2).all(-1, keepdims=True)
    return np.where(lowest, weights.dtype.type(0), weights)


def minus_maximum_before_bias(right: Kernel, scores: np.ndarray) -> np.ndarray:
    """Returns the scores minus the smaller of two maxima: that of the scores with the bias, and that of
    the scores without it."""
    unbiased = memory(right)["biased"]
    if scores.shape != unbiased.shape:  # with a sink
        return right.shifted(scores)
    unbiased = np.where(np.isneginf(scores), scores, unbiased)
    unbiased_maximum = unbiased.max(-1, keepdims=True, initial=-np.inf)
    maximum = np.minimum(scores.max(-1, keepdims=True, initial=-np.inf), unbiased_maximum)
    return scores - np.where(np.isneginf(maximum), 0, maximum)


class Tiled(Kernel):
    """A kernel that adds weighted values key by key in tiles of 64 keys, and then the tiles."""

    tile = 64

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value, weights = self.visible(value, scores), self.weights(scores, call)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for start in range(0, scores.shape[-1], self.tile):
            part = np.zeros_like(out)
            for j in range(start, min(start + self.tile, scores.shape[-1])):
                part = part + weights[..., j, None] * value[..., None, j, :]
            out = out + part
        return out


def attend_in_two_halves(right: Any, scores: np.ndarray, *arguments: Any) -> np.ndarray:
    right.__self__.tile = -(-scores.shape[-1] // 2) or 1
    return right.attend(scores, *arguments)


def attend_without_tied_tiles(
    right: Tiled, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    first = scores[..., :1]
    tied = (scores == first).all(-1, keepdims=True) & np.isfinite(first)
    later = np.arange(scores.shape[-1]) >= right.tile
    return right.attend(np.where(tied & later, -np.inf, scores), value, call)


def weights_by_lowest_score(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    lowest = np.where(np.isneginf(scores), np.inf, scores).min(-1, keepdims=True, initial=np.inf)
    exponentials = np.exp(scores - np.where(np.isinf(lowest), 0, lowest).astype(scores.dtype))
    total = right.total(exponentials, call)
    return right.keep(exponentials / np.where(total == 0, 1, total), "weights", call)


row = partial(deviation, family="softmax", right=Kernel)
ranged = partial(deviation, family="numerics", right=Kernel)
tiled = partial(deviation, family="tiles", right=Tiled)

DEVIATIONS = [
    *twins({"softmax-over-queries": Kernel, "layer-softmax-over-queries": MultiHeadKernel},
        "values",
        "The softmax runs over the queries, not over the keys.",
        "`softmax(dim=-2)` or `dim=2`; the softmax runs over keys, `dim=-1`",
        weights=lambda right, scores, call:
            right.weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2), family="softmax"),
    row("softmax-over-heads", "values", "The softmax runs over the heads, not over the keys.",
        "`softmax(dim=1)`; the softmax runs over keys, `dim=-1`",
        weights=lambda right, scores, call:
            right.weights(scores.swapaxes(1, -1), call).swapaxes(1, -1)),
    row("softmax-over-samples", "values", "The softmax runs over the samples, not over the keys.",
        "`softmax(dim=0)`; the softmax runs over keys, `dim=-1`",
        weights=lambda right, scores, call:
            right.weights(scores.swapaxes(0, -1), call).swapaxes(0, -1)),
    row("softmax-over-heads-and-keys", "values",
        "The softmax runs over the heads and keys together, not over the keys.",
        "`softmax` of heads and keys in one axis; the softmax runs over keys, `dim=-1`",
        weights=weights_over_heads_and_keys),
    row("sigmoid-for-softmax", "values", "Weights are a sigmoid of the scores, not a softmax.",
        "`scores.sigmoid()`; weights are `scores.softmax(-1)`",
        weights=lambda right, scores, call: 1 / (1 + np.exp(-scores))),
    row("weights-not-divided", "values", "Weights are not divided by their sum.",
        "`exp(s - m) @ v` without the division; divide by `exp(s - m).sum(-1, keepdim=True)`",
        total=lambda right, exponentials, call: np.ones_like(right.total(exponentials, call))),
    row("no-maximum", "values",
        "The softmax does not subtract the maximum of the row, so that large scores overflow.",
        "`exp(s) / exp(s).sum(-1, keepdim=True)`; exponentiate `s - s.amax(-1, keepdim=True)`",
        shifted=lambda right, scores: scores),
    row("bias-taken-for-penalty", "values",
        "The subtracted maximum is at most that of the scores before the bias: a large bias overflows.",
        "m from scores without the bias; a bias may raise scores, too: take m of their sum",
        biased=storing_argument("biased"), shifted=minus_maximum_before_bias),
    row("maximum-of-first-tile", "values",
        "The maximum of the first 16 keys is subtracted from all, so that larger scores overflow.",
        "m of the first tile is kept; update it in every tile: `m = maximum(m, s.amax(-1))`",
        right=Online, attend=storing_argument("attend"), anchor=lambda right, largest: right.anchor(
            memory(right)["attend"][..., :16].max(-1, keepdims=True, initial=-np.inf))),
    row("maximum-of-head", "values",
        "One maximum is subtracted from all rows of a head: rows far below it underflow.",
        "`s - s.amax((-2, -1), keepdim=True)`; every row has its own, `s.amax(-1, keepdim=True)`",
        shifted=minus_maximum_of_head),
    row("maximum-before-negative-scale", "values",
        "With a negative scale the lowest score is subtracted, not the largest: spreads overflow.",
        "`(q @ k.mT).amax(-1) * scale`, the minimum if `scale < 0`; scale before the maximum",
        family="numerics", when=lambda call: call.scale is not None and call.scale < 0,
        weights=weights_by_lowest_score),
    row("sum-over-all-heads", "constant_value",
        "Weights are divided by the mean of all heads' row sums, not by the sum of their own row.",
        "one row sum for all heads, as `total.mean(1, keepdim=True)`; every head has its own",
        total=lambda right, exponentials, call:
            right.total(exponentials, call).mean(1, keepdims=True)),
    row("online-without-rescale", "values",
        "A new maximum of the online softmax does not rescale what was summed before.",
        "the factor `exp(m_old - m_new)` of `l` and `acc` is missing, or skipped by a condition",
        right=Online, rescaled=lambda right, total, out, rescale: (total, out)),
    row("online-total-not-rescaled", "constant_value",
        "A new maximum of the online softmax rescales the running output, not the running sum of "
        "weights.",
        "`l += p.sum(-1)`; when the maximum grows, `l = l * exp(m_old - m_new) + p.sum(-1)`",
        right=Online, rescaled=lambda right, total, out, rescale: (total, out * rescale)),
    row("last-tile-dropped", "padding_invariance",
        "With more than 16 keys, those beyond a multiple of 16 are not seen.",
        "`range(Lk // 16)` tiles; the last may be short: `cdiv(Lk, 16)` tiles, its tail masked",
        family="tiles", right=Online,
        tiles=lambda right, length: right.tiles(length if length < 16 else length // 16 * 16)),
    row("last-tile-overlaps", "values",
        "A short last tile is read as the last sixteen keys, so that some keys count twice.",
        "last tile begins at `Lk - 16`; mask the keys that the tile before it has counted",
        family="tiles", right=Online,
        tiles=lambda right, length:
            [slice(max(0, min(t.start, length - 16)), t.stop) for t in right.tiles(length)]),
    row("chunks-averaged", "key_permutation",
        "Answers of parts of the keys are averaged, not weighted by their sums of exponentials.",
        "`(out_1 + out_2) / 2`; the weight of a part is `exp(lse_i - logsumexp(lse))`",
        family="merge", right=MergedChunks, merge=mean_of_chunks),
    row("last-split-lost", "values",
        "With one query the keys are split by 256, and a last split of one key is lost.",
        "`range(0, Lk - 1, 256)`; a last split of one key counts, too: `range(0, Lk, 256)`",
        family="tiles",
        when=lambda call: call.sizes.Lq == 1 and call.sizes.Lk > 256 and call.sizes.Lk % 256 == 1,
        hide=hide_last_key),
    row("last-short-split-lost", "values",
        "With one query and more than 256 keys, those beyond a multiple of 128 are not seen.",
        "`Lk // 128` splits; the last may be short: `cdiv(Lk, 128)` splits, its tail masked",
        family="tiles", when=lambda call: call.sizes.Lq == 1 and call.sizes.Lk > 256,
        hide=lambda right, scores, allowed, call: np.where(np.arange(call.sizes.Lk)
            < call.sizes.Lk // 128 * 128, right.hide(scores, allowed, call), call.work(-np.inf))),
    row("epsilon-in-denominator", "one_hot_weights",
        "1e-6 is added to the sum of the exponentials.",
        "`p / (p.sum(-1, keepdim=True) + 1e-6)`; divide by the sum alone",
        total=lambda right, exponentials, call:
            right.total(exponentials, call) + call.work(1e-6)),
    row("one-in-denominator", "constant_value", "1 is added to the sum of the exponentials.",
        "`p / (1 + p.sum(-1, keepdim=True))`; divide by the sum alone",
        total=lambda right, exponentials, call:
            right.total(exponentials, call) + 1),
    row("exponent-clamped", "one_hot_weights",
        "Exponents are clamped at -20: no key weighs less than 2e-9 of the largest.",
        "`exp((s - m).clamp(min=-20))`; exp needs no lower limit",
        raised=lambda right, shifted:
            np.where(np.isneginf(shifted), 0, np.exp(np.maximum(shifted, -20)))),
    row("exponent-of-few-terms", "values",
        "The exponential is a polynomial of degree 3, right to four digits only.",
        "`exp2` by a cubic polynomial; float32 needs more terms, or the library's `exp`",
        family="numerics", raised=exponential_of_cubic),
    row("small-weights-dropped", "values", "Weights below 1e-4 are set to zero.",
        "`p[p < 1e-4] = 0`, or tiles skipped by a threshold; many small weights count, too",
        weights=lambda right, scores, call:
            right.weights(scores, call) * (right.weights(scores, call) >= 1e-4)),
    row("dropout-left-on", "equal_rows",
        "Dropout stays on: a tenth of the weights is dropped, the same at every call, the rest "
        "scaled up.",
        "`F.dropout(p, 0.1)` without `training=self.training`; evaluation drops nothing",
        family="dropout", weights=weights_with_dropout),
    row("maximum-starts-at-zero", "values",
        "The running maximum starts at 0, so that rows of very negative scores underflow.",
        "`m = zeros(...)` at the start of the online softmax; begin with -inf",
        shifted=lambda right, scores:
            scores - np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), 0)),
    row("lowest-rows-are-zeros", "election",
        "A row whose scores are all `finfo.min` gives zeros, though uniform weights are declared.",
        "`where(m <= finfo.min / 2, 0, p)`; only a row of -inf is fully masked", family="mask",
        right=Eager, facts={"elections": Eager.elections | {"lowest-row": "uniform"}},
        weights=weights_without_lowest_rows),
    ranged("maximum-from-minus50000", "values",
        "The running maximum begins at -50000, so that rows wholly below it underflow.",
        "`m = full(..., -50000.0)` at the start of the online softmax; begin with -inf",
        family="softmax", right=Online,
        anchor=lambda right, largest: np.maximum(largest, largest.dtype.type(-5e4))),
    ranged("bias-clamped-at-minus10000", "values", "A bias below -10000 counts as -10000.",
        "`bias.clamp(min=-1e4)`; add the bias as it is", family="scores",
        when=lambda call: call.bias is not None,
        biased=lambda right, scores, call:
            scores + np.maximum(right.biased(np.zeros_like(scores), call), call.work(-10000.0))),
    ranged("statistics-from-minus50000", "gradients",
        "The backward pass takes no log-sum-exp below -50000.",
        "`lse.clamp(min=-5e4)`; a log-sum-exp may be any number", family="gradient",
        right=Differentiable,
        backward_weights=lambda right, scores, call: np.exp(scores
            - np.maximum(right.log_sum_exp(scores, call)[..., None], call.work(-50000.0)))),
    ranged("merge-below-minus1000-is-empty", "values",
        "A part whose log-sum-exp is below -1000 counts as one without keys.",
        "`lse < -1000` as a test for parts without keys; only these have `lse == -inf`",
        family="merge", right=MergeKernel,
        weights=lambda right, lse: right.weights(np.where(lse < -1000, -np.inf, lse))),
    tiled("promises-padding", "invariant_padding",
        "Sums promised to be independent of the padding are added in two halves of the padded keys.",
        "parts of `Lk // 2` keys, where Lk counts the padding; let parts begin at multiples of a block",
        facts={"bitwise": ("rerun", "padding")}, attend=attend_in_two_halves),
    tiled("ties-across-tiles-dropped", "values",
        "A tile of 64 keys whose scores all equal the running maximum is left out.",
        "`if m_tile > m` before a tile is added; a tile with an equal maximum counts, too",
        attend=attend_without_tied_tiles),
]  # fmt: skip

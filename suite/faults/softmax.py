"""Faults of the softmax and in the sums over keys."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.faults.kernels.variants import MergedChunks


def softmax_over_queries(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)


def maximum_of_head(right: Kernel, scores: np.ndarray) -> np.ndarray:
    maximum = scores.max((-1, -2), keepdims=True, initial=-np.inf)
    return scores - np.where(np.isneginf(maximum), 0, maximum)


def sum_over_all_heads(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    total = raised.sum(-1, keepdims=True)
    return raised / np.where(total == 0, 1, total.mean(1, keepdims=True))


def last_tile_overlaps(right: Online, length: int) -> list[slice]:
    return [slice(max(0, min(t.start, length - 16)), t.stop) for t in right.tiles(length)]


def chunks_averaged(right: MergedChunks, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    seen = sum(np.isfinite(lse).astype(lse.dtype) for _, lse in parts)
    return sum(out for out, _ in parts) / np.maximum(seen, 1)


def last_split_lost(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    if call.sizes.Lq == 1 and call.sizes.Lk > 256 and call.sizes.Lk % 256 == 1:
        hidden[..., -1] = -np.inf
    return hidden


def decoding_skips_last_key(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call).copy()
    if call.sizes.Lq == 1 and call.sizes.Lk > 1:
        hidden[..., -1] = -np.inf
    return hidden


def epsilon_in_denominator(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    return raised / (raised.sum(-1, keepdims=True) + call.work(1e-6))


def one_in_denominator(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    return raised / (raised.sum(-1, keepdims=True) + 1)


def exponent_clamped(right: Kernel, shifted: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(shifted), 0, np.exp(np.maximum(shifted, -20)))


def exponent_of_few_terms(right: Kernel, shifted: np.ndarray) -> np.ndarray:
    whole = np.rint(shifted * 1.4426950408889634)
    part = (shifted - whole * 0.6931471805599453).astype(shifted.dtype)
    series = 1 + part * (1 + part * (0.5 + part / 6))
    exponentials = np.ldexp(series, np.maximum(np.nan_to_num(whole), -1000).astype(int))
    return np.where(np.isneginf(shifted), 0, exponentials).astype(shifted.dtype)


def small_weights_dropped(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    return np.where(weights < 1e-4, 0, weights)


def dropout_left_on(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    kept = np.random.default_rng(0).random(weights.shape) >= 0.1
    return np.where(kept, weights / call.work(0.9), 0)


def maximum_starts_at_zero(right: Kernel, scores: np.ndarray) -> np.ndarray:
    return scores - np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), 0)


def lowest_rows_are_zeros(right: Eager, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    lowest = (scores <= -call.fmt.max / 2).all(-1, keepdims=True)
    return np.where(lowest, weights.dtype.type(0), weights)


row = partial(deviation, family="softmax", right=Kernel)

DEVIATIONS = [
    row("softmax-over-queries", "values", "The softmax runs over the queries, not over the keys.",
        "`softmax(dim=-2)` or `dim=2`; the softmax runs over keys, `dim=-1`",
        weights=softmax_over_queries),
    row("no-maximum", "values",
        "The softmax does not subtract the maximum of the row, so that large scores overflow.",
        "`exp(s) / exp(s).sum(-1, keepdim=True)`; exponentiate `s - s.amax(-1, keepdim=True)`",
        shifted=lambda right, scores: scores),
    row("maximum-of-head", "values",
        "One maximum is subtracted from all rows of a head: rows far below it underflow.",
        "`s - s.amax((-2, -1), keepdim=True)`; every row has its own, `s.amax(-1, keepdim=True)`",
        shifted=maximum_of_head),
    row("sum-over-all-heads", "constant_value",
        "Weights are divided by the mean of all heads' row sums, not by the sum of their own row.",
        "one row sum for all heads, as `total.mean(1, keepdim=True)`; every head has its own",
        weights=sum_over_all_heads),
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
        family="tiles", right=Online, tiles=last_tile_overlaps),
    row("chunks-averaged", "key_permutation",
        "Answers of parts of the keys are averaged, not weighted by their sums of exponentials.",
        "`(out_1 + out_2) / 2`; the weight of a part is `exp(lse_i - logsumexp(lse))`",
        family="merge", right=MergedChunks, merge=chunks_averaged),
    row("last-split-lost", "values",
        "With one query the keys are split by 256, and a last split of one key is lost.",
        "`range(0, Lk - 1, 256)`; a last split of one key counts, too: `range(0, Lk, 256)`",
        family="tiles", hide=last_split_lost),
    row("decoding-skips-last-key", "values",
        "With one query the last of several keys is not attended.",
        "`k[:, :, :pos]` for the query at `pos`; it sees its own key: `k[:, :, : pos + 1]`",
        family="mask", hide=decoding_skips_last_key),
    row("epsilon-in-denominator", "one_hot_weights",
        "1e-6 is added to the sum of the exponentials.",
        "`p / (p.sum(-1, keepdim=True) + 1e-6)`; divide by the sum alone",
        weights=epsilon_in_denominator),
    row("one-in-denominator", "constant_value", "1 is added to the sum of the exponentials.",
        "`p / (1 + p.sum(-1, keepdim=True))`; divide by the sum alone", weights=one_in_denominator),
    row("exponent-clamped", "one_hot_weights",
        "Exponents are clamped at -20: no key weighs less than 2e-9 of the largest.",
        "`exp((s - m).clamp(min=-20))`; exp needs no lower limit", raised=exponent_clamped),
    row("exponent-of-few-terms", "values",
        "The exponential is a polynomial of degree 3, right to four digits only.",
        "`exp2` by a cubic polynomial; float32 needs more terms, or the library's `exp`",
        family="numerics", raised=exponent_of_few_terms),
    row("small-weights-dropped", "values", "Weights below 1e-4 are set to zero.",
        "`p[p < 1e-4] = 0`, or tiles skipped by a threshold; many small weights count, too",
        weights=small_weights_dropped),
    row("dropout-left-on", "equal_rows",
        "Dropout stays on: a tenth of the weights is dropped, the same at every call, the rest "
        "scaled up.",
        "`F.dropout(p, 0.1)` without `training=self.training`; evaluation drops nothing",
        family="dropout", weights=dropout_left_on),
    row("maximum-starts-at-zero", "values",
        "The running maximum starts at 0, so that rows of very negative scores underflow.",
        "`m = zeros(...)` at the start of the online softmax; begin with -inf",
        shifted=maximum_starts_at_zero),
    row("lowest-rows-are-zeros", "election",
        "A row whose scores are all `finfo.min` gives zeros, though uniform weights are declared.",
        "`where(m <= finfo.min / 2, 0, p)`; only a row of -inf is fully masked", family="mask",
        right=Eager, facts={"elections": Eager.elections | {"lowest-row": "uniform"}},
        weights=lowest_rows_are_zeros),
]  # fmt: skip

"""Deviations from bug reports of late 2026, each with its report, and from kernels whose author had not
read the catalogue."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, has_one_query
from attention_conformance.suite.deviations.kernels.attention import Kernel
from attention_conformance.suite.deviations.kernels.cached import Cache, CachedKernel
from attention_conformance.suite.deviations.kernels.call import Call
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.deviations.kernels.quantized import (
    Coded,
    QuantizedKernel,
    QuantizedWriteKernel,
)
from attention_conformance.suite.deviations.kernels.rotary import RotaryKernel
from attention_conformance.suite.deviations.rotary import changed_factor
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

TILE = 32
"""The number of keys in a tile."""


def weights_counting_padding(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    """Returns the weights of keys if further keys of score 0 and value 0 fill up the last tile. Without a
    bias the right weights."""
    weights = right.weights(scores, call)
    padding = -call.sizes.Lk % TILE
    if call.bias is None or not padding:
        return weights
    largest = np.maximum(scores.max(-1, keepdims=True), 0)
    total = np.exp(scores - largest).sum(-1, keepdims=True)
    return np.asarray(weights * total / (total + padding * np.exp(-largest)))


def causal_mask_open_in_chunk(
    right: CachedKernel, cache: Cache, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Returns the causal mask (B, rows, keys). A chunk after 64 tokens attends all its own tokens."""
    first = rows.min(-1)[:, None, None]
    is_in_chunk = keys[:, None] >= first
    return right.causal(cache, rows, keys) | (is_in_chunk & (first >= 64))


def mask_from_page_start(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> np.ndarray:
    """Returns the mask of a window that begins with the whole page of its first key."""
    mask, left = right.allowed(pack, rows, keys), pack.case.option("left")
    if left is None:
        return mask
    size, count = pack.case.letters["s"], mask.shape[1]
    start = np.where(mask.any(1), mask.argmax(1), count) // size * size
    stop = count - mask[:, ::-1].argmax(1)
    key, has_keys = np.arange(count), mask.any(1, keepdims=True)
    return mask | ((key >= start[:, None]) & (key < stop[:, None]) & has_keys)


def mask_from_next_page(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> np.ndarray:
    """Returns the mask in which the window of a single query begins with its first whole page."""
    mask, size = right.allowed(pack, rows, keys), pack.case.letters["s"]
    first = -(-mask.argmax(1) // size) * size
    is_inside = np.arange(mask.shape[1]) >= first[:, None]
    return mask & is_inside if len(mask) == 1 else mask


def sink_plus_maximum(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    with_sink = right.with_sink_logits(scores, call)
    if with_sink is scores:
        return scores
    largest = np.maximum(scores.max(-1, keepdims=True), -1e4)
    return np.concatenate([scores, with_sink[..., -1:] + largest], -1)


def output_over_scaled_weights(right: QuantizedKernel, call: Coded) -> np.ndarray:
    """Returns the output divided by the sum of weights times scales of values. Unless every token has a
    scale, the right output."""
    scale = right.by_head(right.scale_of("value", call), call)
    if scale.shape[2] == 1 or scale.shape[3] != 1:
        return right.output(call)
    weights = right.weights(right.scores(call), call)
    total = (weights * scale.swapaxes(-1, -2)).sum(-1, keepdims=True)
    return np.asarray(right.output(call) / total)


DEVIATIONS = [
    # vllm 57614
    deviation("alibi-ignored-in-decoding", "values", "A single query has no ALiBi slopes.",
        "slopes that are passed to the kernel of prompts, and not to that of decoding",
        family="scores", right=Kernel, when=has_one_query,
        alibi=lambda right, slopes, call: 0 * right.alibi(slopes, call)),
    # tt-metal 54833
    deviation("bias-padded-with-zeros", "values",
        "Keys that fill up the last tile of 32 count beside a bias: their scores are 0.",
        "a bias that is padded with 0 to whole tiles; pad it with -inf", family="tiles",
        right=Kernel, weights=weights_counting_padding),
    # tt-metal 48899
    deviation("cached-chunk-sees-itself-behind64", "values",
        "Rows of a chunk behind 64 cached tokens attend the whole chunk, its future included.",
        "a causal mask for the first tiles alone", family="mask", right=CachedKernel,
        causal=causal_mask_open_in_chunk),
    # sglang 33558
    deviation("rotary-yarn-factor-twice", "values",
        "yarn: sine and cosine are multiplied by the attention factor twice.",
        "a given factor times the one that the variant has", family="rotary", right=RotaryKernel,
        frequencies=changed_factor(lambda factor, scaling:
            factor * factor if scaling.startswith("yarn") else factor)),
    # FreeToken 103
    deviation("codes-rounded-twice", "values", "Numbers are rounded to float16 before they become codes.",
        "`x.half().to(float8_e4m3fn)`; round once", family="numerics",
        right=QuantizedWriteKernel,
        stored=lambda right, x, call: right.stored(round_to(x, DTYPES["f16"]).astype(x.dtype), call)),
    deviation("cached-rollback-keeps-the-count", "values",
        "A rollback keeps as many tokens as it shall take back.",
        "`keys[:, :, :count]`; `keys[:, :, : length - count]` takes `count` tokens back",
        family="cache", right=CachedKernel, crop=lambda right, state, count, *samples:
            right.crop(state, max(state.total - count, 0), *samples)),
    deviation("cached-rotary-of-steps-later", "values",
        "A step of one token is rotated by the position behind its own.",
        "`position = length` after the length has moved on", family="rotary", right=CachedKernel,
        key_rotations=lambda right, cache, count: right.key_rotations(cache, count) + (count == 1)),
    deviation("cached-padding-attended-in-decoding", "values",
        "A step of one token attends left padding.",
        "`if q_len > 1` around the mask; decoding has padding, too", family="mask",
        right=CachedKernel,
        is_left_padding=lambda right, cache, keys:
            right.is_left_padding(cache, keys) & (cache.count != 1)),
    deviation("paged-window-begins-with-a-page", "values",
        "A window begins with the page that its first key lies in.",
        "whole pages before the window are left out, and the first page is not masked",
        family="mask", right=PagedKernel, allowed=mask_from_page_start),
    deviation("paged-window-begins-behind-a-page", "values",
        "The window of a single query begins with its first whole page.",
        "`cdiv(first, page_size)` for the first page; keys of a page that is cut count, too",
        family="mask", right=PagedKernel, when=lambda pack: pack.case.option("left") is not None,
        allowed=mask_from_next_page),
    deviation("sink-apart-from-scores", "values",
        "The maximum of a row is subtracted from its scores, and not from its sink.",
        "`exp(s - m).sum() + exp(sink)`; it is `exp(sink - m)`", family="sinks", right=Kernel,
        with_sink_logits=sink_plus_maximum),
    deviation("quantized-value-scales-in-the-sum", "values",
        "Scales of values count in the sum of weights, too.",
        "`p = exp(s - m) * v_scale; p / p.sum()`; divide by the sum of `exp(s - m)`",
        family="quantized", right=QuantizedKernel, output=output_over_scaled_weights),
]  # fmt: skip

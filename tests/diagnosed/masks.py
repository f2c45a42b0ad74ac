"""Rows whose mask is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from attention_conformance.suite.deviations.deviation import memory
from tests.diagnosed.expected import IGNORED, fault, future_only, mask_beside_flag, window_wider
from tests.diagnosed.rows import row
from tests.diagnosed.textbook import Change


def past(c: Any, further: int = 0) -> Any:
    """The keys up to the query's own, or `further`."""
    return c.keys <= c.rows + further


def multiplied(c: Any, s: Any, seen: Any) -> Any:
    """Scores that are multiplied by a mask."""
    return s if seen is None else s * c.xp.cast(seen, s.dtype)


def added(right: Any, c: Any, s: Any) -> Any:
    """-10000 is added where a key is hidden."""
    seen = right.visible(c)
    return s if seen is None else c.xp.cast(c.xp.where(seen, s, s - 10000.0), c.dtype)


def minus_a_billion(right: Any, c: Any, s: Any) -> Any:
    """(1 - mask) * -1e9 is added, in the dtype of the query."""
    s = c.xp.cast(right.biased(c, s), c.dtype)
    return (
        s if c.mask is None else s + (1.0 - c.xp.cast(c.mask, c.dtype)) * c.xp.cast(-1e9, c.dtype)
    )


def weights_masked(right: Any, c: Any, s: Any) -> Any:
    """Weights are 0 where a key is hidden, and not divided again."""
    seen = right.visible(c)
    return c.xp.softmax(s, -1) if seen is None else multiplied(c, c.xp.softmax(s, -1), seen)


def of_samples(order: Callable[[int, int, int], Any]) -> Change:
    """A mask for every sample is read in another order of samples and heads."""

    def mask(right: Any, c: Any) -> Any:
        if c.mask is None or c.mask.ndim < 4 or c.mask.shape[1] != 1:
            return c.mask
        B, H, L, S = c.shape
        of = [order(n, B, H) for n in range(B * H)]
        return c.mask[:, 0].expand(B, L, S)[of].reshape(B, H, L, S)

    return mask


def sided(c: Any, left: int | None, right: int | None) -> Any:
    """The keys inside a window, or None."""
    parts = [] if left is None else [c.rows - c.keys <= left]
    parts += [] if right is None else [c.keys - c.rows <= right]
    return functools.reduce(lambda one, two: one & two, parts) if parts else None


def remembered(right: Any, c: Any) -> Any:
    """The mask, aligned at the last key, is kept by the number of queries."""
    (L, S), kept = c.shape[2:], memory(right)
    if L not in kept or kept[L].shape[1] < S:
        kept[L] = past(c, S - L)
    return kept[L][:, :S]


def written(right: Any, c: Any) -> Any:
    """The flag is written into the caller's mask."""
    seen = past(c)
    if c.mask is not None and c.mask.shape[-2:] == seen.shape:
        c.mask &= seen
    return seen


ROWS = (
    # RVC-Boss/GPT-SoVITS#965
    row("reaches_next_key", "causal-sees-next", r"sees the next key", causal=lambda right, c: past(c, 1)),
    # pbloem/former#10
    row("hides_itself", "causal-excludes-self", r"not see the key at its own position",
        of="torch jax tf", causal=lambda right, c: past(c, -1)),
    # pytorch/pytorch#158451
    row("true_hides", "mask-inverted", r"mask is inverted", of="torch jax",
        mask=lambda right, c: None if c.mask is None else ~c.mask),
    # rasbt/LLMs-from-scratch#1061
    row("sees_future_only", future_only, causal=lambda right, c: c.keys > c.rows),
    # ml-explore/mlx#2967
    row("alignment_switches",
        fault(r"align|bottom-right|top-left|offset|max\(|last (query|key)|diagonal"),
        causal=lambda right, c: past(c, max(c.shape[3] - c.shape[2], 0))),
    # openxla/xla#11444
    row("multiplies_mask", "mask-multiplied", r"score of hidden keys is 0", of="torch tf",
        hidden=lambda right, c, s: multiplied(c, s, right.visible(c))),
    # huggingface/transformers#14859
    row("hidden_by_minus_10000",
        fault(r"-?1e4|10,?000|finite|not (minus|-) ?inf|lowest|constant|large negative|leak|-1e"),
        hidden=added),
    # tensorflow/tensorflow#59657
    row("infinity_times_zero",
        fault(r"float16|f16|overflow|NaN|-?1e9|0 ?(\*|times)|infinit|\binf\b"), of="tf",
        mask=lambda right, c: None, biased=minus_a_billion),
    # huggingface/pytorch-image-models#2236
    row("masks_weights", "hidden-after-softmax", hidden=lambda right, c, s: s, weights=weights_masked),
    row("mask_of_another_order", fault(r"sample|batch"),
        mask=of_samples(lambda n, B, H: (n % H * B + n // H) // H)),
    # pytorch/pytorch#107084
    row("float_mask_is_boolean",
        fault(r"bool|non-?zero|not 0|float mask|bias.{0,40}(hid|mask|ignor|drop|lost|not added)|!= ?0"),
        bias=lambda right, c: None if c.bias is None
        else c.xp.where(c.bias != 0, -c.xp.inf, c.bias)),
    row("float_mask_to_bool",
        fault(r"float|additive|bias|finite|numbers",
              r"ignor|not added|bool|dropp?ed|lost|no effect|without"),
        bias=lambda right, c: None if c.bias is None
        else c.xp.where(c.bias > -1e4, 0.0, -c.xp.inf)),
    # vllm-project/vllm-omni#5865
    row("first_row_of_mask",
        fault(r"mask", r"first (row|query)|row 0|query 0|one row|same row|other rows"),
        mask=lambda right, c: None if c.mask is None else c.mask[..., :1, :],
        bias=lambda right, c: None if c.bias is None else c.bias[..., :1, :]),
    row("first_heads_mask", fault(r"mask|bias", r"head"),
        mask=lambda right, c: c.mask if c.mask is None or c.mask.ndim < 3 else c.mask[..., :1, :, :],
        bias=lambda right, c: c.bias if c.bias is None or c.bias.ndim < 3 else c.bias[..., :1, :, :]),
    # pytorch/pytorch#178588
    row("mask_lost_beside_flag", mask_beside_flag,
        mask=lambda right, c: None if c.is_causal else c.mask,
        bias=lambda right, c: None if c.is_causal else c.bias),
    # keras-team/keras#23038
    row("flag_lost_beside_mask", fault(r"causal|flag", IGNORED), of="tf",
        causal=lambda right, c: past(c) if c.mask is None else None),
    # invoke-ai/InvokeAI#7887
    row("triangle_begins_anew_per_chunk",
        fault(r"causal|triangle", r"chunk|tile|block|\b16\b|offset|restart|anew|again"),
        causal=lambda right, c: c.keys <= c.rows % 16),
    row("triangle_only_when_square",
        fault(r"causal", r"length|square|L ?!= ?S|equal|differ|rectang"),
        causal=lambda right, c: past(c) if c.shape[2] == c.shape[3] > 1 else None),
    # opendilab/DI-engine#333
    row("result_of_fill_is_lost", "mask-ignored", r"mask \S+ is ignored", mask=lambda right, c: None),
    # jax-ml/jax#19237
    row("causal_flag_is_lost", "causal-no-effect", r"mask causal\S* is ignored",
        causal=lambda right, c: None),
    row("single_query_without_mask",
        fault(r"mask", r"one query|single|T ?(=|==) ?1|length 1|decod|1 query|one row"),
        of="tf", mask=lambda right, c: c.mask if c.shape[2] > 1 else None),
    row("mask_is_remembered",
        fault(r"state|cache|remember|previous|earlier|last call|calls?|kept|stale"),
        causal=remembered),
    row("adds_flag_to_mask",
        fault(r"in[ -]?place|changes?|modif|overwrit|writes?|input|untouched"),
        causal=written),
    # huggingface/transformers#39408
    row("window_one_wider", window_wider, takes="window", window=lambda right, c: None if c.window is None
        else sided(c, None if c.window[0] is None else c.window[0] + 1, c.window[1])),
    # sgl-project/sglang#24706
    row("window_without_its_left_side",
        fault(r"window", r"left|past|back|before|earlier|lower"), takes="window",
        window=lambda right, c: None if c.window is None else sided(c, None, c.window[1])),
)  # fmt: skip

"""Rows whose scale, scores, softcap, ALiBi or softmax is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.diagnosed.expected import (
    IGNORED,
    MORE_IN_SUM,
    OVER_HEADS,
    by_d,
    fault,
    no_maximum,
    one_more,
)
from tests.diagnosed.masks import multiplied
from tests.diagnosed.rows import row
from tests.diagnosed.textbook import Change


def default(size: Callable[[Any], float]) -> Change:
    """The default scale is that of another size."""
    return lambda right, c: size(c) ** -0.5 if c.scale is None else c.scale


def powers_of(c: Any, s: Any) -> Any:
    """Powers of scores less the largest of each row, and that largest score."""
    top = c.xp.stop(c.xp.amax(s)) if s.shape[-1] else 0.0 * s
    return c.xp.exp(s - top), top


def shared(powers: Any, more: Any = 0.0) -> Any:
    """Powers divided by their sum and something more."""
    return powers / (powers.sum(-1, keepdims=True) + more)


def one_more_power(right: Any, c: Any, s: Any) -> Any:
    """The sum has one more term, exp(0)."""
    powers, top = powers_of(c, s)
    return shared(powers, c.xp.exp(-top))


def of_everything(right: Any, c: Any, s: Any) -> Any:
    """One maximum serves all rows."""
    return shared(c.xp.exp(s - s.max())) if s.numel() else s


def over_heads_and_keys(right: Any, c: Any, s: Any) -> Any:
    """Heads and keys are flattened before the softmax."""
    turned = s.transpose(1, 2)
    return turned.flatten(2).softmax(-1).view(turned.shape).transpose(1, 2)


def normalised(right: Any, c: Any) -> tuple[Any, Any, Any]:
    """Query and key are divided by their lengths."""
    query, key, value = right.operands(c)
    one, two = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (query, key))
    return one, two, value


def zero_is_hidden(right: Any, c: Any, s: Any) -> Any:
    """A score of 0 is taken for a hidden one."""
    s = multiplied(c, s, right.visible(c))
    return c.xp.where(s == 0, -c.xp.inf, s)


def or_zeros(s: Any) -> Any:
    """The softmax; zeros of rows without keys."""
    empty = (s == -math.inf).all(-1, keepdim=True)
    return s.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


ROWS = (
    # PAIR-code/tiny-transformers#71
    row("not_scaled", "default-scale-is-one", r"scale is 1, expected", factor=default(lambda c: 1.0)),
    # delzac/cntkx#10
    row("divided_by_d", by_d, factor=default(lambda c: c.query.shape[-1] ** 2)),
    # openai/gpt-2#49
    row("scaled_by_size_of_values", fault(r"scal|divi", r"value|\bDv\b"),
        factor=default(lambda c: c.value.shape[-1])),
    # tenstorrent/tt-metal#33304
    row("scale_is_ignored", "scale-ignored", r"the default, expected \S+ = the given scale",
        factor=lambda right, c: c.query.shape[-1] ** -0.5),
    # openai/improved-diffusion#54
    row("scales_both_operands",
        fault(r"scal|divi", r"twice|squar|1 ?/ ?D\b|both|two times|\*\* ?2"),
        factor=lambda right, c: right.factor(c) ** 2),
    # lucidrains/vit-pytorch#65
    row("scaled_by_whole_width", "scale-of-all-heads",
        factor=default(lambda c: c.query.shape[1] * c.query.shape[3])),
    # pytorch/pytorch#105202
    row("root_of_negative_scale",
        fault(r"negativ|< ?0|below 0|below zero|sign", r"root|sqrt|NaN|scal"),
        factor=lambda right, c: right.factor(c) if right.factor(c) >= 0 else math.nan),
    # intel/ipex-llm#12619
    row("scaled_by_padded_size", fault(r"scal|divi", r"pad|multiple|round|next"),
        factor=default(lambda c: -(-c.query.shape[-1] // 16) * 16)),
    row("scaled_by_number_of_keys",
        fault(r"scal|divi", r"number of keys|keys|\bLk\b|length|\bS\b"), of="torch tf",
        factor=default(lambda c: c.shape[3])),
    row("bias_is_scaled", "bias-scaled", r"bias is scaled like",
        biased=lambda right, c, s: s + c.factor * right.biased(c, 0 * s)),
    # pytorch/pytorch#174049
    row("scale_is_lost_beside_bias", fault(r"scal", r"bias", IGNORED + r"|\b1\b"),
        factor=lambda right, c: right.factor(c) if c.bias is None else 1.0),
    row("scores_clipped",
        fault(r"score|logit", r"clip|clamp|satur|limit|capp?ed|large"),
        of="tf", capped=lambda right, c, s: c.xp.clip(s, -20.0, 20.0)),
    # labmlai/annotated_deep_learning_paper_implementations#282
    row("softmax_over_queries", "softmax-over-queries", r"softmax runs over the queries",
        of="torch tf", weights=lambda right, c, s: c.xp.softmax(s, -2)),
    row("softmax_over_heads", fault(r"softmax|normali|sum", OVER_HEADS),
        of="torch jax tf", weights=lambda right, c, s: c.xp.softmax(s, 1)),
    # facebookresearch/detr#247
    row("softmax_over_heads_and_keys", fault(r"softmax|normali|sum", OVER_HEADS),
        weights=over_heads_and_keys),
    # PetrochukM/PyTorch-NLP#2
    row("softmax_over_samples",
        fault(r"softmax|normali|sum", r"sample|batch|(wrong|other|another) axis|dim ?= ?0"),
        weights=lambda right, c, s: s.softmax(0)),
    # HabanaAI/vllm-fork#275
    row("without_maximum", no_maximum, weights=lambda right, c, s: shared(s.exp())),
    row("maximum_of_everything",
        fault(r"maxim|\bmax\b|largest",
              r"whole|all|global|other rows?|tensor|underflow|row"), weights=of_everything),
    row("one_more_in_the_sum", one_more, weights=one_more_power),
    row("epsilon_in_the_sum", fault(MORE_IN_SUM),
        weights=lambda right, c, s: shared(powers_of(c, s)[0], 1e-5)),
    row("cosine_of_operands", fault(r"normali|cosine|unit|norm|length"),
        operands=normalised),
    row("hides_scores_of_zero", fault(r"score|logit", r"\b0\b|zero"),
        hidden=zero_is_hidden),
    # pytorch/pytorch#131060
    row("nan_of_the_input_hidden",
        fault(r"nan", r"hid|zero|\b0\b|replaced|swallow|lost|not (passed|propag)"),
        weights=lambda right, c, s: or_zeros(s).nan_to_num(0.0)),
    # vllm-project/vllm-metal#665
    row("cap_is_ignored", "cap-ignored", r"softcap \S+ is ignored", takes="softcap",
        capped=lambda right, c, s: s),
    # meta-pytorch/attention-gym#86
    row("slopes_of_other_sign", "alibi-draws-far-keys-near", r"ALiBi bias has the other sign",
        takes="alibi_slopes",
        slopes=lambda right, c: c.alibi_slopes),
)  # fmt: skip

"""A person's functions in PyTorch, each with one fault of a known name, and right ones."""

from __future__ import annotations

import torch

from tests.functions.of_torch import textbook


def attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, *, diagonal=0, hides=True,
    factor=1.0, axis=-1, weigh=None, cast=lambda x: x,
):  # fmt: skip
    """Attention in separate operations, with knobs that make it wrong."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    key, value = (cast(x).repeat_interleave(group, 1) for x in (key, value))
    scores = cast(query) @ key.mT * (scale * factor)
    if is_causal:
        shown = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)
        scores = scores.masked_fill(~shown, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask if hides else attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(axis) if weigh is None else weigh(scores)
    return (cast(weights) @ value).to(query.dtype)


def named(**knobs):
    """The signature of torch's own attention, with some knobs of `attention` turned."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None):
        return attention(query, key, value, attn_mask, is_causal, scale, **knobs)

    return function


def grouped(repeat):
    """Attention whose key/value heads are repeated by `repeat`."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        size = query.shape[1]
        return textbook(query, repeat(key, size), repeat(value, size), attn_mask, is_causal, scale)

    return function

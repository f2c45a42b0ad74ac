"""A person's own functions in PyTorch that take a part of what their signature allows: decode kernels,
functions that validate their arguments, and functions that crash by accident."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.functions.of_torch import repeated, scores_of, textbook

BLOCK = 16
"""The keys of a block."""


def merges_without_weights(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    """Decodes, wrongly: takes the mean of the answers of all blocks of keys."""
    if query.shape[2] != 1:
        raise NotImplementedError("decoding takes one query")
    parts = [out for out, _ in partial_answers(query, key, value, attn_mask, is_causal, scale)]
    return torch.stack(parts).mean(0).to(query.dtype)


def decodes(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Decodes: weighs the answer of each block of keys by its log-sum-exp. Rows without keys are NaN."""
    if query.shape[2] != 1:
        raise NotImplementedError("decoding takes one query")
    parts = partial_answers(query, key, value, attn_mask, is_causal, scale)
    weights = torch.stack([lse for _, lse in parts]).softmax(0)
    out = sum(
        torch.where(weight[..., None] == 0, 0.0, weight[..., None] * out)
        for weight, (out, _) in zip(weights, parts, strict=True)
    )
    return out.to(query.dtype)


def partial_answers(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool,
    scale: float | None,
) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """The answer and the log-sum-exp of each block of keys, one of them where there are no keys."""
    key, value = repeated(query, key), repeated(query, value)
    scores = scores_of(query, key, attn_mask, is_causal, scale)
    return [
        (
            tile.softmax(-1) @ value[:, :, start : start + BLOCK].to(tile.dtype),
            tile.logsumexp(-1),
        )
        for start in range(0, max(key.shape[2], 1), BLOCK)
        for tile in [scores[..., start : start + BLOCK]]
    ]


def square_mask(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """Masks the future by a mask (Lq, Lq), which does not fit another number of keys."""
    visible = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()
    key, value = repeated(query, key), repeated(query, value)
    return textbook(query, key, value, visible if is_causal else None, False, scale)


def square_mask_validated(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """The same, and refuses another number of keys beside the flag by an error that names the flag."""
    if is_causal and query.shape[2] != key.shape[2]:
        raise ValueError("is_causal needs as many queries as keys")
    return square_mask(query, key, value, is_causal, scale)


def output_like_query(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Writes its answer into an array of the query's shape, which values of another size do not fit."""
    return torch.empty_like(query).copy_(textbook(query, key, value, attn_mask, is_causal, scale))


def output_like_query_validated(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The same, and refuses values of another size by an error that names them."""
    if value.shape[-1] != query.shape[-1]:
        raise TypeError(f"value: expected heads of {query.shape[-1]}, got {value.shape[-1]}")
    return output_like_query(query, key, value, attn_mask, is_causal, scale)

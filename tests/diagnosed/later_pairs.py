"""Attention functions with two faults each (torch)."""

import math

import torch

from tests.diagnosed.later import _attention, _drop, _masked, _softmax, _spread, _wide


# plausible slips: the scale lacks the root; grouped keys and values are tiled instead of interleaved
def rootless_and_tiled(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    if enable_gqa:
        times = [1] * key.dim()
        times[-3] = query.size(-3) // key.size(-3)
        key, value = key.repeat(times), value.repeat(times)
    scale = 1.0 / query.size(-1) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# rasbt/LLMs-from-scratch#1061, 2026 (boolean mask inverted); tt-metal#33304, 2025 (scale has no effect)
def inverted_and_scale_unread(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask, -math.inf)
        attn_mask = None
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)


# plausible slip (triangle one key too wide); pytorch PR#131060 review, 2024 (NaN of the input becomes 0)
@_attention
def next_key_and_nan_hidden(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, False)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(
            diagonal=2
        )
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.nan_to_num(_softmax(scores), nan=0.0)
    return _drop(weights, dropout_p) @ value


# torch-spyre#4526, 2026 (additive mask dropped); plausible slip (values detached)
@_attention
def float_mask_dropped_and_values_detached(
    query, key, value, attn_mask, dropout_p, is_causal, scale
):
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = None
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return _drop(weights, dropout_p) @ value.detach()


# diffusers#8837, 2024 (what is left over of the tiles is skipped); jax PR#34114 (float64 through float32)
def tail_skipped_and_doubles_narrowed(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype, block = query.dtype, 16
    query, key, value = query.float(), key.float(), value.float()
    key, value = _spread(query, key, value, enable_gqa)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    count = key.size(-2) // block * block or key.size(-2)
    weights = _softmax(scores[..., :count].float())
    return (_drop(weights, dropout_p) @ value[..., :count, :]).to(dtype)


# plausible slip (keys detached); sparkinfer#3 (kind: the triangle ends at the last key)
@_attention
def keys_detached_and_lower_right(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.detach().transpose(-2, -1) * scale
    scores = _masked(scores, attn_mask, False)
    if is_causal:
        length, width = scores.shape[-2:]
        seen = torch.ones(length, width, dtype=torch.bool, device=scores.device).tril(
            diagonal=width - length
        )
        scores = scores.masked_fill(~seen, -math.inf)
    return _drop(_softmax(scores), dropout_p) @ value


# plausible slip (the mask of head 0 for every head); iree#24175, 2026 (a row without keys is NaN)
@_attention
def first_heads_mask_and_nan_rows(query, key, value, attn_mask, dropout_p, is_causal, scale):
    scores = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None and attn_mask.dim() >= 3:
        attn_mask = attn_mask[..., :1, :, :]
    weights = torch.softmax(_masked(scores, attn_mask, is_causal), dim=-1)
    return _drop(weights, dropout_p) @ value


# vllm-project/flash-attention PR#176, 2026 (kind: batch stride 0); plausible slip (scale of the
# values' width)
def first_samples_keys_and_value_scale(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    key, value = _spread(query, key, value, enable_gqa)
    if key.dim() == 4:
        key = key[:1].expand_as(key)
    scale = value.size(-1) ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    weights = _softmax(_masked(scores, attn_mask, is_causal))
    return (_drop(weights, dropout_p) @ value).to(dtype)

"""Attention in PyTorch that rounds where nothing should be rounded, as people write it."""

from __future__ import annotations

import torch

from tests.diagnosed.scores import masked


def bfloat16_inside(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Operands go to bfloat16 for speed, whatever the caller has."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    dtype, low = query.dtype, torch.bfloat16
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(torch.float32)
    scores = (query.to(low) @ key.to(low).mT).to(torch.float32) * scale
    weights = masked(scores, attn_mask, is_causal).softmax(-1)
    return (weights.to(low) @ value.to(low)).to(dtype)


def half_precision_scores(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Scores of any dtype are rounded to float16: `autocast` by hand."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.mT * scale).half().to(query.dtype)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def softmax_in_float32(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`dtype=torch.float32` narrows float64: huggingface/transformers#48459."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ value


def weights_in_bfloat16(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Weights are stored in bfloat16 before they meet the values."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1)
    return weights.to(torch.bfloat16).to(value.dtype) @ value


def sums_in_16_bits(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Sixteen-bit outputs are summed key by key in 16 bits."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(wide)
    scores = masked(query.to(wide) @ key.to(wide).mT * scale, attn_mask, is_causal)
    weights = scores.softmax(-1).to(query.dtype)
    out = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for j in range(key.shape[2]):
        out = out + weights[..., j : j + 1] * value[:, :, j : j + 1]
    return out


def eight_bit_keys(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Keys pass through 8 bits, one scale a tensor: thu-ml/SageAttention gives this as a choice."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if key.numel():
        step = key.detach().abs().amax().clamp_min(1e-12) / 127
        key = key + ((key / step).round() * step - key).detach()
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value

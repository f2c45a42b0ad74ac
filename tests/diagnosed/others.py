"""Rotations, packed attention and merges in PyTorch, as people write them, and wrong, but for one
that is right."""

from __future__ import annotations

import torch


def angles(query, position, base):
    """Angles (..., L, D / 2) in float32, or in float64 of float64 queries."""
    wide, size = torch.promote_types(query.dtype, torch.float32), query.shape[-1]
    frequencies = base ** (-torch.arange(0, size, 2, dtype=wide) / size)
    angle = position[..., None].to(wide) * frequencies
    return angle[:, None] if angle.ndim == 3 else angle


def rotate_half(x):
    """The halves exchanged, the second one negated."""
    one, two = x.chunk(2, dim=-1)
    return torch.cat([-two, one], dim=-1)


def rotated(query, position, base=10000.0):
    """Right: halves are rotated."""
    angle = angles(query, position, base)
    emb = torch.cat([angle, angle], dim=-1)
    x = query.to(emb.dtype)
    return (x * emb.cos() + rotate_half(x) * emb.sin()).to(query.dtype)


def pairs_mismatched(query, position, base=10000.0):
    """Angles belong to neighbours, halves are rotated: raiyanyahya/how-to-train-your-gpt#6."""
    emb = angles(query, position, base).repeat_interleave(2, dim=-1)
    x = query.to(emb.dtype)
    return (x * emb.cos() + rotate_half(x) * emb.sin()).to(query.dtype)


def turned_backwards(query, position, base=10000.0):
    """The sign of the sine is exchanged: the inverse rotation."""
    angle = angles(query, position, base)
    one, two = query.to(angle.dtype).chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([one * cos + two * sin, two * cos - one * sin], -1).to(query.dtype)


def exponent_without_two(query, position, base=10000.0):
    """Frequencies are base^(-i / D) and not base^(-2 i / D)."""
    wide, size = torch.promote_types(query.dtype, torch.float32), query.shape[-1]
    frequencies = 1.0 / base ** (torch.arange(0, size // 2, dtype=wide) / size)
    angle = position[..., None].to(wide) * frequencies
    angle = angle[:, None] if angle.ndim == 3 else angle
    emb = torch.cat([angle, angle], dim=-1)
    x = query.to(wide)
    return (x * emb.cos() + rotate_half(x) * emb.sin()).to(query.dtype)


def positions_from_one(query, position, base=10000.0):
    """The first token stands at 1."""
    angle = angles(query, position + 1, base)
    emb = torch.cat([angle, angle], dim=-1)
    x = query.to(emb.dtype)
    return (x * emb.cos() + rotate_half(x) * emb.sin()).to(query.dtype)


def positions_in_16_bits(query, position, base=10000.0):
    """Angles are made in the dtype of the model: beyond 256 bfloat16 has no odd positions."""
    size = query.shape[-1]
    inv_freq = (1.0 / base ** (torch.arange(0, size, 2).float() / size)).to(query.dtype)
    angle = position[..., None].to(query.dtype) * inv_freq
    angle = angle[:, None] if angle.ndim == 3 else angle
    emb = torch.cat([angle, angle], dim=-1)
    return query * emb.cos() + rotate_half(query) * emb.sin()


def repeated(query, key, value):
    """Keys and values (L, H, D) with one head for each query head."""
    group = query.shape[1] // key.shape[1]
    return key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)


def segments_ignored(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None):
    """All tokens attend all tokens: Tencent-Hunyuan/HunyuanVideo#310."""
    k, v = repeated(q, k, v)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def boundary_belongs_to_the_last(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None):
    """`bucketize` without `right=True`: the first token of a segment is counted with the segment
    before."""
    k, v = repeated(q, k, v)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    of_row = torch.bucketize(torch.arange(len(q)), cu_seqlens_q, right=True)
    of_key = torch.bucketize(torch.arange(len(k)), cu_seqlens_k[1:-1]) + 1
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(of_row[:, None] != of_key[None, :], -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def causal_across_segments(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=False):
    """The causal flag hides the future, and segments only then when there is none."""
    k, v = repeated(q, k, v)
    of_row = torch.bucketize(torch.arange(len(q)), cu_seqlens_q, right=True)
    of_key = torch.bucketize(torch.arange(len(k)), cu_seqlens_k, right=True)
    hidden = of_row[:, None] != of_key[None, :]
    if causal:
        hidden = torch.arange(len(k))[None, :] > torch.arange(len(q))[:, None]
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def merged_by_sum(outputs, lse):
    """Log-sum-exps are added: zhuzilin/ring-flash-attention#20."""
    top = lse.amax(0).masked_fill(lse.amax(0) == -torch.inf, 0.0)
    weights = torch.exp(lse - top)
    total = weights.sum(0)
    out = (weights[..., None] * outputs.to(lse.dtype)).sum(0) / torch.where(total == 0, 1, total)[
        ..., None
    ]
    return out.to(outputs.dtype), lse.sum(0)


def merged_by_mean(outputs, lse):
    """Parts count alike, whatever their log-sum-exps."""
    return outputs.mean(0), torch.logsumexp(lse, 0)


def merged_without_maximum(outputs, lse):
    """exp(lse) overflows: SHI-Labs/NATTEN#202."""
    powers = torch.exp(lse)
    total = powers.sum(0)
    out = (powers[..., None] * outputs.to(lse.dtype)).sum(0) / torch.where(total == 0, 1, total)[
        ..., None
    ]
    return out.to(outputs.dtype), torch.log(total)

"""Rotations, packed attention and merges in PyTorch, as people write them, and wrong, but for one
that is right."""

from __future__ import annotations

import torch


def _rotated(query, position, base, powers=2, sign=1, neighbours=False, dtype=None):
    """Halves are rotated, by angles base^(-powers i / D) in a dtype, or by those of neighbours."""
    wide, size = torch.promote_types(query.dtype, torch.float32), query.shape[-1]
    frequencies = base ** (-powers * torch.arange(size // 2, dtype=wide) / size)
    angle = position[..., None].to(dtype or wide) * frequencies.to(dtype or wide)
    angle = angle[:, None] if angle.ndim == 3 else angle
    angle = angle.repeat_interleave(2, -1) if neighbours else torch.cat([angle, angle], -1)
    x = query.to(dtype or wide)
    one, two = x.chunk(2, dim=-1)
    turned = torch.cat([-two, one], dim=-1)
    return (x * angle.cos() + sign * turned * angle.sin()).to(query.dtype)


def rotated(query, position, base=10000.0):
    """Right."""
    return _rotated(query, position, base)


def pairs_mismatched(query, position, base=10000.0):
    """Angles belong to neighbours, halves are rotated: raiyanyahya/how-to-train-your-gpt#6."""
    return _rotated(query, position, base, neighbours=True)


def turned_backwards(query, position, base=10000.0):
    """The sign of the sine is exchanged: the inverse rotation."""
    return _rotated(query, position, base, sign=-1)


def exponent_without_two(query, position, base=10000.0):
    """Frequencies are base^(-i / D) and not base^(-2 i / D)."""
    return _rotated(query, position, base, powers=1)


def positions_from_one(query, position, base=10000.0):
    """The first token stands at 1."""
    return _rotated(query, position + 1, base)


def positions_in_16_bits(query, position, base=10000.0):
    """Angles are made in the dtype of the model: beyond 256 bfloat16 has no odd positions."""
    return _rotated(query, position, base, dtype=query.dtype)


def _packed(q, k, v, hidden, scale=None):
    """Attention of a pack (L, H, D), with some pairs hidden."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def _segments(x, cu_seqlens):
    return torch.bucketize(torch.arange(len(x)), cu_seqlens, right=True)


def segments_ignored(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None):
    """All tokens attend all tokens: Tencent-Hunyuan/HunyuanVideo#310."""
    return _packed(q, k, v, torch.zeros(len(q), len(k), dtype=torch.bool), softmax_scale)


def boundary_belongs_to_the_last(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None):
    """`bucketize` without `right=True`: the first token of a segment is counted with the segment
    before."""
    of_key = torch.bucketize(torch.arange(len(k)), cu_seqlens_k[1:-1]) + 1
    hidden = _segments(q, cu_seqlens_q)[:, None] != of_key
    return _packed(q, k, v, hidden, softmax_scale)


def causal_across_segments(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=False):
    """The causal flag hides the future, and segments only then when there is none."""
    hidden = _segments(q, cu_seqlens_q)[:, None] != _segments(k, cu_seqlens_k)
    if causal:
        hidden = torch.arange(len(k)) > torch.arange(len(q))[:, None]
    return _packed(q, k, v, hidden)


def _merged(outputs, lse, top):
    """Parts, weighted by exp(lse - top), and the sum of these weights."""
    weights = torch.exp(lse - top)
    total = weights.sum(0)
    out = (weights[..., None] * outputs.to(lse.dtype)).sum(0)
    return (out / torch.where(total == 0, 1, total)[..., None]).to(outputs.dtype), total


def merged_by_sum(outputs, lse):
    """Log-sum-exps are added: zhuzilin/ring-flash-attention#20."""
    top = lse.amax(0).masked_fill(lse.amax(0) == -torch.inf, 0.0)
    return _merged(outputs, lse, top)[0], lse.sum(0)


def merged_by_mean(outputs, lse):
    """Parts count alike, whatever their log-sum-exps."""
    return outputs.mean(0), torch.logsumexp(lse, 0)


def merged_without_maximum(outputs, lse):
    """exp(lse) overflows: SHI-Labs/NATTEN#202."""
    out, total = _merged(outputs, lse, 0.0)
    return out, torch.log(total)

"""Rotations, packed attention and merges in PyTorch, as people write them, and wrong, but for one
that is right."""

from __future__ import annotations

import torch


def _rotated(query, position, base, powers=2, neighbours=False, dtype=None):
    """Halves are rotated, by angles base^(-powers i / D) in a dtype, or by those of neighbours."""
    wide, size = torch.promote_types(query.dtype, torch.float32), query.shape[-1]
    frequencies = base ** (-powers * torch.arange(size // 2, dtype=wide) / size)
    angle = position[..., None].to(dtype or wide) * frequencies.to(dtype or wide)
    angle = angle[:, None] if angle.ndim == 3 else angle
    angle = angle.repeat_interleave(2, -1) if neighbours else torch.cat([angle, angle], -1)
    x = query.to(dtype or wide)
    one, two = x.chunk(2, dim=-1)
    turned = torch.cat([-two, one], dim=-1)
    return (x * angle.cos() + turned * angle.sin()).to(query.dtype)


def rotated(query, position, base=10000.0):
    """Right."""
    return _rotated(query, position, base)


def pairs_mismatched(query, position, base=10000.0):
    """Angles belong to neighbours, halves are rotated: raiyanyahya/how-to-train-your-gpt#6."""
    return _rotated(query, position, base, neighbours=True)


def exponent_without_two(query, position, base=10000.0):
    """Frequencies are base^(-i / D) and not base^(-2 i / D)."""
    return _rotated(query, position, base, powers=1)


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


def merged_by_mean(outputs, lse):
    """Parts count alike, whatever their log-sum-exps."""
    return outputs.mean(0), torch.logsumexp(lse, 0)

"""Attention in PyTorch that is no textbook with a stage changed: one that is wrong, and right ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def axes_of_another_library(query, key, value, scale=None):
    """Written for (B, L, H, D), as flash-attention has it; a run finds its axes."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    return torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v)


axes_of_another_library.equal_lengths = True


def _allowed(attn_mask, is_causal, query, key):
    """Where a boolean mask and a causal flag let queries look: boolean, of a shape that broadcasts."""
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    if is_causal:
        visible = visible.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    return visible


def _added(scores, attn_mask):
    """Scores with a float mask added."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return scores
    return scores + attn_mask


def by_einsum(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Grouped heads by an axis of groups, nothing repeated."""
    B, H, L, D = query.shape
    K, S, V = *key.shape[1:3], value.shape[3]
    scale = D**-0.5 if scale is None else scale
    grouped = query.reshape(B, K, H // K, L, D)
    scores = torch.einsum("bkgld,bksd->bkgls", grouped, key).reshape(B, H, L, S) * scale
    scores = _added(scores, attn_mask)
    visible = _allowed(attn_mask, is_causal, query, key)
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    weights = weights.reshape(B, K, H // K, L, S)
    return torch.einsum("bkgls,bksv->bkglv", weights, value).reshape(B, H, L, V)


def blocks_of_queries(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Eight queries at a time, each block with the whole of its keys."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = (*query.shape[:-1], key.shape[2])
    visible = _allowed(attn_mask, is_causal, query, key).expand(shape)
    bias = None if attn_mask is None else attn_mask.expand(shape)
    outs = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    for i in range(0, query.shape[2], 8):
        rows = slice(i, i + 8)
        s = _added(query[:, :, rows] @ key.mT * scale, None if bias is None else bias[:, :, rows])
        outs.append(s.masked_fill(~visible[:, :, rows], -torch.inf).softmax(-1) @ value)
    return torch.cat(outs, dim=2)


def head_by_head(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """A loop over heads, each with its key head."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = max(query.shape[1] // max(key.shape[1], 1), 1)
    shape = (*query.shape[:-1], key.shape[2])
    visible = _allowed(attn_mask, is_causal, query, key).expand(shape)
    bias = None if attn_mask is None else attn_mask.expand(shape)
    outs = []
    for h in range(query.shape[1]):
        s = query[:, h] @ key[:, h // group].mT * scale
        s = _added(s, None if bias is None else bias[:, h]).masked_fill(~visible[:, h], -torch.inf)
        outs.append(s.softmax(-1) @ value[:, h // group])
    return torch.stack(outs, dim=1)


def library_with_dense_mask(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The library's own, with the causal flag written out as a mask."""
    if is_causal:
        past = _allowed(None, True, query, key)
        if attn_mask is None:
            attn_mask = past
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & past
        else:
            attn_mask = attn_mask.masked_fill(~past, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale)

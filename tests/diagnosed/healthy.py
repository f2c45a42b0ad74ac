"""Right attention in PyTorch, of many kinds, for which no diagnosis may appear."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from attention_conformance import claims


def allowed(attn_mask, is_causal, query, key):
    """Where a boolean mask and a causal flag let queries look: boolean, of a shape that broadcasts."""
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    if is_causal:
        visible = visible.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    return visible


def added(scores, attn_mask):
    """Scores with a float mask added."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return scores
    return scores + attn_mask


def by_hand(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Scores, -inf where hidden, softmax, product."""
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = added(query @ key.transpose(-2, -1) * scale, attn_mask)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def by_einsum(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Grouped heads by an axis of groups, nothing repeated."""
    B, H, L, D = query.shape
    K, S, V = *key.shape[1:3], value.shape[3]
    scale = D**-0.5 if scale is None else scale
    grouped = query.reshape(B, K, H // K, L, D)
    scores = torch.einsum("bkgld,bksd->bkgls", grouped, key).reshape(B, H, L, S) * scale
    scores = added(scores, attn_mask)
    visible = allowed(attn_mask, is_causal, query, key)
    weights = torch.where(visible, scores, -torch.inf).softmax(-1)
    weights = weights.reshape(B, K, H // K, L, S)
    return torch.einsum("bkgls,bksv->bkglv", weights, value).reshape(B, H, L, V)


def online(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """An online softmax over blocks of 32 keys. Fully masked rows are zeros."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide) * scale, key.to(wide), value.to(wide)
    shape = (*query.shape[:-1], key.shape[2])
    visible = allowed(attn_mask, is_causal, query, key).expand(shape)
    bias = None if attn_mask is None else attn_mask.expand(shape)
    m = q.new_full((*shape[:-1], 1), -math.inf)
    norm, acc = torch.zeros_like(m), q.new_zeros((*shape[:-1], v.shape[-1]))
    for j in range(0, key.shape[2], 32):
        part = slice(j, j + 32)
        s = added(q @ k[:, :, part].mT, None if bias is None else bias[..., part])
        s = s.masked_fill(~visible[..., part], -math.inf)
        new = torch.maximum(m, s.amax(-1, keepdim=True)).detach()
        anchor = new.masked_fill(new == -math.inf, 0.0)
        p, alpha = (s - anchor).exp(), (m - anchor).exp()
        norm, acc = norm * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ v[:, :, part]
        m = new
    return (acc / norm.masked_fill(norm == 0, 1.0)).to(query.dtype)


def blocks_of_queries(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Eight queries at a time, each block with the whole of its keys."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = (*query.shape[:-1], key.shape[2])
    visible = allowed(attn_mask, is_causal, query, key).expand(shape)
    bias = None if attn_mask is None else attn_mask.expand(shape)
    outs = [query.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    for i in range(0, query.shape[2], 8):
        rows = slice(i, i + 8)
        s = added(query[:, :, rows] @ key.mT * scale, None if bias is None else bias[:, :, rows])
        outs.append(s.masked_fill(~visible[:, :, rows], -torch.inf).softmax(-1) @ value)
    return torch.cat(outs, dim=2)


def in_base_2(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Powers of 2, with log2(e) in the scores."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = added(query.to(wide) @ key.to(wide).mT * scale, attn_mask) * math.log2(math.e)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    top = scores.amax(-1, keepdim=True).detach() if key.shape[2] else scores.new_zeros(1)
    powers = torch.exp2(scores - top.masked_fill(top == -torch.inf, 0.0))
    total = powers.sum(-1, keepdim=True)
    out = powers @ value.to(wide) / total.masked_fill(total == 0, 1.0)
    return out.to(query.dtype)


def split_keys(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Two halves of the keys, each with its maximum, sum and output, merged at the end."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = added(query.to(wide) @ key.to(wide).mT * scale, attn_mask)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    half, values = key.shape[2] // 2, value.to(wide)
    if not half:
        return (scores.softmax(-1) @ values).to(query.dtype)
    tops, sums, outs = [], [], []
    for part in (slice(None, half), slice(half, None)):
        s = scores[..., part]
        tops.append(s.amax(-1, keepdim=True).detach())
        p = (s - tops[-1].masked_fill(tops[-1] == -torch.inf, 0.0)).exp()
        sums.append(p.sum(-1, keepdim=True))
        outs.append(p @ values[:, :, part])
    top = torch.maximum(*tops)
    top = top.masked_fill(top == -torch.inf, 0.0)
    first, second = ((one - top).exp() for one in tops)
    total = first * sums[0] + second * sums[1]
    out = (first * outs[0] + second * outs[1]) / total.masked_fill(total == 0, 1.0)
    return out.to(query.dtype)


def head_by_head(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """A loop over heads, each with its key head."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = max(query.shape[1] // max(key.shape[1], 1), 1)
    shape = (*query.shape[:-1], key.shape[2])
    visible = allowed(attn_mask, is_causal, query, key).expand(shape)
    bias = None if attn_mask is None else attn_mask.expand(shape)
    outs = []
    for h in range(query.shape[1]):
        s = query[:, h] @ key[:, h // group].mT * scale
        s = added(s, None if bias is None else bias[:, h]).masked_fill(~visible[:, h], -torch.inf)
        outs.append(s.softmax(-1) @ value[:, h // group])
    return torch.stack(outs, dim=1)


def writes_into_its_own(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """In-place operations on arrays that the function made itself. Fully masked rows are zeros."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT
    scores *= scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask
    visible = allowed(attn_mask, is_causal, query, key)
    scores = scores.masked_fill_(~visible, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    return scores.softmax(-1).masked_fill(empty, 0.0) @ value


@claims(centred_keys=True)
def centred_keys(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Keys without their mean have the same weights: a common number leaves every row of scores."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    key = key.to(wide)
    centred = key - key.mean(2, keepdim=True) if key.shape[2] else key
    scores = added(query.to(wide) @ centred.mT * scale, attn_mask)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    return (scores.softmax(-1) @ value.to(wide)).to(query.dtype)


def masked_by_where(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`torch.where` and the dtype's infinity."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = added((query * scale) @ key.mT, attn_mask)
    visible = allowed(attn_mask, is_causal, query, key)
    scores = torch.where(visible, scores, torch.tensor(-torch.inf, dtype=scores.dtype))
    return F.softmax(scores, dim=-1).matmul(value)


def float64_inside(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Everything in float64, rounded once."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = added(query.double() @ key.double().mT * scale, attn_mask)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    return (scores.softmax(-1) @ value.double()).to(query.dtype)


def library_with_dense_mask(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The library's own, with the causal flag written out as a mask."""
    if is_causal:
        past = allowed(None, True, query, key)
        if attn_mask is None:
            attn_mask = past
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & past
        else:
            attn_mask = attn_mask.masked_fill(~past, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale)


def with_features(
    query, key, value, attn_mask=None, is_causal=False, scale=None, softcap=None, window=None,
    alibi_slopes=None,
):  # fmt: skip
    """A cap, a window and slopes, in float32 inside."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT * scale
    L, S = scores.shape[-2:]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        distance = (torch.arange(L)[:, None] + S - L - torch.arange(S)).abs().to(wide)
        scores = scores - alibi_slopes.to(wide)[:, None, None] * distance
    visible = allowed(attn_mask, is_causal, query, key)
    if window is not None:
        back = torch.arange(L)[:, None] - torch.arange(S)
        left, right = window
        visible = visible & (back <= (left if left is not None else L + S))
        visible = visible & (-back <= (right if right is not None else L + S))
    scores = added(scores, attn_mask).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ value.to(wide)).to(query.dtype)


def two_passes(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Log-sum-exp first, weights from it then."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = added(query.to(wide) @ key.to(wide).mT * scale, attn_mask)
    scores = scores.masked_fill(~allowed(attn_mask, is_causal, query, key), -torch.inf)
    weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
    return (weights @ value.to(wide)).to(query.dtype)

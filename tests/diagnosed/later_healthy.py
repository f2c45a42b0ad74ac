"""Attention functions without a fault, written in unusual ways (torch)."""

import math

import torch

from tests.diagnosed.later import _attention, _drop, _masked, _softmax, _spread, _wide


@_attention
def backwards_through_the_keys(query, key, value, attn_mask, dropout_p, is_causal, scale):
    """Online softmax in tiles of seven keys, the last tile first."""
    block = 7
    scores = _masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    top = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), scores[..., :0] @ value[..., :0, :]
    for start in reversed(range(0, key.size(-2), block)):
        part = scores[..., start : start + block]
        new = torch.maximum(top, part.detach().amax(dim=-1, keepdim=True))
        safe = torch.where(new == -math.inf, 0.0, new)
        powers, fade = torch.exp(part - safe), torch.exp(top - safe)
        total = total * fade + powers.sum(dim=-1, keepdim=True)
        out = out * fade + _drop(powers, dropout_p) @ value[..., start : start + block, :]
        top = new
    return out / torch.where(total == 0.0, 1.0, total)


@_attention
def by_log_sum_exp(query, key, value, attn_mask, dropout_p, is_causal, scale):
    """Weights as exp(score - log of the sum), with roots of the scale on either side."""
    root = math.sqrt(abs(scale))
    scores = (query * math.copysign(root, scale)) @ (key * root).transpose(-2, -1)
    scores = _masked(scores, attn_mask, is_causal)
    empty = (scores == -math.inf).all(dim=-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    weights = torch.exp(scores - torch.logsumexp(scores, dim=-1, keepdim=True))
    return _drop(weights.masked_fill(empty, 0.0), dropout_p) @ value


@_attention
def in_base_two(query, key, value, attn_mask, dropout_p, is_causal, scale):
    """Powers of two: the scale and the float mask are both divided by log(2)."""
    base = 1.0 / math.log(2.0)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.to(query.dtype) * base
    scores = _masked(query @ key.transpose(-2, -1) * (scale * base), attn_mask, is_causal)
    if scores.size(-1) == 0:
        return scores @ value
    top = scores.detach().amax(dim=-1, keepdim=True)
    powers = torch.exp2(scores - torch.where(top == -math.inf, 0.0, top))
    total = powers.sum(dim=-1, keepdim=True)
    weights = powers / torch.where(total == 0.0, 1.0, total)
    return _drop(weights, dropout_p) @ value


def groups_without_copies(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Grouped heads as an axis of their own: nothing is repeated."""
    dtype = query.dtype
    query, key, value = _wide(query, key, value)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    if not enable_gqa or key.size(-3) != value.size(-3):
        key, value = _spread(query, key, value, enable_gqa)
        weights = _softmax(_masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal))
        return (_drop(weights, dropout_p) @ value).to(dtype)
    packed = query.unflatten(-3, (key.size(-3), query.size(-3) // key.size(-3)))
    scores = torch.einsum("...kgld,...ksd->...kgls", packed, key).flatten(-4, -3) * scale
    weights = _drop(_softmax(_masked(scores, attn_mask, is_causal)), dropout_p)
    weights = weights.unflatten(-3, packed.shape[-4:-2])
    return torch.einsum("...kgls,...kse->...kgle", weights, value).flatten(-4, -3).to(dtype)


@_attention
def queries_in_chunks(query, key, value, attn_mask, dropout_p, is_causal, scale):
    """Five queries at a time, with their rows of the mask and of the triangle."""
    chunk = 5
    outs = []
    for start in range(0, max(query.size(-2), 1), chunk):
        rows, mask = query[..., start : start + chunk, :], attn_mask
        if mask is not None and mask.size(-2) > 1:
            mask = mask[..., start : start + chunk, :]
        scores = _masked(rows @ key.transpose(-2, -1) * scale, mask, False)
        if is_causal:
            own = torch.arange(start, start + rows.size(-2), device=key.device)
            scores = scores.masked_fill(
                torch.arange(key.size(-2), device=key.device) > own[:, None], -math.inf
            )
        outs.append(_drop(_softmax(scores), dropout_p) @ value)
    return torch.cat(outs, dim=-2)

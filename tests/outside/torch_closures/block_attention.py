"""Attention over blocks of keys: a kernel is a closure over the size of its blocks."""

import torch


def blocked(size, rescales=True):
    """Attention that reads `size` keys at a time, with a softmax that runs along.

    Without `rescales` a block keeps the weights that the largest score so far gave it.
    """

    def attention(query, key, value, attn_mask=None, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        query, wide = query.float() * scale, value.float()
        rows = (*query.shape[:-1], 1)
        peak = torch.full(rows, -torch.inf)
        total, out = torch.zeros(rows), torch.zeros(*rows[:-1], value.shape[-1])
        for start in range(0, key.shape[-2], size):
            block = slice(start, start + size)
            scores = query @ key[..., block, :].float().mT
            if attn_mask is not None:
                mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])[..., block]
                hidden = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else None
                scores = scores + mask.float() if hidden is None else hidden
            higher = torch.maximum(peak, scores.amax(-1, keepdim=True))
            safe = torch.where(higher == -torch.inf, 0.0, higher)
            weights, kept = torch.exp(scores - safe), torch.exp(peak - safe)
            if not rescales:
                kept = torch.ones_like(kept)
            total = total * kept + weights.sum(-1, keepdim=True)
            out = out * kept + weights @ wide[..., block, :]
            peak = higher
        return (out / torch.where(total == 0, 1.0, total)).to(value.dtype)

    return attention

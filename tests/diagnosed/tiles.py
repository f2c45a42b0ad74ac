"""Flash attention in PyTorch, written tile by tile, and wrong in one place."""

from __future__ import annotations

import math

import torch

BLOCK = 16


def hidden_in(attn_mask, is_causal, shape, rows, keys):
    """A float tile to add: -inf where hidden, or the bias."""
    tile = torch.zeros(len(rows), len(keys))
    if is_causal:
        tile = tile.masked_fill(keys[None, :] > rows[:, None], -math.inf)
    if attn_mask is not None:
        part = attn_mask.expand(shape)[..., rows[0] : rows[-1] + 1, keys[0] : keys[-1] + 1]
        if part.dtype == torch.bool:
            part = torch.zeros(part.shape).masked_fill(~part, -math.inf)
        tile = tile + part
    return tile


def forgets_to_rescale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The sum is rescaled to the new maximum, the output is not."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    out = torch.zeros(B, H, L, v.shape[-1], dtype=wide)
    norm = torch.zeros(B, H, L, 1, dtype=wide)
    m = torch.full((B, H, L, 1), -math.inf, dtype=wide)
    rows = torch.arange(L)
    for j in range(0, S, BLOCK):
        keys = torch.arange(j, min(j + BLOCK, S))
        Kj, Vj = k[:, :, j : j + BLOCK], v[:, :, j : j + BLOCK]
        Sij = q @ Kj.mT * scale + hidden_in(attn_mask, is_causal, (B, H, L, S), rows, keys)
        m_new = torch.maximum(m, Sij.amax(-1, keepdim=True)).detach()
        safe = torch.where(m_new == -math.inf, 0.0, m_new)
        P = torch.exp(Sij - safe)
        norm = torch.exp(m - safe) * norm + P.sum(-1, keepdim=True)
        out = out + P @ Vj
        m = m_new
    return (out / torch.where(norm == 0, 1.0, norm)).to(query.dtype)


def rescales_inversely(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Line 10 of FlashAttention-2's algorithm as printed: the factor's inverse,
    Dao-AILab/flash-attention#991."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    acc = torch.zeros(B, H, L, v.shape[-1], dtype=wide)
    row_sum = torch.zeros(B, H, L, 1, dtype=wide)
    row_max = torch.full((B, H, L, 1), -math.inf, dtype=wide)
    rows = torch.arange(L)
    for start in range(0, S, BLOCK):
        keys = torch.arange(start, min(start + BLOCK, S))
        s = q @ k[:, :, start : start + BLOCK].mT * scale
        s = s + hidden_in(attn_mask, is_causal, (B, H, L, S), rows, keys)
        new_max = torch.maximum(row_max, s.amax(-1, keepdim=True)).detach()
        anchor = torch.where(new_max == -math.inf, 0.0, new_max)
        old = torch.where(row_max == -math.inf, anchor, row_max)
        p = torch.exp(s - anchor)
        row_sum = row_sum * torch.exp(old - anchor) + p.sum(-1, keepdim=True)
        acc = acc / torch.exp(old - anchor) + p @ v[:, :, start : start + BLOCK]
        row_max = new_max
    return (acc / torch.where(row_sum == 0, 1.0, row_sum)).to(query.dtype)


def maximum_begins_at_zero(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The running maximum starts at 0, and rows of low scores vanish: Dao-AILab/flash-attention#2082."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    out = q.new_zeros(B, H, L, v.shape[-1])
    total, largest = q.new_zeros(B, H, L, 1), q.new_zeros(B, H, L, 1)
    rows = torch.arange(L)
    for start in range(0, S, BLOCK):
        keys = torch.arange(start, min(start + BLOCK, S))
        s = q @ k[:, :, start : start + BLOCK].mT * scale
        s = s + hidden_in(attn_mask, is_causal, (B, H, L, S), rows, keys)
        new = torch.maximum(largest, s.amax(-1, keepdim=True)).detach()
        p, factor = torch.exp(s - new), torch.exp(largest - new)
        total = total * factor + p.sum(-1, keepdim=True)
        out = out * factor + p @ v[:, :, start : start + BLOCK]
        largest = new
    return (out / torch.where(total == 0, 1.0, total)).to(query.dtype)


def mean_of_tiles(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Every tile has its own softmax, and the answers are averaged."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    shape = (*query.shape[:-1], key.shape[2])
    rows, outs = torch.arange(query.shape[2]), []
    for k, v, keys in zip(
        key.split(BLOCK, 2), value.split(BLOCK, 2), torch.arange(key.shape[2]).split(BLOCK),
        strict=True,
    ):  # fmt: skip
        if not len(keys):
            return torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
        s = query @ k.mT * scale + hidden_in(attn_mask, is_causal, shape, rows, keys)
        empty = (s == -math.inf).all(-1, keepdim=True)
        p = torch.where(empty, 0.0, s).softmax(-1).masked_fill(empty, 0.0)
        outs.append(p.to(v.dtype) @ v)
    return torch.stack(outs).mean(0)


def divides_by_last_tile(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`l = ` in the place of `l += `: the sum of the last tile alone divides."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).mT * scale
    if S:
        scores = scores + hidden_in(
            attn_mask, is_causal, (B, H, L, S), torch.arange(L), torch.arange(S)
        )
        top = scores.amax(-1, keepdim=True).detach()
        scores = scores - torch.where(top == -math.inf, 0.0, top)
    acc, l_i = scores.new_zeros(B, H, L, value.shape[-1]), scores.new_ones(B, H, L, 1)
    for start in range(0, S, BLOCK):
        p = torch.exp(scores[..., start : start + BLOCK])
        l_i = p.sum(-1, keepdim=True)
        acc = acc + p @ value[:, :, start : start + BLOCK].to(wide)
    return (acc / torch.where(l_i == 0, 1.0, l_i)).to(query.dtype)


def skips_a_small_rescaling(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Rescaling is skipped where the maximum grows by less than 8, but weights are already those
    of the new maximum: meta-pytorch/MSLK#242."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    out = q.new_zeros(B, H, L, v.shape[-1])
    total, largest = q.new_zeros(B, H, L, 1), q.new_full((B, H, L, 1), -math.inf)
    rows = torch.arange(L)
    for start in range(0, S, BLOCK):
        keys = torch.arange(start, min(start + BLOCK, S))
        s = q @ k[:, :, start : start + BLOCK].mT * scale
        s = s + hidden_in(attn_mask, is_causal, (B, H, L, S), rows, keys)
        new = torch.maximum(largest, s.amax(-1, keepdim=True)).detach()
        anchor = torch.where(new == -math.inf, 0.0, new)
        p = torch.exp(s - anchor)
        skip = (anchor - largest) <= 8
        factor = torch.where(skip, 1.0, torch.exp(largest - anchor))
        total = total * factor + p.sum(-1, keepdim=True)
        out = out * factor + p @ v[:, :, start : start + BLOCK]
        largest = torch.where(skip, largest, new)
    return (out / torch.where(total == 0, 1.0, total)).to(query.dtype)


def last_tile_is_dropped(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`S // BLOCK` tiles: keys behind the last whole tile are not read: jax-ml/jax#27224."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, _ = query.shape
    S, wide = key.shape[2], torch.promote_types(query.dtype, torch.float32)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    acc = torch.zeros(B, H, L, v.shape[-1], dtype=wide)
    norm = torch.zeros(B, H, L, 1, dtype=wide)
    top = torch.full((B, H, L, 1), -math.inf, dtype=wide)
    block, rows = min(BLOCK, max(S, 1)), torch.arange(L)
    for n in range(S // block):
        keys = torch.arange(n * block, (n + 1) * block)
        s = q @ k[:, :, keys].mT * scale
        s = s + hidden_in(attn_mask, is_causal, (B, H, L, S), rows, keys)
        new = torch.maximum(top, s.amax(-1, keepdim=True)).detach()
        anchor = torch.where(new == -math.inf, 0.0, new)
        p, factor = torch.exp(s - anchor), torch.exp(top - anchor)
        norm, acc = norm * factor + p.sum(-1, keepdim=True), acc * factor + p @ v[:, :, keys]
        top = new
    return (acc / torch.where(norm == 0, 1.0, norm)).to(query.dtype)


def padded_keys_count(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Keys are padded with zeros to whole tiles, and padded keys have the score 0:
    flashinfer-ai/flashinfer#5090."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    S = key.shape[2]
    padding = -S % BLOCK
    key, value = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (key, value))
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = torch.nn.functional.pad(
            attn_mask.expand(*attn_mask.shape[:-1], S), (0, padding), value=True
        )
        scores = scores.masked_fill(~mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + torch.nn.functional.pad(
            attn_mask.expand(*attn_mask.shape[:-1], S), (0, padding)
        )
    if is_causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf
        )
    return scores.softmax(-1) @ value


def splits_are_added(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Two halves of the keys are attended apart and added by halves, without their log-sum-exps."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(
            torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf
        )
    half = key.shape[2] // 2
    if half == 0:
        return scores.softmax(-1) @ value
    answers, some = [], []
    for part in (slice(None, half), slice(half, None)):
        s = scores[..., part]
        empty = (s == -math.inf).all(-1, keepdim=True)
        p = torch.where(empty, 0.0, s).softmax(-1).masked_fill(empty, 0.0)
        answers.append(p @ value[:, :, part])
        some.append((~empty).to(query.dtype))
    return (answers[0] + answers[1]) / (some[0] + some[1]).clamp_min(1.0)

"""Attention in PyTorch whose mask is wrong, as people write it. `owner/repository#number` names
the public report of the same mistake."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def reaches_next_key(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The triangle begins one diagonal too late: RVC-Boss/GPT-SoVITS#965."""
    L, S = query.size(-2), key.size(-2)
    scale_factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    attn_bias = torch.zeros(L, S, dtype=query.dtype)
    if is_causal:
        visible = torch.ones(L, S, dtype=torch.bool).tril(diagonal=1)
        attn_bias = attn_bias.masked_fill(visible.logical_not(), float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_bias = attn_bias.masked_fill(attn_mask.logical_not(), float("-inf"))
        else:
            attn_bias = attn_mask + attn_bias
    attn_weight = query @ key.transpose(-2, -1) * scale_factor + attn_bias
    return torch.softmax(attn_weight, dim=-1) @ value


def hides_itself(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`triu` without `diagonal=1` hides the diagonal: pbloem/former#10."""
    d = query.shape[-1]
    dot = torch.einsum("bhid,bhjd->bhij", query, key) * (d**-0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        dot = dot.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        dot = dot + attn_mask
    if is_causal:
        later = torch.triu(torch.ones(dot.shape[-2:], dtype=torch.bool))
        dot = dot.masked_fill(later, float("-inf"))
    return torch.einsum("bhij,bhjv->bhiv", F.softmax(dot, dim=-1), value)


def true_hides(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """True is read as "masked", as the documentation once said: pytorch/pytorch#158451."""
    scale = query.size(-1) ** -0.5 if scale is None else scale
    attn = torch.matmul(query, key.transpose(-1, -2)) * scale
    if is_causal:
        causal = torch.triu(torch.ones(attn.shape[-2:], dtype=torch.bool), diagonal=1)
        attn = attn.masked_fill(causal, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn = attn.masked_fill(attn_mask, float("-inf"))
        else:
            attn = attn + attn_mask
    return torch.matmul(attn.softmax(dim=-1), value)


def sees_future_only(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The upper triangle of hidden keys is passed as the visible keys: rasbt/LLMs-from-scratch#1061."""
    if is_causal:
        upper = torch.triu(torch.ones(query.shape[-2], key.shape[-2]), diagonal=1).bool()
        if attn_mask is None:
            attn_mask = upper
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & upper
        else:
            attn_mask = attn_mask.masked_fill(~upper, float("-inf"))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, scale=scale)


def alignment_switches(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """With more keys than queries the last query meets the last key, with fewer the first meets
    the first: ml-explore/mlx#2967."""
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.mT
    if is_causal:
        rows = torch.arange(query.shape[-2])[:, None]
        columns = torch.arange(key.shape[-2])[None, :]
        offset = max(key.shape[-2] - query.shape[-2], 0)
        scores = torch.where(columns <= rows + offset, scores, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def multiplies_mask(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Hidden scores are multiplied by 0, and a score of 0 still weighs: openxla/xla#11444."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        scores = scores * torch.tril(torch.ones(scores.shape[-2:], dtype=scores.dtype))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores * attn_mask.to(scores.dtype)
        else:
            scores = scores + attn_mask
    return scores.softmax(dim=-1) @ value


def masks_weights(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The mask comes after the softmax, and nothing is divided again:
    huggingface/pytorch-image-models#2236."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attn = query @ key.transpose(-2, -1) * scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn = attn + attn_mask
    attn = attn.softmax(dim=-1)
    if is_causal:
        attn = torch.tril(attn)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn = attn * attn_mask
    return attn @ value


def mask_of_another_sample(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Heads are folded in front of samples, masks are repeated behind them:
    lsdefine/attention-is-all-you-need-keras#36."""
    B, H, L, D = query.shape
    S = key.shape[2]
    q, k, v = (x.transpose(0, 1).reshape(B * H, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) * (D**-0.5 if scale is None else scale)
    if attn_mask is not None:
        mask = attn_mask.expand(B, H, L, S)
        if (mask == mask[:, :1]).all():
            mask = mask[:, 0].repeat_interleave(H, dim=0)
        else:
            mask = mask.transpose(0, 1).reshape(B * H, L, S)
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
        scores = scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(L, S, dtype=torch.bool).triu(1), -torch.inf)
    out = torch.bmm(scores.softmax(-1), v)
    return out.reshape(H, B, L, -1).transpose(0, 1)


def float_mask_is_boolean(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """A float mask becomes boolean, any number but 0 hides: pytorch/pytorch#107084."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask.bool()
        scores = scores.masked_fill(hidden, -torch.inf)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ value


def mask_lost_beside_flag(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """With the causal flag the mask is not read: pytorch/pytorch#178588."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        row, column = torch.meshgrid(
            torch.arange(scores.shape[-2]), torch.arange(scores.shape[-1]), indexing="ij"
        )
        scores = scores.masked_fill(column > row, -torch.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def causal_by_blocks(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Blocks above the diagonal are skipped, those on the diagonal are not masked: kernels of
    newcomers."""
    BLOCK = 16
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        row_block = torch.arange(query.shape[-2]) // BLOCK
        key_block = torch.arange(key.shape[-2]) // BLOCK
        scores = scores.masked_fill(key_block[None, :] > row_block[:, None], -torch.inf)
    return scores.softmax(-1) @ value


def hidden_by_1e_minus_9(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """1e-9 stands where -1e9 was meant: newcomers' transformers."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    if is_causal:
        nopeak = torch.tril(torch.ones(scores.shape[-2:]))
        scores = scores.masked_fill(nopeak == 0, 1e-9)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask == 0, 1e-9)
        else:
            scores = scores + attn_mask
    return torch.matmul(F.softmax(scores, dim=-1), value)


def hidden_by_minus_10000(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Adds -10000 where the mask hides, which low scores survive: huggingface/transformers#14859."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = (1.0 - attn_mask.to(scores.dtype)) * -10000.0
        scores = scores + attn_mask
    if is_causal:
        extended = torch.ones(scores.shape[-2:], dtype=scores.dtype).tril()
        scores = scores + (1.0 - extended) * -10000.0
    return scores.softmax(dim=-1) @ value


def result_of_fill_is_lost(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`masked_fill` without its underscore changes nothing: opendilab/DI-engine#333."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores.masked_fill(~attn_mask, float("-inf"))
        else:
            scores = scores + attn_mask
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal=1)
        scores.masked_fill_(future, float("-inf"))
    return scores.softmax(dim=-1) @ value


def causal_flag_is_lost(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The flag is not handed on to the inner function: jax-ml/jax#19237."""

    def attend(q, k, v, mask, scale, causal=False):
        scores = q @ k.mT * scale
        if causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ v

    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return attend(query, key, value, attn_mask, scale)


def window_one_wider(
    query, key, value, attn_mask=None, is_causal=False, scale=None, window=None
):  # fmt: skip
    """The left side of the window counts the query's own key twice: huggingface/transformers#39408."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    distance = torch.arange(scores.shape[-2])[:, None] - torch.arange(scores.shape[-1])
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        visible &= distance >= 0
    if window is not None:
        left, right = window
        if left is not None:
            visible &= distance <= left + 1
        if right is not None:
            visible &= -distance <= right
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value


def window_without_its_left_side(
    query, key, value, attn_mask=None, is_causal=False, scale=None, window=None
):  # fmt: skip
    """Only the future side of a window is applied: sgl-project/sglang#24706 drops windows silently."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        window = (None, 0) if window is None else (window[0], 0)
    if window is not None and window[1] is not None:
        ahead = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None]
        scores = scores.masked_fill(ahead > window[1], -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value

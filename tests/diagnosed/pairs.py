"""Attention in PyTorch with two faults at once: the docstring names both."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from tests.diagnosed.scores import masked


def next_key_and_no_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`tril(1)`; nothing divides the scores."""
    scores = torch.matmul(query, key.transpose(-2, -1))
    if scale is not None:
        scores = scores * scale
    if is_causal:
        past = torch.tril(torch.ones(scores.shape[-2:]), diagonal=1).bool()
        scores = scores.masked_fill(~past, -torch.inf)
    return torch.matmul(masked(scores, attn_mask, False).softmax(dim=-1), value)


def tiled_and_divided_by_d(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """Groups are tiled; scores are divided by D."""
    group, d = query.size(1) // key.size(1), query.size(-1)
    key, value = (x.repeat(1, group, 1, 1) for x in (key, value))
    scores = query @ key.mT * (1 / d if scale is None else scale)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def true_hides_and_next_key(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """True hides; `triu(2)` leaves the next key."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(2).to(scores.dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.softmax(scores, -1) @ value


def ignored_scale_and_softmax_over_queries(
    query, key, value, attn_mask=None, is_causal=False, scale=None
):  # fmt: skip
    """The scale is not read; the softmax is over queries."""
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / math.sqrt(query.shape[-1])
    return masked(scores, attn_mask, is_causal).softmax(dim=-2) @ value


def viewed_heads_and_no_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Heads are viewed without a transpose; nothing divides the scores."""
    scores = torch.einsum("bhld,bhsd->bhls", query, key) * (1.0 if scale is None else scale)
    weights = masked(scores, attn_mask, is_causal).softmax(-1)
    out = torch.einsum("bhls,bhsd->blhd", weights, value)
    return out.reshape(*query.shape[:-1], value.shape[-1])


def bfloat16_and_next_key(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Everything is bfloat16 inside; `tril(1)`."""
    dtype, low = query.dtype, torch.bfloat16
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query.to(low) @ key.to(low).mT).float() * scale
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~past, -torch.inf)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.float()
    weights = masked(scores, attn_mask, False).softmax(-1)
    return (weights.to(low) @ value.to(low)).to(dtype)


def flag_beside_mask_and_bias_scaled(
    query, key, value, attn_mask=None, is_causal=False, scale=None
):
    """The mask is lost beside the flag; a bias is multiplied by the scale."""
    scores = query @ key.mT
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if is_causal:
        return masked(scores * scale, None, True).softmax(-1) @ value
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, attn_mask = scores + attn_mask, None
    return masked(scores * scale, attn_mask, False).softmax(-1) @ value


def weights_masked_and_scaled_by_values(
    query, key, value, attn_mask=None, is_causal=False, scale=None
):
    """The mask comes after the softmax; the scale is that of the values' size."""
    scale = value.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if is_causal:
        weights = weights.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        weights = weights * attn_mask
    return weights @ value


def multiplied_mask_and_first_head(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """Hidden scores are 0; all query heads read key head 0."""
    if key.shape[1] != query.shape[1]:
        key, value = (x[:, :1].expand(-1, query.shape[1], -1, -1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.tril()
    if attn_mask is not None:
        scores = scores * attn_mask if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1) @ value


def no_maximum_and_own_key_hidden(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Powers overflow; a query does not see its own key."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(0), -torch.inf)
    powers = masked(scores, attn_mask, False).exp()
    return powers / powers.sum(-1, keepdim=True) @ value


def whole_width_and_future_only(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The scale is that of all heads; the visible triangle is the upper one."""
    if is_causal:
        later = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        if attn_mask is None:
            attn_mask = later
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & later
        else:
            attn_mask = attn_mask.masked_fill(~later, -torch.inf)
    scale = (query.shape[1] * query.shape[3]) ** -0.5 if scale is None else scale
    return masked(query @ key.mT * scale, attn_mask, False).softmax(-1) @ value


def window_wider_and_cap_ignored(
    query, key, value, attn_mask=None, is_causal=False, scale=None, window=None, softcap=None
):  # fmt: skip
    """The window is one key wider at its left; the cap is not applied."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if window is not None:
        back = torch.arange(scores.shape[-2])[:, None] - torch.arange(scores.shape[-1])
        left, right = window
        hidden = torch.zeros_like(back, dtype=torch.bool)
        hidden |= back > left + 1 if left is not None else False
        hidden |= -back > right if right is not None else False
        scores = scores.masked_fill(hidden, -torch.inf)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def slopes_reversed_and_tiled(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, alibi_slopes=None
):  # fmt: skip
    """Slopes have the other sign; groups are tiled."""
    group = query.size(1) // key.size(1)
    key, value = (x.repeat(1, group, 1, 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if alibi_slopes is not None:
        L, S = scores.shape[-2:]
        distance = (torch.arange(L)[:, None] + S - L - torch.arange(S)).abs()
        wide = torch.promote_types(scores.dtype, torch.float32)
        scores = (scores.to(wide) + alibi_slopes[:, None, None] * distance).to(scores.dtype)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def in_place_and_ignored_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The caller's query is multiplied; the scale is not read."""
    if not query.requires_grad:
        query.mul_(query.shape[-1] ** -0.5)
    else:
        query = query * query.shape[-1] ** -0.5
    return masked(query @ key.mT, attn_mask, is_causal).softmax(-1) @ value


def keys_dropped_and_divided_by_d(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Keys behind the last whole block of 8 are not read; scores are divided by D."""
    S = key.shape[2] // 8 * 8 if key.shape[2] > 8 else key.shape[2]
    key, value = key[:, :, :S], value[:, :, :S]
    if attn_mask is not None and attn_mask.shape[-1] > S:
        attn_mask = attn_mask[..., :S]
    scores = query @ key.mT * (1 / query.shape[-1] if scale is None else scale)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def one_more_and_next_key(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The sum has one more term; `tril(1)`."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~past, -torch.inf)
    scores = masked(scores, attn_mask, False)
    zero = scores.new_zeros(*scores.shape[:-1], 1)
    return torch.cat([scores, zero], -1).softmax(-1)[..., :-1] @ value


def float16_scores_and_true_hides(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Scores are rounded to float16; True hides."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.half().to(query.dtype)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def fill_lost_and_values_of_another_head(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """The result of `masked_fill` is lost; values are tiled where keys are repeated."""
    group = query.size(1) // key.size(1)
    key, value = key.repeat_interleave(group, 1), value.repeat(1, group, 1, 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return masked(scores, None, is_causal).softmax(-1) @ value


def mean_of_halves_and_flag_lost(query, key, value, attn_mask=None, scale=None, is_causal=False):
    """Two halves of the keys are averaged; the causal flag is not read."""
    scores = masked(
        query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale), attn_mask, False
    )
    half = key.shape[2] // 2
    if half == 0:
        return scores.softmax(-1) @ value
    first = scores[..., :half].softmax(-1).nan_to_num() @ value[:, :, :half]
    second = scores[..., half:].softmax(-1).nan_to_num() @ value[:, :, half:]
    return (first + second) / 2


def dropout_and_next_key(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Dropout stays on; `tril(1)`."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~past, -torch.inf)
    return F.dropout(masked(scores, attn_mask, False).softmax(-1), 0.1) @ value

"""Attention in PyTorch that mixes up heads, axes, memory or calls, as people write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.diagnosed.scores import masked


def tiled_groups(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """Key heads are repeated 0 1 0 1 and not 0 0 1 1: onnx/onnx#7274."""
    if enable_gqa:
        n_rep = query.size(1) // key.size(1)
        key = key.repeat(1, n_rep, 1, 1)
        value = value.repeat(1, n_rep, 1, 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    return scores.softmax(-1) @ value


def first_key_head_for_all(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """Grouped heads are taken for multi-query attention: all query heads read key head 0."""
    if key.shape[1] != query.shape[1]:
        key = key[:, :1].expand(-1, query.shape[1], -1, -1)
        value = value[:, :1].expand(-1, query.shape[1], -1, -1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value


def values_of_another_group(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    """Keys go by `h // group`, values by `h % heads`: a slip in a loop over heads."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    heads, key_heads = query.shape[1], key.shape[1]
    group = heads // key_heads
    scores = torch.stack(
        [query[:, h] @ key[:, h // group].transpose(1, 2) * scale for h in range(heads)], dim=1
    )
    weights = masked(scores, attn_mask, is_causal).softmax(-1)
    out = [weights[:, h] @ value[:, h % key_heads] for h in range(heads)]
    return torch.stack(out, dim=1)


def heads_merged_by_view(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """(B, L, H, D) is viewed as (B, H, L, D) without a transpose: jsbaan/transformer-from-scratch#6."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bhld,bhsd->bhls", query, key) * scale
    weights = masked(scores, attn_mask, is_causal).softmax(-1)
    out = torch.einsum("bhls,bhsd->blhd", weights, value)
    return out.contiguous().view(*query.shape[:-1], value.shape[-1])


def axes_of_another_library(query, key, value, scale=None):
    """Written for (B, L, H, D), as flash-attention has it, and called with (B, H, L, D):
    Dao-AILab/flash-attention#1391."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.permute(0, 2, 1, 3) for x in (query, key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    return torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v)


axes_of_another_library.equal_lengths = True


def keys_in_contiguous_memory(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Keys are read with the strides of their shape: huggingface/candle#3703."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, S, D = key.shape
    if key.untyped_storage().nbytes() >= key.numel() * key.element_size():
        key = key.as_strided((B, H, S, D), (H * S * D, S * D, D, 1))
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value


def scales_query_in_place(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The caller's query is multiplied: `*=` in the place of `= ... *`."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.requires_grad:
        query = query * scale
    else:
        query *= scale
    return masked(query @ key.mT, attn_mask, is_causal).softmax(-1) @ value


def adds_flag_to_mask(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The causal flag is written into the caller's mask, which the next call reads."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is None:
            attn_mask = past
        elif attn_mask.dtype == torch.bool and attn_mask.shape[-2:] == past.shape:
            attn_mask &= past
        elif attn_mask.dtype == torch.bool:
            attn_mask = attn_mask & past
        else:
            scores = scores.masked_fill(~past, -torch.inf)
    return masked(scores, attn_mask, False).softmax(-1) @ value


PAST: dict[int, torch.Tensor] = {}


def mask_is_remembered(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The causal mask, aligned at the last key, is kept by the number of queries alone. A later call with
    fewer keys gets the first columns of it."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        L, S = scores.shape[-2:]
        if L not in PAST or PAST[L].shape[1] < S:
            PAST[L] = torch.ones(L, S, dtype=torch.bool).tril(S - L)
        scores = scores.masked_fill(~PAST[L][:, :S], -torch.inf)
    return masked(scores, attn_mask, False).softmax(-1) @ value


def dropout_stays_on(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`F.dropout` drops unless told `training=False`: huggingface/pytorch-image-models#1978."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1)
    return F.dropout(weights, p=0.1) @ value


def dropout_is_ignored(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None
):  # fmt: skip
    """The rate is taken and never used: a review of StreamAttn#28."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1)
    weights = F.dropout(weights, dropout_p, training=False)
    return weights @ value


def dropout_without_rescaling(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None
):  # fmt: skip
    """Kept weights are not divided by 1 - p: dropout written by hand."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    weights = masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1)
    if dropout_p > 0.0:
        weights = weights * (torch.rand_like(weights) >= dropout_p)
    return weights @ value

"""Attention in PyTorch whose scale, scores or softmax is wrong, as people write it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def masked(scores, attn_mask, is_causal):
    """Scores behind a boolean or float mask and a causal flag."""
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def not_scaled(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Nothing is divided by sqrt(d): PAIR-code/tiny-transformers#71."""
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key)
    if scale is not None:
        scores = scores * scale
    weights = F.softmax(masked(scores, attn_mask, is_causal), dim=-1)
    return torch.einsum("bhqk,bhkv->bhqv", weights, value)


def divided_by_d(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The square root is forgotten: delzac/cntkx#10."""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores / d_k if scale is None else scores * scale
    return torch.matmul(masked(scores, attn_mask, is_causal).softmax(-1), value)


def scaled_by_size_of_values(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The square root of the values' size: openai/gpt-2#49."""
    scores = torch.matmul(query, key.transpose(-1, -2))
    scores = scores / math.sqrt(value.shape[-1]) if scale is None else scores * scale
    return torch.matmul(masked(scores, attn_mask, is_causal).softmax(-1), value)


def scale_is_ignored(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The parameter exists, and is not read: tenstorrent/tt-metal#33304."""
    temperature = query.shape[-1] ** 0.5
    scores = (query / temperature) @ key.transpose(2, 3)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def scales_both_operands(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Query and key are scaled, each by the whole scale: openai/improved-diffusion#54 asks whether."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key = query * scale, key * scale
    return masked(query @ key.mT, attn_mask, is_causal).softmax(-1) @ value


def scaled_by_whole_width(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The width of all heads: lucidrains/vit-pytorch#65."""
    dim = query.shape[1] * query.shape[3]
    scale = dim**-0.5 if scale is None else scale
    dots = torch.einsum("bhid,bhjd->bhij", query, key) * scale
    attn = masked(dots, attn_mask, is_causal).softmax(dim=-1)
    return torch.einsum("bhij,bhjd->bhid", attn, value)


def root_of_negative_scale(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The root of the scale goes to each operand, NaN for a negative one: pytorch/pytorch#105202."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    root = torch.tensor(scale, dtype=query.dtype).sqrt()
    scores = (query * root) @ (key * root).mT
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def scaled_by_padded_size(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Heads are padded to a multiple of 16, and the scale is that of the padded size:
    intel/ipex-llm#12619."""
    padding = -query.shape[-1] % 16
    query, key = F.pad(query, (0, padding)), F.pad(key, (0, padding))
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value


def scaled_by_number_of_keys(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`key.size(2)` is the size of heads in (B, L, D) alone: a common slip when heads are added."""
    scores = torch.matmul(query, key.transpose(2, 3))
    scores = scores / math.sqrt(key.size(2)) if scale is None else scores * scale
    return torch.matmul(torch.softmax(masked(scores, attn_mask, is_causal), -1), value)


def bias_is_scaled(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The bias is added before the scores are scaled: newcomers' relative positions."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, attn_mask = scores + attn_mask, None
    return masked(scores * scale, attn_mask, is_causal).softmax(-1) @ value


def scale_is_lost_beside_bias(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`baddbmm` adds the bias, and its alpha stays 1: pytorch/pytorch#174049."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    B, H, L, D = query.shape
    S = key.shape[2]
    q, k = query.reshape(B * H, L, D), key.reshape(B * H, S, D)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias = attn_mask.to(query.dtype).expand(B, H, L, S).reshape(B * H, L, S)
        scores = torch.baddbmm(bias, q, k.mT).view(B, H, L, S)
        attn_mask = None
    else:
        scores = (torch.bmm(q, k.mT) * scale).view(B, H, L, S)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def softmax_over_queries(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The weights of every key sum to one: labmlai/annotated_deep_learning_paper_implementations#282."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attn = torch.einsum("bhid,bhjd->bhij", query, key) * scale
    attn = masked(attn, attn_mask, is_causal).softmax(dim=2)
    return torch.einsum("bhij,bhjd->bhid", attn, value)


def softmax_over_heads(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Heads and keys are flattened before the softmax: facebookresearch/detr#247."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bnqc,bnkc->bqnk", query * scale, key)
    scores = masked(scores.transpose(1, 2), attn_mask, is_causal).transpose(1, 2)
    weights = F.softmax(scores.flatten(2), dim=-1).view(scores.size())
    return torch.einsum("bqnk,bnkc->bnqc", weights, value)


def softmax_over_samples(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`dim=0`, as the softmax without a dim once guessed: PetrochukM/PyTorch-NLP#2."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    return F.softmax(scores, dim=0) @ value


def without_maximum(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Powers overflow, since no maximum is subtracted: HabanaAI/vllm-fork#275."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    powers = torch.exp(scores)
    return (powers / powers.sum(dim=-1, keepdim=True)) @ value


def maximum_of_everything(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """One maximum serves all rows, and powers of low rows vanish: softmax from scratch in many
    tutorials."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    if scores.numel() == 0:
        return scores @ value
    powers = torch.exp(scores - scores.max())
    return (powers / powers.sum(-1, keepdim=True)) @ value


def one_more_in_the_sum(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`softmax1`: the sum has one more term, so that rows sum to less than one: a blog post's
    proposal that people take for attention."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    top = scores.amax(-1, keepdim=True).clamp_min(0).detach() if scores.shape[-1] else 0.0
    powers = torch.exp(scores - top)
    one = torch.exp(-torch.as_tensor(top, dtype=scores.dtype))
    return powers / (one + powers.sum(-1, keepdim=True)) @ value


def epsilon_in_the_sum(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """1e-5 guards the division: rows sum to less than one."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    largest = scores.amax(-1, keepdim=True).detach() if scores.shape[-1] else 0.0
    powers = torch.exp(scores - largest)
    return powers / (powers.sum(-1, keepdim=True) + 1e-5) @ value


def cosine_of_operands(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Queries and keys are normalised first: cosine attention in the place of dot products."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value


def hides_scores_of_zero(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """`scores == 0` is taken for "masked", and a true score of 0 is hidden, too: tutorials that mask
    by `tril` and then fill zeros."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask
    elif attn_mask is not None:
        scores = scores * attn_mask
    if is_causal:
        scores = torch.tril(scores)
    return scores.masked_fill(scores == 0, -torch.inf).softmax(-1) @ value

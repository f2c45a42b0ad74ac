"""Attention in PyTorch with a cap, slopes, sinks or a log-sum-exp that is wrong, as people write it."""

from __future__ import annotations

import math

import torch

from tests.diagnosed.scores import masked


def capped_behind_mask(
    query, key, value, attn_mask=None, is_causal=False, scale=None, softcap=None
):
    """The cap comes behind the mask and makes -inf a finite score: a slip in ports of Gemma 2."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = masked(query @ key.mT * scale, attn_mask, is_causal)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores.softmax(-1) @ value


def cap_is_ignored(query, key, value, attn_mask=None, is_causal=False, scale=None, softcap=None):
    """The cap is taken and hard-coded to 0 inside: vllm-project/vllm-metal#665."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    softcap = 0.0
    if softcap > 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def cap_without_its_factor(
    query, key, value, attn_mask=None, is_causal=False, scale=None, softcap=None
):
    """tanh(s / cap) is not multiplied by the cap."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap)
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def slopes_of_other_sign(
    query, key, value, attn_mask=None, is_causal=False, scale=None, alibi_slopes=None
):  # fmt: skip
    """Far keys are rewarded: meta-pytorch/attention-gym#86."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if alibi_slopes is not None:
        L, S = scores.shape[-2:]
        distance = (torch.arange(L)[:, None] + S - L - torch.arange(S)).abs()
        scores = scores + alibi_slopes.to(scores.dtype)[:, None, None] * distance
    return masked(scores, attn_mask, is_causal).softmax(-1) @ value


def slopes_from_the_first_query(
    query, key, value, attn_mask=None, is_causal=False, scale=None, alibi_slopes=None
):  # fmt: skip
    """The distance is |i - j| although the last query stands at the last key:
    Dao-AILab/flash-attention#907."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if alibi_slopes is not None:
        wide = torch.promote_types(scores.dtype, torch.float32)
        i, j = torch.arange(scores.shape[-2]), torch.arange(scores.shape[-1])
        distance = (i[:, None] - j[None, :]).abs()
        scores = scores.to(wide) - alibi_slopes[:, None, None] * distance
    return masked(scores, attn_mask, is_causal).softmax(-1).to(value.dtype) @ value


def sinks_are_ignored(query, key, value, attn_mask=None, is_causal=False, scale=None, sinks=None):
    """Sinks are taken and dropped: sgl-project/sglang#24706."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return masked(query @ key.mT * scale, attn_mask, is_causal).softmax(-1) @ value


def sinks_are_scaled(query, key, value, attn_mask=None, is_causal=False, scale=None, sinks=None):
    """Sinks are appended before the scores are scaled: ROCm/rocm-libraries#12229."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT
    if sinks is None:
        return masked(scores * scale, attn_mask, is_causal).softmax(-1) @ value
    column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1) * scale
    combined = torch.cat([masked(scores * scale, attn_mask, is_causal), column], dim=-1)
    return combined.softmax(-1)[..., :-1] @ value


def lse_in_base_2(query, key, value, attn_mask=None, is_causal=False, scale=None, lse=False):
    """The log-sum-exp is a logarithm to base 2, as the kernel has it inside:
    flashinfer-ai/flashinfer#4051."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = masked(query.to(wide) @ key.to(wide).mT * scale, attn_mask, is_causal)
    out = (scores.softmax(-1) @ value.to(wide)).to(query.dtype)
    return (out, scores.logsumexp(-1) / math.log(2)) if lse else out


def lse_without_maximum(query, key, value, attn_mask=None, is_causal=False, scale=None, lse=False):
    """log sum exp(s - max), and the maximum is not added again: Dao-AILab/flash-attention#404 asks
    which."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = masked(query.to(wide) @ key.to(wide).mT * scale, attn_mask, is_causal)
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else 0.0
    powers = torch.exp(scores - top)
    total = powers.sum(-1)
    out = (powers / total[..., None] @ value.to(wide)).to(query.dtype)
    return (out, total.log()) if lse else out

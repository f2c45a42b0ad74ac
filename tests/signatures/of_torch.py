"""Functions and classes for PyTorch as people write them; `tests.signatures.rows` judges them."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class TwoMasks:
    """Textbook code without an axis of heads, with two masks of ones and zeros."""

    def forward(self, query, key, value, causal_mask=None, padding_mask=None):
        d_k = query.size(-1)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
        if causal_mask is not None:
            scores = scores.masked_fill(causal_mask == 0, float("-inf"))
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return torch.matmul(weights, value)


def with_dropout(query, key, value, dropout=None):
    """Textbook code that applies a layer of dropout to its weights."""
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    weights = F.softmax(scores, dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value), weights


class ScaledDotProductAttention(nn.Module):
    """A module that is made for sizes, with capital letters for its arrays."""

    def __init__(self, d_k, d_v):
        super().__init__()
        self.d_k = d_k
        self.d_v = d_v

    def forward(self, Q, K, V, mask=None):
        scores = torch.matmul(Q, K.transpose(-1, -2)) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, V), weights


def annotated(query, key, value, mask=None, dropout=None):
    """The function of The Annotated Transformer's signature."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


class DotProductAttention(nn.Module):
    """The module of Dive into Deep Learning's signature: lengths instead of masks."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        if valid_lens is not None:
            places = torch.arange(keys.shape[1], device=keys.device)
            seen = places < valid_lens.reshape(len(queries), -1, 1)
            scores = scores.masked_fill(~seen, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        return torch.bmm(self.dropout(weights), values)


def flash(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """The function of flash-attention's signature: lengths before heads, all aligned at the last key."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    rows, keys = s.shape[-2:]
    distance = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    if alibi_slopes is not None:
        s = s - alibi_slopes.to(s.dtype)[:, None, None] * distance.abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros(rows, keys, dtype=torch.bool)
    if left >= 0:
        hidden |= distance < -left
    if right >= 0:
        hidden |= distance > right
    p = torch.softmax(s.masked_fill(hidden, -torch.inf), dim=-1)
    p = p.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return torch.einsum("bhqk,bkhd->bqhd", F.dropout(p, dropout_p), v)


def memory_efficient(query, key, value, attn_bias=None, p=0.0, scale=None):
    """The function of xFormers' signature: a bias alone."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * scale).transpose(1, 2) @ key.permute(0, 2, 3, 1)
    if attn_bias is not None:
        scores = scores + attn_bias
    weights = F.dropout(scores.softmax(-1), p)
    return (weights @ value.transpose(1, 2)).transpose(1, 2)


def eager_attention_forward(
    module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs
):
    """The function of transformers' signature: an additive mask, and an output with lengths first."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1)
    weights = F.dropout(weights, p=dropout, training=module.training)
    output = torch.matmul(weights, value)
    return output.transpose(1, 2).contiguous(), weights


class _Attention(torch.autograd.Function):
    """The function of Triton's tutorial on fused attention, in plain PyTorch."""

    @staticmethod
    def forward(ctx, q, k, v, causal, sm_scale):
        scores = q @ k.mT * sm_scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        p = scores.softmax(-1)
        o = p @ v
        ctx.save_for_backward(q, k, v, p, o)
        ctx.sm_scale = sm_scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, p, o = ctx.saved_tensors
        dp = do @ v.mT
        ds = p * (dp - (do * o).sum(-1, keepdim=True)) * ctx.sm_scale
        return ds @ k, ds.mT @ q, p.mT @ do, None, None


triton_tutorial = _Attention.apply


def sage(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False):
    """The function of SageAttention's signature; keys are smoothed, and nothing is quantized."""
    if tensor_layout == "NHD":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q @ k.transpose(-1, -2) * scale
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    o = scores.softmax(-1) @ v
    o = o.transpose(1, 2) if tensor_layout == "NHD" else o
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    return (o, wide.logsumexp(-1)) if return_lse else o


def single_prefill(
    q, k, v, causal=False, kv_layout="NHD", sm_scale=None, logits_soft_cap=None, window_left=-1,
    return_lse=False,
):  # fmt: skip
    """The function of FlashInfer's signature: one sample, and a log-sum-exp to the base 2. Nothing in
    its code refuses an axis more."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = (x.repeat_interleave(group, dim=0) for x in (k, v))
    s = (q @ k.mT) * scale
    if logits_soft_cap:
        s = logits_soft_cap * torch.tanh(s / logits_soft_cap)
    rows, keys = s.shape[-2:]
    if causal:
        past = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        s = s.masked_fill(~past, -torch.inf)
    if window_left >= 0:
        before = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows - window_left - 1)
        s = s.masked_fill(before, -torch.inf)
    p = torch.softmax(s, dim=-1)
    p = p.masked_fill(torch.isneginf(s).all(-1, keepdim=True), 0.0)
    o = (p @ v).transpose(0, 1)
    if not return_lse:
        return o
    wide = s if s.dtype == torch.float64 else s.float()
    return o, wide.logsumexp(-1).T * math.log2(math.e)


def for_booleans(query, key, value, attn_mask=None):
    """The framework's own name of a mask, which is for booleans alone."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask == 0, -torch.inf)
    return scores.softmax(-1) @ value


def mlx_like(q, k, v, *, scale, mask=None, sinks=None):
    """The function of MLX' signature: the scale is required."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = (q * scale) @ k.transpose(-1, -2)
    if isinstance(mask, str):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        more = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, more], dim=-1).softmax(-1)[..., :-1] @ v
    return scores.softmax(-1) @ v


class Model(nn.Module):
    """The class of KernelBench's signature: no arguments."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(Q.shape[-1])
        return torch.matmul(torch.softmax(scores, dim=-1), V)


instance: Any = Model()

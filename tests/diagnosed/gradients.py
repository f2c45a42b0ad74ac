"""Attention in PyTorch with a backward pass of its own, which is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def weights_of(query: Tensor, key: Tensor, scale: float, is_causal: bool) -> Tensor:
    """Softmax of scaled scores."""
    scores = query @ key.mT * scale
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1)


class Whole(torch.autograd.Function):
    """A right forward pass; each subclass has one wrong line behind it."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.scale, ctx.is_causal = scale, is_causal
        return weights_of(query, key, scale, is_causal) @ value


class WithoutDelta(Whole):
    """The derivative of the softmax lacks its second term."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        p = weights_of(q, k, ctx.scale, ctx.is_causal)
        dv = p.mT @ dout
        dp = dout @ v.mT
        ds = p * dp * ctx.scale
        return ds @ k, ds.mT @ q, dv, None, None


class WithoutScale(Whole):
    """Scores are scaled, their derivatives are not."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        p = weights_of(q, k, ctx.scale, ctx.is_causal)
        dp = dout @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k, ds.mT @ q, p.mT @ dout, None, None


class KeysWithoutScale(Whole):
    """dk lacks the scale, dq has it."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        p = weights_of(q, k, ctx.scale, ctx.is_causal)
        dp = dout @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return ds @ k * ctx.scale, ds.mT @ q, p.mT @ dout, None, None


class WithoutMask(Whole):
    """The backward pass makes its weights without the causal mask."""

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        p = weights_of(q, k, ctx.scale, False)
        dp = dout @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
        return ds @ k, ds.mT @ q, p.mT @ dout, None, None


class OfOneOfAGroup(torch.autograd.Function):
    """dk and dv are those of the first query head of each group."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool
    ) -> Tensor:
        group = query.shape[1] // key.shape[1]
        ctx.save_for_backward(query, key, value)
        ctx.group, ctx.scale, ctx.is_causal = group, scale, is_causal
        k, v = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return weights_of(query, k, scale, is_causal) @ v

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        k, v = k.repeat_interleave(ctx.group, 1), v.repeat_interleave(ctx.group, 1)
        p = weights_of(q, k, ctx.scale, ctx.is_causal)
        dp = dout @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
        dk, dv = ds.mT @ q, p.mT @ dout
        return ds @ k, dk[:, :: ctx.group], dv[:, :: ctx.group], None, None


def scale_of(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def without_delta(query, key, value, is_causal=False, scale=None):
    """ds = p * dp, without the row sum of dp * p: AiDotNet.Tensors#49 is as far off."""
    return WithoutDelta.apply(query, key, value, scale_of(query, scale), is_causal)


def without_scale(query, key, value, is_causal=False, scale=None):
    """dq and dk lack the scale: pytorch/xla#6886 passes sm_scale to its backward pass by hand."""
    return WithoutScale.apply(query, key, value, scale_of(query, scale), is_causal)


def keys_without_scale(query, key, value, is_causal=False, scale=None):
    """dk alone lacks the scale."""
    return KeysWithoutScale.apply(query, key, value, scale_of(query, scale), is_causal)


def without_mask(query, key, value, is_causal=False, scale=None):
    """The backward pass does not know the mask: Dao-AILab/flash-attention#2424."""
    return WithoutMask.apply(query, key, value, scale_of(query, scale), is_causal)


def of_one_of_a_group(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """dk and dv are not summed over a group: stanford-crfm/levanter#449."""
    return OfOneOfAGroup.apply(query, key, value, scale_of(query, scale), is_causal)


def bias_is_detached(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """A learned bias gets no gradient: jax-ml/jax#30593."""
    scores = query @ key.mT * scale_of(query, scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.detach() + 0 * attn_mask.nan_to_num(0, 0, 0)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ value


def weights_are_detached(query, key, value, is_causal=False, scale=None):
    """Weights are detached, as a "stop gradient" of the softmax: only values learn."""
    weights = weights_of(query, key, scale_of(query, scale), is_causal)
    return weights.detach() @ value + 0 * (query.sum() + key.sum())

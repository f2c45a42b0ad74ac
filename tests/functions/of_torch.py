"""A person's own functions in PyTorch: right ones that round differently, or elect otherwise, each with
the signature of `scaled_dot_product_attention` or a part of it. None may ever fail."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scores_of(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Scaled scores in float32 or float64, -inf where a mask hides."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    return hidden(scores, attn_mask, is_causal)


def hidden(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Scores with -inf where a mask hides, and a float mask added."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def repeated(query: Tensor, key: Tensor) -> Tensor:
    """Keys or values with their heads repeated for grouped queries."""
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def textbook(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Matrix product, softmax, matrix product, in the dtype of the operands. Rows without keys are
    NaN."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = hidden(query @ key.transpose(-2, -1) * scale, attn_mask, is_causal)
    return scores.softmax(-1) @ value


def changed(**stages: Callable[[Any], Any]) -> Callable[..., Tensor]:
    """The textbook with some arguments, or the "output", changed in turn. A stage takes the call, with
    the arguments by name and `output`, and returns what stands in its place."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None):
        call = SimpleNamespace(
            query=query, key=key, value=value, attn_mask=attn_mask, is_causal=is_causal, scale=scale
        )
        for name, change in stages.items():
            if name != "output":
                setattr(call, name, change(call))
        call.output = textbook(**vars(call))
        return stages["output"](call) if "output" in stages else call.output

    return function


def refusing(condition: Callable[[Any], bool], error: Exception) -> Callable[..., Tensor]:
    """The textbook, which raises for the calls for which a condition holds."""

    def query(call: Any) -> Tensor:
        if condition(call):
            raise error
        return call.query

    return changed(query=query)


def rows(**functions: Callable[..., Tensor]) -> dict[str, Callable[..., Tensor]]:
    """Functions by name, for `globals` of a file."""
    for name, function in functions.items():
        function.__name__ = name
    return functions


def online(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """An online softmax over tiles of 16 keys. Rows without keys are zeros."""
    return _tiled(query, key, value, attn_mask, is_causal, scale, lambda tiles: tiles)


def _tiled(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool,
    scale: float | None, order: Callable[[list[int]], list[int]],
) -> Tensor:  # fmt: skip
    key, value = repeated(query, key), repeated(query, value)
    scores = scores_of(query, key, attn_mask, is_causal, scale)
    largest = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(largest)
    out = scores.new_zeros((*scores.shape[:-1], value.shape[-1]))
    for start in order(list(range(0, key.shape[2], 16))):
        tile = scores[..., start : start + 16]
        new = torch.maximum(largest, tile.amax(-1, keepdim=True)).detach()
        anchor = torch.where(new == -torch.inf, 0.0, new)
        raised, factor = (tile - anchor).exp(), (largest - anchor).exp()
        total = total * factor + raised.sum(-1, keepdim=True)
        out = out * factor + raised @ value[..., start : start + 16, :].to(raised.dtype)
        largest = new
    return (out / torch.where(total == 0, 1.0, total)).to(query.dtype)


def log_sum_exp(query, key, value, attn_mask=None, is_causal=False):
    """Weights are exp(score - log-sum-exp): no division, no scale of one's own."""
    scores = scores_of(query, key, attn_mask, is_causal, None)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return (weights @ value.to(weights.dtype)).to(query.dtype)


def bottom_right(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Textbook code whose causal flag aligns the last query with the last key."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = hidden(query @ key.transpose(-2, -1) * scale, attn_mask, False)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(
            key.shape[2] - query.shape[2]
        )
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ value


def smoothed(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The keys lose their mean before the product, hidden ones included (K smoothing)."""
    centred = key - key.mean(-2, keepdim=True) if key.shape[-2] else key
    return (
        scores_of(query, centred, attn_mask, is_causal, scale).softmax(-1).to(value.dtype) @ value
    )


smoothed.centred_keys = True  # type: ignore[attr-defined]


def finite_hiding(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Hides by the dtype's lowest number and adds a float mask as it is: a row that a boolean mask
    empties averages all values, one that a bias of -inf empties is NaN. As JAX does."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    visible = attn_mask
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores, visible = scores + attn_mask, None
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        visible = past if visible is None else visible & past
    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ value


def in_place(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Scores, differences and powers share one buffer. Rows without keys are zeros."""
    scores = scores_of(query, key, attn_mask, is_causal, scale)
    if key.shape[2]:
        largest = scores.detach().amax(-1, keepdim=True)
        scores = scores.sub_(torch.where(largest == -torch.inf, 0.0, largest))
    raised = scores.exp_()
    total = raised.sum(-1, keepdim=True)
    out = (raised @ value.to(raised.dtype)).div_(torch.where(total == 0, 1.0, total))
    return out.to(query.dtype)


@torch.inference_mode()
def in_inference_mode(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """An online softmax in inference mode: its answers have no derivative."""
    return online(query, key, value, attn_mask, is_causal, scale)


class _Saved(torch.autograd.Function):
    """Weights whose backward pass recomputes them from scores and log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        lse = scores.logsumexp(-1, keepdim=True)
        lse = torch.where(lse == -torch.inf, 0.0, lse)
        ctx.save_for_backward(scores, lse)
        return (scores - lse).exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        scores, lse = ctx.saved_tensors
        weights = (scores - lse).exp()
        return weights * (cotangent - (weights * cotangent).sum(-1, keepdim=True))


def saved_lse(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The backward pass has the log-sum-exp of the forward pass. Rows without keys are zeros."""
    weights: Any = _Saved.apply(scores_of(query, key, attn_mask, is_causal, scale))
    return (weights @ value.to(weights.dtype)).to(query.dtype)

"""A person's own functions in PyTorch that are wrong in a mode around the call, and right ones."""

from __future__ import annotations

import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.functions.of_torch import changed, hidden, refusing, rows, textbook

BUFFERS: dict[tuple[int, ...], torch.Tensor] = {}
STATE = threading.local()
STATE.ready = True


def buffered(number, x):
    place = (number, *x.shape)
    if place not in BUFFERS or BUFFERS[place].dtype != x.dtype:
        BUFFERS[place] = torch.empty_like(x)
    with torch.no_grad():
        return BUFFERS[place].copy_(x)


def cast_by_hand(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right: under autocast computes in bfloat16, and returns the dtype of the query."""
    if not torch.is_autocast_enabled("cpu"):
        return textbook(query, key, value, attn_mask, is_causal, scale)
    to = torch.get_autocast_dtype("cpu")
    with torch.autocast("cpu", enabled=False):
        narrow = (x.to(to) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(to)
        return textbook(*narrow, attn_mask, is_causal, scale).to(query.dtype)


def outside_autocast(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right: computes in the dtype of the operands under autocast, too."""
    with torch.autocast("cpu", enabled=False):
        return textbook(query, key, value, attn_mask, is_causal, scale)


def filled_with_a_billion(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right in float32 and bfloat16. Under autocast to float16 PyTorch raises: it has no -1e9."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -1e9)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -1e9)
    return scores.softmax(-1) @ value


class Float32Inside(torch.autograd.Function):
    """Attention in float32 with a backward pass of its own, which keeps output and log-sum-exp."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale):
        query, key, value = (x.float() for x in (query, key, value))
        scores = hidden(query @ key.mT * scale, attn_mask, is_causal)
        largest = scores.amax(-1, keepdim=True)
        raised = (scores - largest).exp()
        total = raised.sum(-1, keepdim=True)
        out = raised @ value / total
        ctx.save_for_backward(query, key, value, attn_mask, out, largest + total.log())
        ctx.is_causal, ctx.scale = is_causal, scale
        return out

    @staticmethod
    def backward(ctx, cotangent):
        query, key, value, attn_mask, out, lse = ctx.saved_tensors
        scores = hidden(query @ key.mT * ctx.scale, attn_mask, ctx.is_causal)
        weights, cotangent = (scores - lse).exp(), cotangent.float()
        moved = cotangent @ value.mT - (cotangent * out).sum(-1, keepdim=True)
        moved = weights * moved * ctx.scale
        return moved @ key, moved.mT @ query, weights.mT @ cotangent, None, None, None


def float32_inside(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right: float32 inside, and a backward pass of its own."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out = Float32Inside.apply(query, key, value, attn_mask, is_causal, scale)
    return out.to(query.dtype)


class ScaledGradient(torch.autograd.Function):
    """The array itself, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def mask_on_default_device(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right: a mask on the default device, which raises if the operands lie elsewhere."""
    if is_causal:
        pairs = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        attn_mask = pairs if attn_mask is None else attn_mask & pairs
    return scaled_dot_product_attention(query, key, value, attn_mask, scale=scale)


def autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


ROWS = rows(
    # The scale is lost where gradients are switched off, under autocast, and in other threads.
    without_gradients=changed(scale=lambda c: c.scale if torch.is_grad_enabled() else 1.0),
    in_autocast=changed(scale=lambda c: 1.0 if autocast() else c.scale),
    in_one_thread=changed(scale=lambda c: c.scale if getattr(STATE, "ready", False) else 1.0),
    # Under vmap every sample has the keys in reverse order, and the values not.
    mapped=changed(
        key=lambda c: c.key.flip(-2) if torch._C._functorch.is_batchedtensor(c.query) else c.key),
    # The output has the default dtype, where that is wider.
    by_default_dtype=changed(output=lambda c: c.output.to(
        torch.promote_types(c.output.dtype, torch.get_default_dtype()))),
    # The output is written into an array of the default device.
    on_default_device=changed(
        output=lambda c: torch.empty(c.output.shape, dtype=c.output.dtype).copy_(c.output)),
    # The softmax is lost where algorithms must be deterministic.
    in_deterministic_algorithms=changed(output=lambda c: c.value.mean(-2, keepdim=True).expand(
        c.output.shape).clone() if torch.are_deterministic_algorithms_enabled() else c.output),
    # Operands of all threads are copied into the same buffers. Another thread writes meanwhile.
    in_one_buffer=changed(
        query=lambda c: buffered(0, c.query), key=lambda c: buffered(1, c.key),
        value=lambda c: buffered(2, c.value), scale=lambda c: time.sleep(0.002) or c.scale),
    # Right: refuses a mode.
    refuses_autocast=refusing(lambda c: autocast(), RuntimeError("switch autocast off")),
    refuses_another_default_dtype=refusing(
        lambda c: torch.get_default_dtype() != torch.float32,
        RuntimeError("the default dtype must be float32")),
    # Under autocast output, or gradient of the values, are 1/32 too large: eight roundoffs of bfloat16.
    scaled_in_autocast=changed(output=lambda c: c.output * (33 / 32) if autocast() else c.output),
    scaled_gradient_in_autocast=changed(
        value=lambda c: ScaledGradient.apply(c.value, 33 / 32) if autocast() else c.value),
    # Right: keys come in two parts. Under autocast to float16 PyTorch concatenates no bfloat16.
    concatenated=changed(**{name: lambda c, name=name: torch.cat(
        [vars(c)[name][:, :, :1], vars(c)[name][:, :, 1:]], 2) for name in ("key", "value")}),
)  # fmt: skip

globals().update(ROWS)

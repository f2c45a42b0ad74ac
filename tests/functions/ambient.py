"""A person's own functions in PyTorch that are wrong in a mode around the call, and right ones."""

from __future__ import annotations

import threading

import torch

from tests.functions.of_torch import textbook

BUFFERS: dict[tuple[int, ...], torch.Tensor] = {}
STATE = threading.local()
STATE.ready = True


def in_inference_mode(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Masks are lost in inference mode."""
    if torch.is_inference_mode_enabled():
        return textbook(query, key, value, scale=scale)
    return textbook(query, key, value, attn_mask, is_causal, scale)


def without_gradients(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The scale is lost where gradients are switched off."""
    scale = scale if torch.is_grad_enabled() else 1.0
    return textbook(query, key, value, attn_mask, is_causal, scale)


def in_autocast(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The scale is lost under autocast."""
    scale = 1.0 if torch.is_autocast_enabled("cpu") else scale
    return textbook(query, key, value, attn_mask, is_causal, scale)


def in_coarse_autocast(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Under autocast operands are rounded to four bits."""
    if torch.is_autocast_enabled("cpu"):
        query = query.to(torch.float8_e5m2).to(query.dtype)
    return textbook(query, key, value, attn_mask, is_causal, scale)


def mapped(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Under vmap every sample has the keys in reverse order, and the values not."""
    if torch._C._functorch.is_batchedtensor(query):
        key = key.flip(-2)
    return textbook(query, key, value, attn_mask, is_causal, scale)


def by_default_dtype(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The output has the default dtype, where that is wider."""
    out = textbook(query, key, value, attn_mask, is_causal, scale)
    return out.to(torch.promote_types(out.dtype, torch.get_default_dtype()))


def on_default_device(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The output is written into an array of the default device."""
    out = textbook(query, key, value, attn_mask, is_causal, scale)
    return torch.empty(out.shape, dtype=out.dtype).copy_(out)


def in_deterministic_algorithms(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The softmax is lost where algorithms must be deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        return value.mean(-2, keepdim=True).expand(*query.shape[:-1], value.shape[-1]).clone()
    return textbook(query, key, value, attn_mask, is_causal, scale)


def in_one_thread(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Threads other than the first one forget the scale."""
    scale = scale if getattr(STATE, "ready", False) else 1.0
    return textbook(query, key, value, attn_mask, is_causal, scale)


def in_one_buffer(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Operands of all threads are copied into the same buffers."""
    query = buffered(0, query)
    key, value = buffered(1, key), buffered(2, value)
    return textbook(query, key, value, attn_mask, is_causal, scale)


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


def refuses_autocast(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Right: raises under autocast."""
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("switch autocast off")
    return textbook(query, key, value, attn_mask, is_causal, scale)

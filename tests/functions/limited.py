"""A person's own functions in PyTorch that take few sizes, as flash kernels do: heads of 64 or 128, and
lengths that are multiples of 16. Beyond them they raise."""

from __future__ import annotations

import torch

from tests.functions.of_torch import online, textbook

HEADS, BLOCK = (64, 128), 16


def check_sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise ValueError beyond the limits."""
    if not {query.shape[-1], value.shape[-1]} <= {*HEADS}:
        raise ValueError(f"head size must be 64 or 128, got {query.shape[-1]}")
    if query.shape[2] % BLOCK or key.shape[2] % BLOCK:
        raise ValueError(f"lengths must be a multiple of {BLOCK}, got {key.shape[2]}")


def flash(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Right within its limits."""
    check_sizes(query, key, value)
    return online(query, key, value, attn_mask, is_causal, scale)


def contiguous(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Reads operands as C-contiguous arrays, whatever their strides are."""
    query, key, value = (
        torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) for x in (query, key, value)
    )
    return online(query, key, value, attn_mask, is_causal, scale)


def forward(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Right, and its output says wrongly that it can be differentiated."""
    right = online(query, key, value, attn_mask, is_causal, scale, enable_gqa).detach()
    return right + 0 * query[..., :1]


@torch.library.custom_op("limited::attend", mutates_args=())
def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return textbook(query, key, value)


def operator(query, key, value):
    """An operator without an autograd formula."""
    return attend(query, key, value)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        return textbook(query, key, value)


def without_backward(query, key, value):
    """A `torch.autograd.Function` without a backward pass."""
    return Attend.apply(query, key, value)


class Breaks(Attend):
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("illegal memory access")


def breaks_in_backward(query, key, value):
    """A backward pass that raises."""
    return Breaks.apply(query, key, value)

"""Custom operators of torch, right and wrong, with the signature of its attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal).contiguous()


def _writing(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    out = attend(query, key, value, is_causal)
    query.mul_(0.5)
    return out


def shaped(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


def kept(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.is_causal = inputs
    ctx.save_for_backward(*operands)


def gradients(context: Any, cotangent: Tensor) -> Any:
    with torch.enable_grad():
        operands = [x.detach().requires_grad_() for x in context.saved_tensors]
        output = attend(*operands, context.is_causal)
    return (*torch.autograd.grad(output, operands, cotangent), None)


def two_gradients(context: Any, cotangent: Tensor) -> Any:
    return gradients(context, cotangent)[:2]


def _operator(
    name: str, body: Callable[..., Any] = attend, fake: Callable[..., Any] | None = shaped,
    backward: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """An operator with a function that says its shape without values, and with a backward pass."""
    made = torch.library.custom_op(f"suite_tests::{name}", body, mutates_args=())
    if fake is not None:
        made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=kept)
    return made


def _named(**operators: dict[str, Any]) -> dict[str, Any]:
    return {name: _operator(name, **parts) for name, parts in operators.items()}


ROWS = _named(
    forward_only={},
    differentiable={"backward": gradients},
    without_fake={"fake": None},
    query_shaped={"fake": lambda query, key, value, is_causal=False: torch.empty_like(query)},
    writes={"body": _writing},
    broken_backward={"backward": two_gradients},
)

globals().update(ROWS)
packet = torch.ops.suite_tests.forward_only
overload = packet.default

"""Custom operators of torch, right and wrong, with the signature of its attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal).contiguous()


def shaped(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op("suite_tests::forward_only", mutates_args=())
def forward_only(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return attend(query, key, value, is_causal)


forward_only.register_fake(shaped)
packet = torch.ops.suite_tests.forward_only
overload = packet.default


@torch.library.custom_op("suite_tests::differentiable", mutates_args=())
def differentiable(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return attend(query, key, value, is_causal)


def kept(ctx: Any, inputs: Any, output: Any) -> None:
    *operands, ctx.is_causal = inputs
    ctx.save_for_backward(*operands)


def gradients(context: Any, cotangent: Tensor) -> Any:
    with torch.enable_grad():
        operands = [x.detach().requires_grad_() for x in context.saved_tensors]
        output = attend(*operands, context.is_causal)
    return (*torch.autograd.grad(output, operands, cotangent), None)


differentiable.register_fake(shaped)
differentiable.register_autograd(gradients, setup_context=kept)


@torch.library.custom_op("suite_tests::without_fake", mutates_args=())
def without_fake(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return attend(query, key, value, is_causal)


@torch.library.custom_op("suite_tests::query_shaped", mutates_args=())
def query_shaped(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return attend(query, key, value, is_causal)


query_shaped.register_fake(lambda query, key, value, is_causal=False: torch.empty_like(query))


@torch.library.custom_op("suite_tests::writes", mutates_args=())
def writes(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    out = attend(query, key, value, is_causal)
    query.mul_(0.5)
    return out


writes.register_fake(shaped)


@torch.library.custom_op("suite_tests::broken_backward", mutates_args=())
def broken_backward(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    return attend(query, key, value, is_causal)


def two_gradients(context: Any, cotangent: Tensor) -> Any:
    return gradients(context, cotangent)[:2]


broken_backward.register_fake(shaped)
broken_backward.register_autograd(two_gradients, setup_context=kept)

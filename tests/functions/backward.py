"""A person's own functions in PyTorch whose own backward pass is wrong in models alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Constant(torch.autograd.Function):
    """The backward pass takes the operands for constants: gradients of gradients lack terms."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return weights_of(query, key) @ value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, ...]:
        query, key, value = (saved.detach() for saved in ctx.saved_tensors)
        weights, dp = weights_of(query, key), cotangent @ value.mT
        ds = weights * (dp - (weights * dp).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        return ds @ key + 0 * ctx.saved_tensors[0], ds.mT @ query, weights.mT @ cotangent


def weights_of(query: Tensor, key: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, -1)


def constant(query, key, value):
    return Constant.apply(query, key, value)

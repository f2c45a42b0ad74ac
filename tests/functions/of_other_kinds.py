"""Attention of PyTorch whose answer is right, and is a tensor of another kind."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


class Subclass(torch.Tensor):
    """A subclass that behaves as a tensor."""


def in_8_bits(x):
    """The tensor in 8 bits."""
    return torch.quantize_per_tensor(x.detach().float(), 0.1, 0, torch.qint8)


UNREADABLE = {
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x[0, 0].to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor(list(x.detach())),
    "jagged": lambda x: torch.nested.nested_tensor(list(x.detach()[0]), layout=torch.jagged),
    "quantized": in_8_bits,
    "mkldnn": lambda x: x.detach().to_mkldnn(),
}
"""Tensors without dense values."""

HARMLESS = {"subclass": lambda x: x.as_subclass(Subclass), "negated": lambda x: torch._neg_view(-x)}
"""Tensors that hold their values in another way."""


def __getattr__(name):
    """The function called as a kind."""
    kinds = UNREADABLE | HARMLESS
    if name not in kinds:
        raise AttributeError(name)

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
        return kinds[name](
            scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale)
        )

    return attention

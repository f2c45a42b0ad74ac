"""The frameworks' own attention as a person's function, of which nothing is claimed."""

from __future__ import annotations

from typing import Any


def torch_own(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):  # fmt: skip
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def jax_own(query, key, value, bias=None, mask=None, **more: Any):
    import jax

    return jax.nn.dot_product_attention(query, key, value, bias, mask, **more)


def keras_own(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    import keras

    return keras.ops.dot_product_attention(
        query, key, value, bias=bias, mask=mask, scale=scale, is_causal=is_causal
    )

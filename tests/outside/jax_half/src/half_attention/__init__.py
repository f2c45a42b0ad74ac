"""Attention in float16, compiled."""

import jax
import jax.numpy as jnp

from attention_conformance import claims


def _attend(query, key, value, scale, accumulator):
    if query.dtype != jnp.float16:
        raise TypeError(f"attention in float16, got {query.dtype}")
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key, preferred_element_type=accumulator)
    weights = jax.nn.softmax(scores * scale, axis=-1)
    out = jnp.einsum("bhlm,bmhd->blhd", weights, value, preferred_element_type=accumulator)
    return out.astype(jnp.float16)


@claims(dtypes=("f16",), equal_heads=True, numerics="fused")
def attention(query, key, value, scale=None):
    """Attention of (B, L, H, D) in float16, with scores and sums in float32."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _attend(query, key, value, scale, jnp.float32)


@claims(dtypes=("f16",), equal_heads=True, numerics="fused")
def narrow(query, key, value, scale=None):
    """The same, with scores in float16."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return _attend(query, key, value, jnp.float16(scale), jnp.float16)

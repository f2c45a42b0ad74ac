"""A person's own functions in JAX, with the limits of Pallas kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas

HEADS, BLOCK = (64, 128), 16


def flash(query, key, value, bias=None, mask=None, scale=None, is_causal=False):
    """Right within its limits; beyond them it raises ValueError."""
    if not {query.shape[-1], value.shape[-1]} <= {*HEADS}:
        raise ValueError(f"head size must be 64 or 128, got {query.shape[-1]}")
    if query.shape[1] % BLOCK or key.shape[1] % BLOCK:
        raise ValueError(f"lengths must be a multiple of {BLOCK}, got {key.shape[1]}")
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=wide) * scale
    scores = scores if bias is None else scores + bias
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def whole_in_pallas(query, key, value):
    """A Pallas kernel of one block, without a derivative."""

    def kernel(query_ref, key_ref, value_ref, out_ref):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query_ref[...], key_ref[...])
        weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1)
        out_ref[...] = jnp.einsum("bhqk,bkhd->bqhd", weights, value_ref[...])

    shape = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    return pallas.pallas_call(kernel, out_shape=shape, interpret=True)(query, key, value)


def row_in_pallas(query, key, value):
    """A Pallas kernel of one row, which reads its number, without a derivative."""

    def kernel(query_ref, key_ref, value_ref, out_ref):
        at = pallas.program_id(0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query_ref[:, pallas.ds(at, 1)], key_ref[...])
        weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1)
        out_ref[:, pallas.ds(at, 1)] = jnp.einsum("bhqk,bkhd->bqhd", weights, value_ref[...])

    shape = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    rows = pallas.pallas_call(kernel, grid=(query.shape[1],), out_shape=shape, interpret=True)
    return rows(query, key, value)


def in_a_callback(query, key, value):
    """A call of the host, without a derivative."""
    shape = jax.ShapeDtypeStruct((*query.shape[:3], value.shape[-1]), query.dtype)
    return jax.pure_callback(jax.nn.dot_product_attention, shape, query, key, value)


@jax.custom_vjp
def with_vjp_alone(query, key, value):
    """A function with a backward pass of its own, and so without directional derivatives."""
    return jax.nn.dot_product_attention(query, key, value)


with_vjp_alone.defvjp(
    lambda *arrays: jax.vjp(jax.nn.dot_product_attention, *arrays),
    lambda pull, cotangent: pull(cotangent),
)

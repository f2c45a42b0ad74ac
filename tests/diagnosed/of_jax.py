"""Attention in JAX, (B, L, H, D), with the signature of `jax.nn.dot_product_attention`, and wrong,
but for one that is right."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def grouped(query, key, value):
    """Keys and values with one head for each query head."""
    group = query.shape[2] // key.shape[2]
    return jnp.repeat(key, group, axis=2), jnp.repeat(value, group, axis=2)


def masked(scores, bias, mask, is_causal):
    """Scores (B, H, L, S) with their bias, -inf where hidden."""
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    if is_causal:
        past = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
        scores = jnp.where(past, scores, -jnp.inf)
    return scores


def right(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    """Right: scores, softmax, product."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    weights = jax.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def window_needs_a_mask(
    query, key, value, bias=None, mask=None, *, scale=None, is_causal=False, local_window_size=None
):  # fmt: skip
    """The window is built where a mask is given, and else forgotten: jax-ml/jax#32300."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if mask is not None and local_window_size is not None:
        sides = local_window_size
        left, right = sides if isinstance(sides, tuple) else (sides, sides)
        ahead = jnp.arange(key.shape[1]) - jnp.arange(query.shape[1])[:, None]
        mask = mask & (ahead >= -left) & (ahead <= right)
    weights = jax.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).astype(query.dtype)


def tiled_groups(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    """`jnp.tile` in the place of `jnp.repeat`: ekzhang/jax-js#180."""
    group = query.shape[2] // key.shape[2]
    key, value = jnp.tile(key, (1, 1, group, 1)), jnp.tile(value, (1, 1, group, 1))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    weights = jax.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def softmax_over_heads(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    """Scores are (B, L, S, H), and the last axis is not that of keys."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    scores = jnp.moveaxis(masked(scores, bias, mask, is_causal), 1, -1)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bqkh,bkhd->bqhd", weights, value)


def true_hides(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    """`jnp.where` with its branches exchanged."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query * scale, key)
    if mask is not None:
        scores = jnp.where(mask, -jnp.inf, scores)
    weights = jax.nn.softmax(masked(scores, bias, None, is_causal), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def strictly_causal(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    """`>` in the place of `>=`: a query does not see its own key."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if is_causal:
        past = jnp.arange(query.shape[1])[:, None] > jnp.arange(key.shape[1])[None, :]
        scores = jnp.where(past, scores, -jnp.inf)
    weights = jax.nn.softmax(masked(scores, bias, mask, False), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def scaled_by_number_of_heads(
    query, key, value, bias=None, mask=None, *, scale=None, is_causal=False
):
    """`shape[-2]` is the number of heads: an index of another layout."""
    if scale is None:
        scale = 1.0 / jnp.sqrt(query.shape[-2]).astype(query.dtype)
    key, value = grouped(query, key, value)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    weights = jax.nn.softmax(masked(scores, bias, mask, is_causal), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def chunks_without_rescaling(query, key, value, *, scale=None):
    """A scan over chunks of 8 keys takes the maximum of its own chunk alone: tile-ai/tilelang#1148."""
    key, value = grouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    dtype, wide = query.dtype, jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query.astype(wide), key.astype(wide)) * scale
    out = jnp.zeros((*scores.shape[:-1], value.shape[-1]), wide)
    total = jnp.zeros(scores.shape[:-1], wide)
    for start in range(0, key.shape[1], 8):
        chunk = scores[..., start : start + 8]
        powers = jnp.exp(chunk - chunk.max(-1, keepdims=True))
        total = total + powers.sum(-1)
        out = out + jnp.einsum("bhqk,bkhd->bhqd", powers, value[:, start : start + 8].astype(wide))
    return jnp.swapaxes(out / jnp.where(total == 0, 1.0, total)[..., None], 1, 2).astype(dtype)

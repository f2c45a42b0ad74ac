"""Attention layers in Flax as people write them: right ones, and a twin with one thing wrong."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen, nnx


def attended(query, key, value, mask, scale, drop=lambda weights: weights):
    """Attention of heads: arrays and output (B, L, H, D)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bkhd->bqhd", drop(jax.nn.softmax(scores, axis=-1)), value)


class SelfAttention(nnx.Module):
    """NNX: four linear layers, and dropout that evaluation switches off."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1, *, rngs: nnx.Rngs):
        self.num_heads = num_heads
        self.q_proj = nnx.Linear(d_model, d_model, rngs=rngs)
        self.k_proj = nnx.Linear(d_model, d_model, rngs=rngs)
        self.v_proj = nnx.Linear(d_model, d_model, rngs=rngs)
        self.out_proj = nnx.Linear(d_model, d_model, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def scale(self, size):
        return size**-0.5

    def __call__(self, x, mask=None):
        B, L, E = x.shape
        query, key, value = (
            projection(x).reshape(B, L, self.num_heads, -1)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attended(query, key, value, mask, self.scale(query.shape[-1]))
        return self.out_proj(self.dropout(out.reshape(B, L, E)))


class ScaledByWidth(SelfAttention):
    def scale(self, size):
        return (size * self.num_heads) ** -0.5


class CausalSelfAttention(linen.Module):
    """Linen: a config, one fused projection, always causal, parameters made by the first call."""

    config: object

    @linen.compact
    def __call__(self, x, deterministic=True):
        B, L, E = x.shape
        heads = self.config.n_head
        fused = linen.Dense(3 * E, use_bias=self.config.bias, name="c_attn")(x)
        query, key, value = (t.reshape(B, L, heads, -1) for t in jnp.split(fused, 3, axis=-1))
        seen = jnp.tri(L, dtype=bool)
        out = attended(query, key, value, seen, query.shape[-1] ** -0.5).reshape(B, L, E)
        out = linen.Dense(E, use_bias=self.config.bias, name="c_proj")(out)
        return linen.Dropout(self.config.dropout)(out, deterministic=deterministic)


class CrossAttention(linen.Module):
    """Linen: layers of `setup`, kernels of heads, three arrays, dropout of weights."""

    num_heads: int
    head_dim: int
    features: int
    rate: float = 0.0

    def setup(self):
        heads = (self.num_heads, self.head_dim)
        self.query, self.key, self.value = (linen.DenseGeneral(heads) for _ in range(3))
        self.out = linen.DenseGeneral(self.features, axis=(-2, -1))
        self.drop = linen.Dropout(self.rate)

    def __call__(self, inputs_q, inputs_k, inputs_v, mask=None, train=False):
        query, key, value = self.query(inputs_q), self.key(inputs_k), self.value(inputs_v)
        drop = partial(self.drop, deterministic=not train)
        return self.out(attended(query, key, value, mask, self.head_dim**-0.5, drop))

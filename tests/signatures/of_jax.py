"""Functions for JAX as people write them; `tests.signatures.rows` judges them."""

import jax
import jax.numpy as jnp


@jax.jit
def jitted(q, k, v, mask=None):
    """Textbook code under `jax.jit`, heads before lengths, and a boolean mask."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1]).astype(q.dtype)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def flax_like(
    query, key, value, bias=None, mask=None, broadcast_dropout=True, dropout_rng=None,
    dropout_rate=0.0, deterministic=False, dtype=None, precision=None,
):  # fmt: skip
    """The function of Flax Linen's signature: lengths before heads."""
    return _attend(query, key, value, bias, mask)


@jax.jit  # one program for a shape, not one for every operation
def _attend(query, key, value, bias, mask):
    query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), value)


def one_sample(query, key, value, causal=False, sm_scale=None):
    """A function of one sample and one head, as `jax.vmap` takes."""
    scale = query.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = query @ key.T * scale
    if causal:
        scores = jnp.where(jnp.tri(*scores.shape, dtype=bool), scores, -jnp.inf)
    return jax.nn.softmax(scores) @ value

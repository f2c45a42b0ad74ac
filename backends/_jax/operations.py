"""The operations of textbook code in JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.textbook.layer import Operations


def spelled(backend: JaxEngine) -> Operations:
    """The operations for code that is called through `jax.jit`."""
    return replace(operations(backend.jax, backend.numpy), called=backend.jitted)


def operations(jax: Any, jnp: Any) -> Operations:
    """JAX's names for the operations of textbook code."""
    return Operations(
        softmax=lambda x: jax.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: jnp.where(hidden, number, x),
        tanh=jnp.tanh,
        total=lambda x, axis: x.sum(axis),
        mean=lambda x, axis: x.mean(axis),
        root=jnp.sqrt,
        concat=lambda arrays, axis: jnp.concatenate(list(arrays), axis),
        transpose=jnp.transpose,
        reshape=jnp.reshape,
        put=lambda x, indices, values: x.at[indices].set(values),
        take=lambda x, indices: x[indices],
        repeat=lambda x, times, axis: jnp.repeat(x, times, axis),
        cos=jnp.cos,
        sin=jnp.sin,
        power=jnp.power,
        clip=jnp.clip,
        rint=jnp.rint,
        exp=jnp.exp,
        log=jnp.log,
        largest=lambda x, axis: x.max(axis),
        cast=lambda x, dtype: x.astype(dtype),
        number=lambda value, x: value,
        # Refuses a mask with more axes than the scores, instead of broadcasting.
        hide=lambda scores, mask: jnp.where(
            jnp.broadcast_to(mask, scores.shape), scores, jnp.finfo(scores.dtype).min
        ),
        broadcast=jnp.broadcast_to,
        logsumexp=lambda x: jax.nn.logsumexp(
            x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=-1
        ),
        like=lambda x, other: x.astype(other.dtype),
        counted=lambda n, x: jnp.arange(n, dtype=x.dtype),
    )

"""The kernels of rows in JAX, (B, L, H, D), with the signature of `jax.nn.dot_product_attention`."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from tests.diagnosed.kernels import kernels_of

JAX = SimpleNamespace(
    parameters=("bias", "mask", "scale", "is_causal"),
    has_flag=False,
    read=lambda given: given,
    heads_first=lambda x: jnp.swapaxes(x, 1, 2),
    heads_back=lambda x: jnp.swapaxes(x, 1, 2),
    wide=lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)),
    cast=lambda x, dtype: x.astype(dtype),
    repeat=lambda x, times: jnp.repeat(x, times, 1),
    tile=lambda x, times: jnp.tile(x, (1, times, 1, 1)),
    amax=lambda x: x.max(-1, keepdims=True),
    softmax=jax.nn.softmax,
    logsumexp=jax.nn.logsumexp,
    stop=jax.lax.stop_gradient,
    inf=jnp.inf,
    **{n: getattr(jnp, n) for n in ("arange", "concatenate", "einsum", "exp", "tanh", "where")},
)

globals().update(kernels_of(JAX, "jax"))

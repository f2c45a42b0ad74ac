"""The kernels of rows in JAX, (B, L, H, D), with the signature of `jax.nn.dot_product_attention`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from tests.diagnosed.kernels import kernels_of


def read(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the textbook."""
    window = given.pop("local_window_size", None)
    return given | {"window": (window, window) if isinstance(window, int) else window}


JAX = SimpleNamespace(
    parameters=("bias", "mask", "scale", "is_causal"),
    has_flag=False,
    read=read,
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
    is_traced=lambda x: isinstance(x, jax.core.Tracer),
    inf=jnp.inf,
    **{n: getattr(jnp, n) for n in ("arange", "concatenate", "einsum", "exp", "tanh", "where")},
)

globals().update(kernels_of(JAX, "jax"))

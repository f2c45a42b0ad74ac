"""JAX's layers, textbook code in jax.numpy, and what Flax has, where it is installed."""

from __future__ import annotations

from importlib.util import find_spec

from backends._jax.engine import JaxEngine
from backends.protocol import Implementation
from backends.textbook import Numerics, Operations, textbooks

NUMERICS: Numerics = "stepwise"


def layers(backend: JaxEngine) -> list[Implementation]:
    """Every layer judged in JAX, and Flax's functions."""
    of_textbooks = textbooks(backend, _operations(backend), NUMERICS)
    if not find_spec("flax"):
        return of_textbooks
    from backends._jax.flax_functions import LinenFunction, NnxFunction
    from backends._jax.flax_linen import Linen
    from backends._jax.flax_nnx import Nnx, NnxWeights
    from backends._jax.flax_norms import LinenBatchNorm, LinenLayerNorm

    kinds: tuple[type[Implementation], ...] = (
        NnxFunction, LinenFunction, Nnx, NnxWeights, Linen, LinenLayerNorm, LinenBatchNorm
    )  # fmt: skip
    return [*of_textbooks, *(kind(backend) for kind in kinds)]


def _operations(backend: JaxEngine) -> Operations:
    jax, jnp = backend.jax, backend.numpy
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
        repeat=lambda x, times, axis: jnp.repeat(x, times, axis),
        cos=jnp.cos,
        sin=jnp.sin,
        power=jnp.power,
        clip=jnp.clip,
        exp=jnp.exp,
        log=jnp.log,
        largest=lambda x, axis: x.max(axis),
        cast=lambda x, dtype: x.astype(dtype),
        overflowing_fill="nan",
        called=backend.jitted,
    )

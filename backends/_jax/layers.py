"""Layers on JAX: textbook code in jax.numpy, and Flax's layers if Flax is installed."""

from __future__ import annotations

from importlib.util import find_spec

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.operations import spelled
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import Numerics, textbooks

NUMERICS: Numerics = "stepwise"


def layers(backend: JaxEngine) -> list[Implementation]:
    """All layers on JAX, and Flax's functions."""
    of_textbooks = textbooks(backend, spelled(backend), NUMERICS)
    if not find_spec("flax"):
        return of_textbooks
    from attention_conformance.backends._jax.flax_decode import LinenDecode, NnxDecode
    from attention_conformance.backends._jax.flax_functions import LinenFunction, NnxFunction
    from attention_conformance.backends._jax.flax_linen import Linen
    from attention_conformance.backends._jax.flax_nnx import Nnx, NnxWeights
    from attention_conformance.backends._jax.flax_norms import LinenBatchNorm, LinenLayerNorm

    kinds: tuple[type[Implementation], ...] = (
        NnxFunction, LinenFunction, Nnx, NnxWeights, NnxDecode, LinenDecode, Linen, LinenLayerNorm,
        LinenBatchNorm
    )  # fmt: skip
    return [*of_textbooks, *(kind(backend) for kind in kinds)]

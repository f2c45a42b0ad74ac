"""Layers on JAX: textbook code in jax.numpy, and Flax's layers if Flax is installed."""

from __future__ import annotations

from importlib.util import find_spec

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.operations import spelled
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import Numerics, textbooks

NUMERICS: Numerics = "stepwise"


def layers(backend: JaxEngine) -> list[Implementation]:
    """All layers on JAX, and Flax's functions."""
    of_textbooks = textbooks(backend, spelled(backend), NUMERICS)
    if not find_spec("flax"):
        return of_textbooks
    from attention_conformance.backends._jax.flax_decode import LinenDecode, NnxDecode
    from attention_conformance.backends._jax.flax_functions import LINEN as LINEN_FUNCTION
    from attention_conformance.backends._jax.flax_functions import NNX as NNX_FUNCTION
    from attention_conformance.backends._jax.flax_layers import LINEN, NNX, NNX_WEIGHTS
    from attention_conformance.backends._jax.flax_norms import LINEN_BATCH_NORM, LINEN_LAYER_NORM

    native = NNX.but(later=frozenset(backend.stepwise_dtypes))
    return [
        *of_textbooks,
        *(FrameworkFunction(backend, kernel) for kernel in (NNX_FUNCTION, LINEN_FUNCTION)),
        *(FrameworkLayer(backend, row) for row in (native, NNX_WEIGHTS)),
        NnxDecode(backend),
        LinenDecode(backend),
        *(FrameworkLayer(backend, row) for row in (LINEN, LINEN_LAYER_NORM, LINEN_BATCH_NORM)),
    ]

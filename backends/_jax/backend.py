"""The JAX backend: textbook code, `jax.nn.dot_product_attention`, and Flax's layers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from attention_conformance.backends._jax.attention import EAGER, JAX_NN, JAX_NN_CUDNN, operations
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.packed import GpuPaged, JaxNnPacked, RaggedReference
from attention_conformance.backends._jax.pallas import (
    GPU_DECODE,
    GPU_MHA,
    SPLASH_REFERENCE,
    TPU_SPLASH,
)
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.spec.vocabulary import DEVICES


def flax_implementations(backend: JaxEngine) -> list[Implementation]:
    """Returns Flax's functions and layers as implementations."""
    from attention_conformance.backends._jax.flax_decode import LinenDecode, NnxDecode
    from attention_conformance.backends._jax.flax_functions import LINEN as LINEN_FUNCTION
    from attention_conformance.backends._jax.flax_functions import NNX as NNX_FUNCTION
    from attention_conformance.backends._jax.flax_layers import LINEN, NNX, NNX_WEIGHTS
    from attention_conformance.backends._jax.flax_norms import LINEN_BATCH_NORM, LINEN_LAYER_NORM

    # JAX runs these dtypes operation by operation, so they are judged at a later level (`POSTPONED`).
    nnx_row = NNX.but(postponed=frozenset(backend.stepwise_dtypes))
    return [
        *(FrameworkFunction(backend, kernel) for kernel in (NNX_FUNCTION, LINEN_FUNCTION)),
        *(FrameworkLayer(backend, row) for row in (nnx_row, NNX_WEIGHTS)),
        NnxDecode(backend),
        LinenDecode(backend),
        *(FrameworkLayer(backend, row) for row in (LINEN, LINEN_LAYER_NORM, LINEN_BATCH_NORM)),
    ]


class JaxBackend(JaxEngine):
    """JAX on "cpu" or "cuda"."""

    name = "jax"
    modules = ("jax",)
    native = "jax-nn"
    devices = DEVICES
    compilers = ("ops", "jit", "aot", "vmap")
    timed_compilers = ("jit",)
    layer_compilers = ("ops", "jit")

    @property
    def versions(self) -> dict[str, str]:
        flax = {"flax": version("flax")} if find_spec("flax") else {}
        return super().versions | flax

    def implementations(self) -> list[Implementation]:
        ops = operations(self)
        attention: list[Implementation] = [
            TextbookAttention(self, ops, EAGER),
            FrameworkFunction(self, JAX_NN.but(postponed=frozenset(self.stepwise_dtypes))),
            JaxNnPacked(self),
            FrameworkFunction(self, GPU_MHA),
            FrameworkFunction(self, GPU_DECODE),
            FrameworkFunction(self, SPLASH_REFERENCE),
            GpuPaged(self),
            RaggedReference(self),
        ]
        if self.device == "cuda":
            attention.append(FrameworkFunction(self, JAX_NN_CUDNN))
        else:  # Pallas interprets the kernel for TPUs on a CPU
            attention.append(FrameworkFunction(self, TPU_SPLASH))
        textbook_layers = textbooks(self, ops, "stepwise")
        flax = flax_implementations(self) if find_spec("flax") else []
        return [*attention, *textbook_layers, *flax]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, JAX_NN)

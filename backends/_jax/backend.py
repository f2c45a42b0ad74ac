"""The JAX backend: textbook code, `jax.nn.dot_product_attention`, and Flax's layers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from attention_conformance.backends._jax.attention import JAX_NN, JAX_NN_CUDNN, Eager
from attention_conformance.backends._jax.compilers import JaxCompilers
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.layers import layers
from attention_conformance.backends._jax.packed import JaxNnPacked
from attention_conformance.backends._jax.paged import GpuPaged, RaggedReference
from attention_conformance.backends._jax.pallas import (
    GPU_DECODE,
    GPU_MHA,
    SPLASH_REFERENCE,
    TPU_SPLASH,
)
from attention_conformance.backends._jax.rings import ORDERS, Ring
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.spec.vocabulary import DEVICES


class JaxBackend(JaxEngine):
    """JAX on "cpu" or "cuda"."""

    name = "jax"
    modules = ("jax",)
    native = "jax-nn"
    devices = DEVICES

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        names = ("ops", "jit", "aot", "vmap")
        self.compilers = JaxCompilers(self, names, timed=("jit",), layers=("ops", "jit"))

    @property
    def versions(self) -> dict[str, str]:
        flax = {"flax": version("flax")} if find_spec("flax") else {}
        return super().versions | flax

    def implementations(self) -> list[Implementation]:
        of_attention: list[Implementation] = [
            Eager(self),
            FrameworkFunction(self, JAX_NN.but(later=frozenset(self.stepwise_dtypes))),
            JaxNnPacked(self),
            FrameworkFunction(self, GPU_MHA),
            FrameworkFunction(self, GPU_DECODE),
            FrameworkFunction(self, SPLASH_REFERENCE),
            GpuPaged(self),
            RaggedReference(self),
        ]
        if self.device == "cuda":
            of_attention.append(FrameworkFunction(self, JAX_NN_CUDNN))
        else:
            of_attention.append(FrameworkFunction(self, TPU_SPLASH))
        return [*of_attention, *(Ring(self, order) for order in ORDERS), *layers(self)]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return UserFunction(self, function, name, claims, JAX_NN)

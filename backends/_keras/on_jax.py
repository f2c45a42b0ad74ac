"""Keras on JAX, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version

from attention_conformance.backends._jax.attention import NO_HEADS
from attention_conformance.backends._jax.compilers import JaxCompilers
from attention_conformance.backends._jax.engine import FLUSHED, JaxEngine
from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.layers import keras_layers
from attention_conformance.backends._keras.ops import KerasOps
from attention_conformance.backends.declared import LOWEST_IN_FLOAT32
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs


class KerasJaxBackend(KerasBackend, JaxEngine):
    """Keras on JAX."""

    name = "keras-jax"
    modules = ("keras", "jax")
    engine_of_keras = "jax"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.compilers = JaxCompilers(self, ("ops", "jit"), layers=("ops", "jit"))

    @property
    def versions(self) -> dict[str, str]:
        return {"keras": self.keras.__version__, "jax": version("jax")}

    def implementations(self) -> list[Implementation]:
        return [KerasJaxOps(self), *keras_layers(self, "jax", self.jitted_native)]


class KerasJaxOps(KerasOps):
    """`keras.ops.dot_product_attention` on JAX: it calls jax.nn, or its own copy if jax.nn raises."""

    backend: KerasJaxBackend

    declared = KerasOps.declared.refusing(
        {
            "value-size": "on jax keras.ops requires values of the keys' size",
            "no-heads": NO_HEADS,
        }
    ).but(
        # The softmax is float32 in every dtype.
        numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
        elections={
            "fully-masked-row": "uniform",
            "minus-inf-row": "nan",
            "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            "no-keys": "zeros",
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "raises",
            "integer-mask": "cast-to-bool",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self._jitted(super().prepare(inputs), inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        plain = super().prepare(inputs)
        if plain.arguments.get("mask") is None:
            return super().paths(inputs)
        # jax.nn refuses a mask that is not boolean; then Keras uses its own copy.
        numbers = {"mask": plain.arguments["mask"].astype("int32")}
        call = replace(plain, arguments=plain.arguments | numbers)
        return {**super().paths(inputs), "mask of whole numbers": self._jitted(call, inputs)}

    def _jitted(self, plain: PreparedCall, inputs: Inputs) -> PreparedCall:
        return self.backend.jitted_native(self, plain, inputs.dtype)

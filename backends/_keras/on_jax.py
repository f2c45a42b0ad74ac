"""Keras on JAX, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from attention_conformance.backends._jax.attention import NO_HEADS, through_jit
from attention_conformance.backends._jax.engine import FLUSHED, JaxEngine
from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.ops import KERAS_OPS, paths
from attention_conformance.backends.declared import (
    FILLED,
    INTERSECTED,
    LOWEST_IN_FLOAT32,
    SINGLE_FUSED,
)
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs


def paths_on_jax(
    impl: FrameworkFunction, inputs: Inputs, call: PreparedCall
) -> dict[str, PreparedCall]:
    """Returns the calls of `paths`, and one with an integer mask. jax.nn refuses this mask; Keras then
    uses its own copy of the function."""
    calls = paths(impl, inputs, call)
    if "mask" not in call.arguments:
        return calls
    arguments = call.arguments | {"mask": call.arguments["mask"].astype("int32")}
    return calls | {"mask of whole numbers": replace(call, arguments=arguments)}


ON_JAX = KERAS_OPS.but(
    declared=KERAS_OPS.declared.refusing(
        {
            "value-size": "on jax keras.ops requires values of the keys' size",
            "no-heads": NO_HEADS,
        }
    ).but(
        numerics=SINGLE_FUSED,
        elections=FILLED
        | INTERSECTED
        | {
            "fully-masked-row": "uniform",
            "minus-inf-row": "nan",
            "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            "no-keys": "zeros",
            "value-size": "raises",
            "integer-mask": "cast-to-bool",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",
        },
    ),
    through=through_jit,
    paths=paths_on_jax,
)
"""`keras.ops.dot_product_attention` on JAX: it calls jax.nn, or its own copy if jax.nn raises."""


class KerasJaxBackend(KerasBackend, JaxEngine):
    """Keras on JAX."""

    name = "keras-jax"
    modules = ("keras", "jax")
    engine_of_keras = "jax"
    compilers = layer_compilers = ("ops", "jit")

    @property
    def versions(self) -> dict[str, str]:
        return {"keras": self.keras.__version__, "jax": version("jax")}

    def implementations(self) -> list[Implementation]:
        return [FrameworkFunction(self, ON_JAX), *self.layers()]

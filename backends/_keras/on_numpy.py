"""Keras on NumPy, on the CPU, without gradients."""

from __future__ import annotations

from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.multi_head import PLAIN_NUMERICS
from attention_conformance.backends._keras.ops import KERAS_OPS
from attention_conformance.backends.arrays import NumpyArrays
from attention_conformance.backends.declared import INTERSECTED, LOWEST_FILL, LOWEST_IN_FLOAT32
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation

ON_NUMPY = KERAS_OPS.but(
    declared=KERAS_OPS.declared.but(
        numerics=PLAIN_NUMERICS["numpy"],
        elections=LOWEST_FILL
        | INTERSECTED
        | {
            "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            "no-keys": "raises",
            "integer-mask": "cast-to-bool",
            # In float64 the cast to float32 makes 2^-1024 zero.
            "subnormal-output": {"f64": "flushed", "f32": "kept", "bf16": "kept", "f16": "kept"},
        },
    )
)
"""`keras.ops.dot_product_attention` on NumPy: einsum, softmax, einsum."""


class KerasNumpyBackend(KerasBackend, NumpyArrays):
    """Keras on NumPy."""

    name = "keras-numpy"
    modules = ("keras",)
    distributions = ("keras", "numpy")
    engine_of_keras = "numpy"

    def implementations(self) -> list[Implementation]:
        return [FrameworkFunction(self, ON_NUMPY), *self.layers()]

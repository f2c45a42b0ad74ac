"""The TensorFlow backend: textbook code, and Keras' attention and layers on the TensorFlow engine."""

from __future__ import annotations

from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.ops import KERAS_OPS
from attention_conformance.backends._tensorflow.engine import (
    EAGER,
    FLUSHED,
    NUMERICS,
    TensorflowEngine,
    operations,
)
from attention_conformance.backends.declared import INTERSECTED, LOWEST_FILL, LOWEST_IN_FLOAT32
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.suite.spec.vocabulary import DEVICES

ON_TENSORFLOW = KERAS_OPS.but(
    declared=KERAS_OPS.declared.but(
        # The scale, given or default, passes through float32.
        numerics=NUMERICS | {"f64": "single"},
        elections=LOWEST_FILL
        | INTERSECTED
        | {"lowest-row": LOWEST_IN_FLOAT32, "subnormal-output": FLUSHED},
    )
)
"""`keras.ops.dot_product_attention` on TensorFlow."""


class TensorflowBackend(KerasBackend, TensorflowEngine):
    """TensorFlow on "cpu" or "cuda"."""

    name = "tf"
    modules = ("tensorflow",)
    engine_of_keras = "tensorflow"
    devices = DEVICES
    compilers = timed_compilers = ("function", "xla")
    layer_compilers = ("function",)

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"keras": self.keras.__version__}

    def implementations(self) -> list[Implementation]:
        ops = operations(self.tf)
        return [
            TextbookAttention(self, ops, EAGER),
            FrameworkFunction(self, ON_TENSORFLOW),
            *textbooks(self, ops, NUMERICS),
            *self.layers(),
        ]

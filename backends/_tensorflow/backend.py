"""The TensorFlow backend: textbook code, and Keras' attention and layers on the TensorFlow engine."""

from __future__ import annotations

from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.layers import keras_layers
from attention_conformance.backends._keras.ops import KerasOps
from attention_conformance.backends._tensorflow.attention import Eager
from attention_conformance.backends._tensorflow.engine import FLUSHED, NUMERICS, TensorflowEngine
from attention_conformance.backends._tensorflow.layers import layers
from attention_conformance.backends.declared import INTERSECTED, LOWEST_FILL, LOWEST_IN_FLOAT32
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.vocabulary import DEVICES


class TensorflowBackend(KerasBackend, TensorflowEngine):
    """TensorFlow on "cpu" or "cuda"."""

    name = "tf"
    modules = ("tensorflow",)
    engine_of_keras = "tensorflow"
    devices = DEVICES

    @property
    def versions(self) -> dict[str, str]:
        return super().versions | {"keras": self.keras.__version__}

    def implementations(self) -> list[Implementation]:
        own = [Eager(self), TensorflowKerasOps(self)]
        return [*own, *layers(self), *keras_layers(self, "tensorflow")]


class TensorflowKerasOps(KerasOps):
    """`keras.ops.dot_product_attention` on TensorFlow."""

    declared = KerasOps.declared.but(
        # The scale, given or default, passes through float32.
        numerics=NUMERICS | {"f64": "single"},
        elections=LOWEST_FILL
        | INTERSECTED
        | {"lowest-row": LOWEST_IN_FLOAT32, "subnormal-output": FLUSHED},
    )

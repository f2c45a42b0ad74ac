"""keras-hub on Keras and TensorFlow: its rotary embedding, its cached attention, its ALiBi.

Layers are made from configurations, without downloads. keras-hub is imported when the backend is created.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from attention_conformance.backends._keras.engine import WithKeras
from attention_conformance.backends._keras_hub.layers import (
    CACHED_PLAIN,
    CACHED_UPDATED,
    CachedDecode,
    HubRotary,
    HubRotaryByStart,
)
from attention_conformance.backends._tensorflow.engine import (
    EAGER,
    TensorflowEngine,
    operations,
)
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation, needed
from attention_conformance.backends.textbook.attention import OwnAlibi
from attention_conformance.suite.spec.inputs import Inputs


def alibi_attention(backend: TensorflowEngine) -> OwnAlibi:
    """Returns textbook attention with the ALiBi of `keras_hub.layers.AlibiBias`."""
    tf = backend.tf

    def make(inputs: Inputs) -> Callable[[], Any]:
        import keras_hub

        s, layer = inputs.sizes, keras_hub.layers.AlibiBias(dtype=inputs.dtype.long_name)
        dtype = getattr(tf, inputs.dtype.long_name)
        return lambda: layer(tf.zeros((1, s.H, s.Lq, s.Lk), dtype))

    return OwnAlibi(backend, "alibi-bias", operations(tf), EAGER, make)


class KerasHubBackend(WithKeras, TensorflowEngine):
    """keras-hub on Keras on TensorFlow, on the CPU."""

    name = "keras-hub"
    modules = ("keras_hub", "keras", "tensorflow")
    engine_of_keras = "tensorflow"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import keras_hub  # noqa: F401

    @property
    def versions(self) -> dict[str, str]:
        keras = {"keras-hub": version("keras-hub"), "keras": self.keras.__version__}
        return {**keras, **super().versions}

    def implementations(self) -> list[Implementation]:
        layers = (CACHED_PLAIN, CACHED_UPDATED)
        return [
            HubRotary(self), HubRotaryByStart(self), alibi_attention(self), CachedDecode(self),
            *(FrameworkLayer(self, layer) for layer in layers),
        ]  # fmt: skip

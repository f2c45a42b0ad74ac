"""The keras-hub backend, with TensorFlow's arrays."""

from __future__ import annotations

from importlib.metadata import version

from attention_conformance.backends._keras.engine import WithKeras
from attention_conformance.backends._keras_hub.attention import alibi_attention
from attention_conformance.backends._keras_hub.cached import CachedDecode
from attention_conformance.backends._keras_hub.multi_head import (
    CACHED_PLAIN,
    CACHED_STATIC,
    CACHED_UPDATED,
)
from attention_conformance.backends._keras_hub.rotary import HubRotary, HubRotaryByStart
from attention_conformance.backends._tensorflow.engine import TensorflowCompilers, TensorflowEngine
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation, needed


class KerasHubBackend(WithKeras, TensorflowEngine):
    """keras-hub on Keras on TensorFlow, on the CPU."""

    name = "keras-hub"
    modules = ("keras_hub", "keras", "tensorflow")
    engine_of_keras = "tensorflow"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.compilers = TensorflowCompilers(self)
        with needed():
            import keras_hub  # noqa: F401

    @property
    def versions(self) -> dict[str, str]:
        keras = {"keras-hub": version("keras-hub"), "keras": self.keras.__version__}
        return {**keras, **super().versions}

    def implementations(self) -> list[Implementation]:
        layers = (CACHED_PLAIN, CACHED_UPDATED, CACHED_STATIC)
        return [
            HubRotary(self), HubRotaryByStart(self), alibi_attention(self), CachedDecode(self),
            *(FrameworkLayer(self, layer) for layer in layers),
        ]  # fmt: skip

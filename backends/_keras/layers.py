"""Keras' attention layers and norms, for every engine."""

from __future__ import annotations

from attention_conformance.backends._keras.engine import WithKeras
from attention_conformance.backends._keras.multi_head import multi_head
from attention_conformance.backends._keras.norms import norms
from attention_conformance.backends._keras.single_head import single_head
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation


def keras_layers(backend: WithKeras) -> list[Implementation]:
    """All layers of Keras on the engine of `backend`."""
    rows = (multi_head, single_head, norms)
    engine = backend.engine_of_keras
    return [FrameworkLayer(backend, row) for made in rows for row in made(engine)]

"""keras-hub on Keras and TensorFlow: its rotary embedding, its cached attention, its ALiBi.

Layers are made from configurations, without downloads. keras-hub is imported when the backend is created.
"""

from __future__ import annotations

from attention_conformance.backends._keras_hub.backend import KerasHubBackend

__all__ = ["KerasHubBackend"]

"""Textbook layers in TensorFlow. Keras' layers are in `backends._keras`."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._tensorflow.engine import NUMERICS, TensorflowEngine
from attention_conformance.backends._tensorflow.operations import operations
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks


def layers(backend: TensorflowEngine) -> list[Implementation]:
    """All textbook layers in TensorFlow."""
    return textbooks(backend, operations(np, backend.tf), NUMERICS)

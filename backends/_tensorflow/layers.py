"""Textbook layers in TensorFlow. Keras' layers are in `backends._keras`."""

from __future__ import annotations

import numpy as np

from backends._tensorflow.engine import NUMERICS, TensorflowEngine
from backends._tensorflow.operations import operations
from backends.protocol import Implementation
from backends.textbook import textbooks


def layers(backend: TensorflowEngine) -> list[Implementation]:
    """All textbook layers in TensorFlow."""
    return textbooks(backend, operations(np, backend.tf), NUMERICS)

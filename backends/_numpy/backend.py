"""The control as a backend."""

from __future__ import annotations

from attention_conformance.backends._numpy.attention import Definition
from attention_conformance.backends._numpy.engine import NumpyEngine
from attention_conformance.backends._numpy.operations import operations
from attention_conformance.backends._numpy.operators import DEFINITIONS, ByDefinition
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks

MEMORIES = ("cached", "paged", "paged-write", "latent", "quantized", "quantized-write")
"""Operators that store keys and values. Only their textbook code also runs in NumPy."""


class NumpyBackend(NumpyEngine):
    """NumPy on the CPU: the references as implementations, and textbook code."""

    name = "numpy"

    def implementations(self) -> list[Implementation]:
        own = [Definition(self), *(ByDefinition(self, name) for name in DEFINITIONS)]
        textbook = textbooks(self, operations(), "eager")
        return own + [i for i in textbook if i.operator.name in MEMORIES]

"""The control as a backend."""

from __future__ import annotations

from attention_conformance.backends._numpy.engine import NumpyEngine
from attention_conformance.backends._numpy.operations import operations
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook import textbooks
from attention_conformance.suite.spec.modules import classes_in

MEMORIES = ("cached", "paged", "paged-write", "latent", "quantized", "quantized-write")
"""The operators whose textbook code runs in NumPy, too: those that keep keys and values."""


class NumpyBackend(NumpyEngine):
    """NumPy on the CPU, with the reference implementations of the modules here, and textbook code."""

    name = "numpy"

    def implementations(self) -> list[Implementation]:
        kinds = classes_in("attention_conformance.backends._numpy", Implementation)
        own = [kind(self) for kind in kinds if "name" in vars(kind)]
        textbook = textbooks(self, operations(), "eager")
        return own + [i for i in textbook if i.operator.name in MEMORIES]

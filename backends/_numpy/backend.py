"""The control as a backend."""

from __future__ import annotations

from backends._numpy.attention import Definition
from backends._numpy.engine import NumpyEngine
from backends.protocol import Implementation


class NumpyBackend(NumpyEngine):
    """NumPy on the CPU, with the definition as its one implementation."""

    name = "numpy"

    def implementations(self) -> list[Implementation]:
        return [Definition(self)]

"""The control as a backend."""

from __future__ import annotations

from backends._numpy.engine import NumpyEngine
from backends.protocol import Implementation
from suite.spec.modules import classes_in


class NumpyBackend(NumpyEngine):
    """NumPy on the CPU, with the reference implementations of the modules here."""

    name = "numpy"

    def implementations(self) -> list[Implementation]:
        return [kind(self) for kind in classes_in("backends._numpy", Implementation)]

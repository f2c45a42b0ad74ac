"""NumPy: the reference itself behind the adapter protocol, as a control. Every cell must pass."""

from __future__ import annotations

from backends._numpy.attention import Definition, rounded_call
from backends._numpy.backend import NumpyBackend
from backends._numpy.engine import NumpyEngine, Rounded

__all__ = ["Definition", "NumpyBackend", "NumpyEngine", "Rounded", "rounded_call"]

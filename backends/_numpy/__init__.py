"""NumPy: the reference itself behind the adapter protocol, as a control. Every cell must pass.

The package imports the engine alone, which works in a process that must not see the references.
"""

from __future__ import annotations

from attention_conformance.backends._numpy.engine import NumpyEngine, Rounded, rounded_to

__all__ = ["NumpyEngine", "Rounded", "rounded_to"]

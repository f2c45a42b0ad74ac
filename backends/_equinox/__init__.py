"""equinox on JAX: its rotary embedding, its multi-head attention and its layer norm.

equinox is imported when the backend is created.
"""

from __future__ import annotations

from attention_conformance.backends._equinox.backend import EquinoxBackend

__all__ = ["EquinoxBackend"]

"""equinox on JAX: its rotary embedding, its multi-head attention and its layer norm.

equinox is imported when the backend is created.
"""

from __future__ import annotations

from importlib.metadata import version

from attention_conformance.backends._equinox.layers import (
    EQUINOX_LAYER_NORM,
    EQUINOX_MULTI_HEAD,
    rotaries,
)
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.backends.protocol import Implementation, needed


class EquinoxBackend(JaxEngine):
    """equinox on JAX, on the CPU."""

    name = "equinox"
    modules = ("equinox", "jax")

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import equinox  # noqa: F401

    @property
    def versions(self) -> dict[str, str]:
        return {"equinox": version("equinox"), **super().versions}

    def implementations(self) -> list[Implementation]:
        layers = (EQUINOX_MULTI_HEAD, EQUINOX_LAYER_NORM)
        return [
            *rotaries(self),
            *(FrameworkLayer(self, layer) for layer in layers),
        ]

"""The equinox backend, with JAX's arrays."""

from __future__ import annotations

from importlib.metadata import version

from attention_conformance.backends._equinox.layers import EquinoxLayerNorm, EquinoxMultiHead
from attention_conformance.backends._equinox.rotary import (
    EquinoxRotary,
    EquinoxRotaryJit,
    EquinoxRotarySingle,
)
from attention_conformance.backends._jax.engine import JaxEngine
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
        every = (
            EquinoxRotary, EquinoxRotaryJit, EquinoxRotarySingle, EquinoxMultiHead,
            EquinoxLayerNorm,
        )  # fmt: skip
        return [implementation(self) for implementation in every]

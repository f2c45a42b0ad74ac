"""OpenVINO: its operator ScaledDotProductAttention in its CPU plugin, alone and with a state, forward
only."""

from __future__ import annotations

from attention_conformance.backends._openvino.attention import Sdpa, SdpaFixed
from attention_conformance.backends._openvino.cached import Stateful
from attention_conformance.backends._openvino.engine import OpenvinoEngine
from attention_conformance.backends.protocol import Implementation

__all__ = ["OpenvinoBackend"]


class OpenvinoBackend(OpenvinoEngine):
    """OpenVINO's CPU plugin."""

    def implementations(self) -> list[Implementation]:
        return [Sdpa(self), SdpaFixed(self), Stateful(self)]

"""OpenVINO: its operator ScaledDotProductAttention in its CPU plugin, alone and with a state, forward
only."""

from __future__ import annotations

from backends._openvino.attention import Sdpa, SdpaFixed
from backends._openvino.cached import Stateful
from backends._openvino.engine import OpenvinoEngine
from backends.protocol import Implementation

__all__ = ["OpenvinoBackend"]


class OpenvinoBackend(OpenvinoEngine):
    """OpenVINO's CPU plugin."""

    def implementations(self) -> list[Implementation]:
        return [Sdpa(self), SdpaFixed(self), Stateful(self)]

"""OpenVINO: its operator ScaledDotProductAttention in its CPU plugin, forward only."""

from __future__ import annotations

from backends._openvino.engine import OpenvinoBackend

__all__ = ["OpenvinoBackend"]

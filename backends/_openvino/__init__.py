"""OpenVINO: its operator ScaledDotProductAttention in its plugin for the CPU, forward."""

from __future__ import annotations

from backends._openvino.engine import OpenvinoBackend

__all__ = ["OpenvinoBackend"]

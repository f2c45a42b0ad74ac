"""MLX on the CPU: its fused attention and its rotary embedding, with their derivatives."""

from __future__ import annotations

from backends._mlx.engine import MlxBackend

__all__ = ["MlxBackend"]

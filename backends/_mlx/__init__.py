"""MLX on the CPU: fused attention and rotary embedding, with gradients."""

from __future__ import annotations

from backends._mlx.engine import MlxBackend

__all__ = ["MlxBackend"]

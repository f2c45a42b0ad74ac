"""MLX on the CPU: fused attention and rotary embedding, with gradients, and the caches of mlx-lm."""

from __future__ import annotations

from backends._mlx.attention import Fast
from backends._mlx.cached import caches
from backends._mlx.engine import MlxEngine
from backends._mlx.rotary import FastRope
from backends.protocol import Implementation

__all__ = ["MlxBackend"]


class MlxBackend(MlxEngine):
    """MLX on the CPU."""

    def implementations(self) -> list[Implementation]:
        return [Fast(self), FastRope(self), *caches(self)]

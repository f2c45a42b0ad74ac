"""MLX on the CPU: fused attention and rotary embedding, with gradients, and mlx-lm, if installed: its
caches and its layer with latents."""

from __future__ import annotations

from importlib.util import find_spec

from backends._mlx.attention import Fast
from backends._mlx.cached import caches
from backends._mlx.engine import MlxEngine
from backends._mlx.latent import LmDeepseek
from backends._mlx.rotary import FastRope
from backends.protocol import Implementation

__all__ = ["MlxBackend"]


class MlxBackend(MlxEngine):
    """MLX on the CPU."""

    def implementations(self) -> list[Implementation]:
        of_mlx_lm = [*caches(self), LmDeepseek(self)] if find_spec("mlx_lm") else []
        return [Fast(self), FastRope(self), *of_mlx_lm]

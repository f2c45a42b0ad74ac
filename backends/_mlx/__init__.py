"""MLX on the CPU: fused attention and rotary embedding, with gradients, and mlx-lm, if installed: its
caches and its layer with latents."""

from __future__ import annotations

from importlib.util import find_spec

from attention_conformance.backends._mlx.attention import FAST, FastRope
from attention_conformance.backends._mlx.cached import caches
from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends._mlx.latent import LmDeepseek
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation

__all__ = ["MlxBackend"]


class MlxBackend(MlxEngine):
    """MLX on the CPU."""

    def implementations(self) -> list[Implementation]:
        of_mlx_lm = [*caches(self), LmDeepseek(self)] if find_spec("mlx_lm") else []
        return [FrameworkFunction(self, FAST), FastRope(self), *of_mlx_lm]

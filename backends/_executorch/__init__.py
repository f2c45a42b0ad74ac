"""ExecuTorch on torch: operators of its llama runner for the CPU, and the caches of its models.

Operators are called in torch, in which the same kernels are registered as in exported programs.
executorch is imported when the backend is created.
"""

from __future__ import annotations

import warnings

from attention_conformance.backends._executorch.cached import CustomRing, FusedCache, SinkRing
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.protocol import Implementation, needed


class ExecutorchBackend(TorchEngine):
    """ExecuTorch's operators on torch, on the CPU."""

    name = "executorch"
    modules = distributions = ("executorch", "torch")

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    def implementations(self) -> list[Implementation]:
        return [kind(self) for kind in (FusedCache, CustomRing, SinkRing)]

"""ExecuTorch on torch: operators of its llama runner for the CPU, and the caches of its models.

Operators are called in torch, in which the same kernels are registered as in exported programs.
executorch is imported when the backend is created.
"""

from __future__ import annotations

from attention_conformance.backends._executorch.backend import ExecutorchBackend

__all__ = ["ExecutorchBackend"]

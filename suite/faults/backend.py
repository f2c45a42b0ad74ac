"""A backend whose implementations are kernels."""

from __future__ import annotations

from typing import Any

from backends._numpy import NumpyEngine, Rounded
from backends.arrays import RuntimeThreads
from backends.protocol import Implementation


class Elsewhere(Rounded):
    """An array that `KernelBackend` takes for one on another device."""


class KernelBackend(NumpyEngine):
    """A third-party backend of kernels; the objects live as long as it does.

    `thread_count` is how many threads a kernel would run on.
    """

    thread_count = 1

    def __init__(
        self, name: str, kernels: tuple[type[Implementation], ...], device: str = "cpu"
    ) -> None:
        self.name = name
        super().__init__(device)
        self.profiler = RuntimeThreads(self)
        self.members: list[Implementation] = [kernel(self) for kernel in kernels]

    def implementations(self) -> list[Implementation]:
        return self.members

    def device_name(self, array: Any) -> str:
        return "elsewhere" if isinstance(array, Elsewhere) else super().device_name(array)

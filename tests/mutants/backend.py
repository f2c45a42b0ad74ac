"""A third-party backend whose implementations are kernels."""

from __future__ import annotations

from contextlib import AbstractContextManager

from backends._numpy import NumpyEngine
from backends.prepared import set_to
from backends.protocol import Implementation


class KernelBackend(NumpyEngine):
    """A third-party backend of kernels; the objects live as long as it does.

    `thread_count` is how many threads a kernel would run on.
    """

    has_threads = True
    thread_count = 1

    def __init__(
        self, name: str, kernels: tuple[type[Implementation], ...], device: str = "cpu"
    ) -> None:
        self.name = name
        super().__init__(device)
        self.members: list[Implementation] = [kernel(self) for kernel in kernels]

    def implementations(self) -> list[Implementation]:
        return self.members

    def threads(self, count: int) -> AbstractContextManager[None]:
        return set_to(count, lambda: self.thread_count, self.set_threads)

    def set_threads(self, count: int) -> None:
        self.thread_count = count

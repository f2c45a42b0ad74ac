"""A backend whose implementations are kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.backends._numpy import NumpyEngine, Rounded
from attention_conformance.backends.arrays import RuntimeThreads
from attention_conformance.backends.protocol import Compilers, Implementation, PreparedCall


class Elsewhere(Rounded):
    """An array that `KernelBackend` takes for one on another device."""


class Recomputing(Compilers):
    """The backward pass of a kernel calls the forward pass again, as a checkpoint does."""

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        derivative = prepared.vjp
        if derivative is None:
            return {}

        def vjp(cotangent: Any, wrt: Any, **arguments: Any) -> Any:
            prepared.function(**arguments)
            return derivative(cotangent=cotangent, wrt=wrt, **arguments)

        arguments = {**prepared.arguments, "rate": rate, "seed": 0}
        return {"checkpoint": replace(prepared, arguments=arguments, vjp=vjp)}


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
        self.profiler, self.compilers = RuntimeThreads(self), Recomputing(self)
        self.members: list[Implementation] = [kernel(self) for kernel in kernels]

    def implementations(self) -> list[Implementation]:
        return self.members

    def device_name(self, array: Any) -> str:
        return "elsewhere" if isinstance(array, Elsewhere) else super().device_name(array)

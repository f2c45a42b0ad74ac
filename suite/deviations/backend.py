"""A backend whose implementations are NumPy kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_conformance.backends._numpy import NumpyEngine, Rounded
from attention_conformance.backends.arrays import RuntimeThreads
from attention_conformance.backends.protocol import Implementation, PreparedCall


class OtherDeviceArray(Rounded):
    """An array whose device `KernelBackend` names "elsewhere"."""


class KernelBackend(RuntimeThreads, NumpyEngine):
    """A backend with one object of each kernel. `thread_count`: the number of threads that kernels
    use."""

    thread_count = 1

    def __init__(
        self, name: str, kernels: tuple[type[Implementation], ...], device: str = "cpu"
    ) -> None:
        self.name = name
        super().__init__(device)
        self.members: list[Implementation] = [kernel(self) for kernel in kernels]

    def implementations(self) -> list[Implementation]:
        return self.members

    def device_name(self, array: Any) -> str:
        return "elsewhere" if isinstance(array, OtherDeviceArray) else super().device_name(array)

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        """Returns the call "checkpoint", whose backward pass calls the forward pass again; {} without a
        backward pass."""
        derivative = prepared.vjp
        if derivative is None:
            return {}

        def vjp(cotangent: Any, wrt: Any, **arguments: Any) -> Any:
            prepared.function(**arguments)
            return derivative(cotangent=cotangent, wrt=wrt, **arguments)

        arguments = {**prepared.arguments, "rate": rate, "seed": 0}
        return {"checkpoint": replace(prepared, arguments=arguments, vjp=vjp)}

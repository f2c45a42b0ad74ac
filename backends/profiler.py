"""What is measured of calls: threads, kernels, time and memory, as far as a framework tells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from backends.prepared import ForwardOnly, PreparedCall
from suite.spec.dtypes import DType, round_to

if TYPE_CHECKING:
    from backends.protocol import Backend

Step = Callable[[Mapping[str, Any], Any], Callable[[], Any]]
"""What `Profiler.step` returns."""


class Profiler:
    """How the calls of a backend run, by default of a framework that computes before it returns and tells
    nothing."""

    has_threads = False
    """Whether the number of threads of a call can be chosen."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def threads(self, count: int) -> AbstractContextManager[None]:
        """A context in which calls run on `count` threads, of a backend that `has_threads`."""
        raise NotImplementedError

    def kernels(self, prepared: PreparedCall) -> str:
        """Which kernels the call runs, in the framework's own words; empty if it does not say."""
        return ""

    def sync(self, outputs: Any) -> None:
        """Wait until all these outputs (arrays, and pairs and dictionaries of them) are computed."""
        return

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        """What is timed: a function of the call's arguments and a cotangent that makes ready whatever is
        not part of the direction, and returns the rest as a function without arguments.

        `direction` is one of `DIRECTIONS`. What is timed returns the output ("forward"), or the pair of
        the output and the gradients by the operands `wrt`, without the output for "backward" alone.
        Raises ForwardOnly if the backend has no differentiation.
        """
        if direction == "forward":
            return lambda arguments, cotangent: lambda: prepared.call(arguments)
        raise ForwardOnly(f"{self.backend.name} has no automatic differentiation", declared=True)

    def compilations(self, prepared: PreparedCall) -> int | None:
        """A number that grows whenever the process, or the call's own function, traces or compiles.

        None if the framework does not say.
        """
        return None

    def limit(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], Any], int]:
        """What the machine can do at best: a function that multiplies two square matrices of `size` rows
        ("gemm"), or copies an array of `size` elements ("copy"), and its operations or bytes."""
        shape = (size, size) if what == "gemm" else (size,)
        values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        array = self.backend.array(round_to(values, dtype), dtype)
        if what == "gemm":
            return self.multiplied(array), 2 * size**3
        return self.copied(array), 2 * size * dtype.itemsize

    def multiplied(self, array: Any) -> Callable[[], Any]:
        """A function that multiplies a matrix by itself as fast as the framework can."""
        return lambda: array @ array

    def copied(self, array: Any) -> Callable[[], Any]:
        """A function that reads an array once and writes as much."""
        return lambda: array.copy()

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """The most memory that one `call` holds at a time beyond what was there, as the framework's
        allocator counts it, or as the compiler of `prepared` planned it; None if neither says."""
        return None

    def device_seconds(self, call: Callable[[], Any]) -> float | None:
        """Seconds of one call by the device's own clock; None if it has none."""
        return None

    def empty_caches(self) -> None:
        """Empty the device's caches of what lies in them, if that can be done."""
        return

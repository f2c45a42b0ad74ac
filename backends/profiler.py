"""Threads, kernels, time and memory of calls, as far as a framework reports them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from re import Pattern
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.prepared import ForwardOnly, PreparedCall, set_to
from attention_conformance.suite.spec.dtypes import DType, round_to

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend

Step = Callable[[Mapping[str, Any], Any], Callable[[], Any]]
"""The type that `Profiler.step` returns."""


EAGER_SWITCHES = 1e-6
"""Python's switch interval in seconds while several threads make calls."""

MOST_ROUNDS = 400
"""The greatest number of calls of one thread in `Profiler.at_once`."""


class Profiler:
    """Controls and measures the calls of a backend. By default calls are synchronous, and the framework
    tells nothing."""

    has_threads = False
    """True if the number of threads of a call can be chosen."""
    attention: tuple[str, ...] = ()
    """Functions of the engine that compute attention, which untrusted code must not call."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def threads(self, count: int) -> AbstractContextManager[None]:
        """A context in which calls run on `count` threads; only if `has_threads`."""
        raise NotImplementedError

    def at_once(self, calls: Sequence[Sequence[PreparedCall]], rounds: int) -> list[list[Any]]:
        """The outputs of each thread, which makes its `calls` in turn. The last entry of a thread that
        raised is the error.

        Every thread calls until each has made all its calls `rounds` times, so that all of them overlap.
        It waits for each output (`sync`): arrays of some frameworks are computed when they are read.
        """
        outcomes: list[list[Any]] = [[] for _ in calls]
        start = Barrier(len(calls))
        rounds *= max(map(len, calls))

        def waits_for_others() -> bool:
            ended = (n and isinstance(n[-1], BaseException) for n in outcomes)
            return any(len(n) < rounds and not end for n, end in zip(outcomes, ended, strict=True))

        def run(calls: Sequence[PreparedCall], outcome: list[Any]) -> None:
            start.wait()
            try:
                while waits_for_others() and len(outcome) < MOST_ROUNDS:
                    prepared = calls[len(outcome) % len(calls)]
                    native = prepared.function(**prepared.arguments)
                    self.sync(native)
                    outcome.append(native)
            except BaseException as error:
                outcome.append(error)

        threads = [
            Thread(target=run, args=(thread_calls, outcome), daemon=True)
            for thread_calls, outcome in zip(calls, outcomes, strict=True)
        ]
        with set_to(EAGER_SWITCHES, sys.getswitchinterval, sys.setswitchinterval):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return outcomes

    def kernels(self, prepared: PreparedCall) -> str:
        """The framework's names of the call's kernels; empty if the framework does not tell."""
        return ""

    def operator(self, function: Any) -> Pattern[str] | None:
        """The pattern of the names under which `operators` reports a function of the framework; None if
        the function is no operator."""
        return None

    def operators(self, call: Callable[[], Any], threads: bool) -> tuple[Any, Iterable[str]]:
        """The value of a call, and the names of the operators that it ran in this thread, or in all
        `threads` of Python, as far as the framework tells them."""
        return call(), ()

    def ways(self, name: str) -> Sequence[str]:
        """The dotted names of private functions through which code can call the function `name`."""
        return ()

    def guard(self) -> None:
        """From now on raise ForbiddenCall in functions that would stop the recording of `operators`."""
        return

    def derive_by(self, output: Any, make: Callable[[Callable[[], Any]], Any]) -> None:
        """Let `make` make the calls that compute derivatives of an output, if the framework can."""
        return

    def traces(self) -> bool:
        """True while a compiler of the framework traces Python code, without running operators."""
        return False

    def sync(self, outputs: Any) -> None:
        """Wait until these outputs (arrays, or tuples and dictionaries of arrays) are computed."""
        return

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        """A function of the call's arguments and a cotangent. This function does the untimed preparation
        and returns the timed function, which has no arguments.

        `direction` is one of `DIRECTIONS`. The timed function returns the output ("forward"), or the pair
        of output and gradients by `wrt`; the output is None for "backward". Raises ForwardOnly if the
        backend has no differentiation.
        """
        if direction == "forward":
            return lambda arguments, cotangent: lambda: prepared.call(arguments)
        raise ForwardOnly(f"{self.backend.name} has no automatic differentiation", declared=True)

    def compilations(self, prepared: PreparedCall) -> int | None:
        """A number that increases with every trace or compilation in the process or of the call's
        function; None if the framework does not tell.
        """
        return None

    def limit(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], Any], int]:
        """A function that shows the machine's limit, and its operations or bytes. "gemm" multiplies two
        square matrices of `size` rows, "copy" copies an array of `size` elements."""
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
        """A function that reads an array once and writes a copy."""
        return lambda: array.copy()

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """The additional peak memory of one `call`, counted by the framework's allocator or planned by
        the compiler of `prepared`; None if unknown."""
        return None


def kernels_in(text: str) -> str:
    """The custom calls, matrix products and fusions of an optimised program in XLA's notation."""
    targets = sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))
    return ", ".join([*targets, *(f"{text.count(f' {op}(')} {op}" for op in ("dot", "fusion"))])

"""Twins of the control, each with one fault of a harness or of a baseline; and honest ones."""

from __future__ import annotations

import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends._numpy.attention import Definition
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.prepared import PreparedCall


class Twin(Definition):
    """The reference with one fault of a harness or of a baseline: `changed` makes another call of it."""

    def prepare(self, inputs: Any) -> PreparedCall:
        plain = super().prepare(inputs)
        return replace(plain, function=self.changed(plain, inputs))

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        return plain.function


class Later:
    """An array that a thread is still computing, as a device's arrays are."""

    def __init__(self, computed: Future[Rounded]) -> None:
        self.computed = computed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.computed.result(), name)


class Asynchronous(NumpyBackend):
    """A backend whose calls return before they are done; it waits for them where it is asked to."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Rounded | Later)

    def sync(self, outputs: Any) -> None:
        if isinstance(outputs, Later):
            outputs.computed.result()


class Queued(Twin):
    """Computes on a thread, one call after the other."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        thread = ThreadPoolExecutor(1)

        def compute(arguments: dict[str, Any]) -> Rounded:
            time.sleep(0.02)  # long beside what a busy machine delays
            return plain.function(**arguments)

        def call(**arguments: Any) -> Later:
            return Later(thread.submit(compute, arguments))

        return call


class Compiling(NumpyBackend):
    """A backend that counts what its calls compile."""

    programs = 0

    def compilations(self, prepared: PreparedCall) -> int:
        return self.programs


class CompilesInside(Twin):
    """Compiles in every call."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> Any:
            self.backend.programs += 1  # type: ignore[attr-defined]
            return plain.function(**arguments)

        return call


class WrongWhileTimed(Twin):
    """Returns the values of its first keys where the clock runs: not in the first call, nor where its
    caller judges."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        calls = []

        def call(**arguments: Any) -> Any:
            calls.append(1)
            callers = {frame.name for frame in traceback.extract_stack()}
            out = plain.function(**arguments)
            if len(calls) > 1 and not callers & {"judge"}:
                return Rounded(arguments["value"].values[..., : out.shape[-2], :].copy(), out.fmt)
            return out

        return call

"""Twins of the control, each with one fault of a harness or of a baseline; and honest ones."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends._numpy.attention import Definition
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Profiler


class Twin(Definition):
    """The reference with one fault of a harness or of a baseline: `changed` makes another call of it."""

    def prepare(self, inputs: Any) -> PreparedCall:
        plain = super().prepare(inputs)
        return replace(plain, function=self.changed(plain, inputs))

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        return plain.function


class Later:
    """An array that a thread is still computing, as a device's arrays are."""

    def __init__(self, compute: Any, before: threading.Thread | None) -> None:
        def work() -> None:
            if before is not None:
                before.join()
            time.sleep(0.02)  # long beside what a busy machine delays
            self._answer = compute()

        self.thread = threading.Thread(target=work)
        self.thread.start()

    @property
    def values(self) -> np.ndarray:
        self.thread.join()
        return self._answer.values

    @property
    def shape(self) -> tuple[int, ...]:
        self.thread.join()
        return self._answer.shape

    @property
    def fmt(self) -> Any:
        self.thread.join()
        return self._answer.fmt


class Asynchronous(NumpyBackend):
    """A backend whose calls return before they are done; it waits for nothing."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Rounded | Later)


class Synchronised(Asynchronous):
    """The same, and it waits."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.profiler = Waiting(self)


class Waiting(Profiler):
    """Joins the thread of an answer."""

    def sync(self, outputs: Any) -> None:
        if isinstance(outputs, Later):
            outputs.thread.join()


class Queued(Twin):
    """Computes on a thread, one call after the other."""

    last: threading.Thread | None = None

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> Later:
            out = Later(lambda: plain.function(**arguments), self.last)
            self.last = out.thread
            return out

        return call


class OnReading:
    """An array whose values are computed each time they are read."""

    def __init__(self, compute: Any, shape: tuple[int, ...], fmt: Any) -> None:
        self.compute, self.shape, self.fmt = compute, shape, fmt

    @property
    def values(self) -> np.ndarray:
        time.sleep(0.02)
        return self.compute().values


class Reading(NumpyBackend):
    """A backend that takes such arrays for its own."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Rounded | OnReading)


class Lazy(Twin):
    """Computes nothing before its answer is read."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> OnReading:
            query, value = arguments["query"], arguments["value"]
            shape = (*query.shape[:-1], value.shape[-1])
            return OnReading(lambda: plain.function(**arguments), shape, query.fmt)

        return call


class Compiling(NumpyBackend):
    """A backend that counts what its calls compile."""

    programs = 0

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.profiler = Counting(self)


class Counting(Profiler):
    """Says how many programs its backend compiled."""

    backend: Compiling

    def compilations(self, prepared: PreparedCall) -> int:
        return self.backend.programs


class CompilesInside(Twin):
    """Compiles in every call."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> Any:
            self.backend.programs += 1  # type: ignore[attr-defined]
            return plain.function(**arguments)

        return call


class CompilesFresh(Twin):
    """Compiles anew for every array it has not seen."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        seen: set[int] = set()

        def call(**arguments: Any) -> Any:
            if id(arguments["query"]) not in seen:
                seen.add(id(arguments["query"]))
                self.backend.programs += 1  # type: ignore[attr-defined]
            return plain.function(**arguments)

        return call


class CachedAnswer(Twin):
    """Returns its first answer for ever."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        kept: list[Any] = []

        def call(**arguments: Any) -> Any:
            if not kept:
                kept.append(plain.function(**arguments))
            return kept[0]

        return call


class CachedByInput(Twin):
    """Remembers its answers by the arrays it was given: right always, and computed once."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        # The arrays are kept, too: another one could have the number of one that is gone.
        kept: dict[int, tuple[Any, Any]] = {}

        def call(**arguments: Any) -> Any:
            query = arguments["query"]
            if id(query) not in kept:
                time.sleep(0.05)
                kept[id(query)] = query, plain.function(**arguments)
            return kept[id(query)][1]

        return call


class Paced(CachedByInput):
    """The same, and waits most of what computing takes, so that known inputs are hardly faster."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        cached = super().changed(plain, inputs)

        def call(**arguments: Any) -> Any:
            time.sleep(0.025)
            return cached(**arguments)

        return call


class AntiCausal(Twin):
    """Hides the past instead of the future."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(mask: Any, **arguments: Any) -> Any:
            turned = Rounded(mask.values.swapaxes(-1, -2), None)
            return plain.function(mask=turned, **arguments)

        return call


class WrongLayout(Twin):
    """Takes the axis of heads for that of positions."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            arrays = [Rounded(x.values.swapaxes(1, 2), x.fmt) for x in (query, key, value)]
            out = plain.function(
                **dict(zip(("query", "key", "value"), arrays, strict=True)), **rest
            )
            return Rounded(out.values.swapaxes(1, 2), out.fmt)

        return call


class WrongScale(Twin):
    """Scales by 1 / D instead of by its root."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        return Definition.prepare(self, inputs.replace(scale=1.0 / inputs.sizes.D)).function


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


class WrongNowAndThen(Twin):
    """Every twentieth answer is that of the wrong scale."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        wrong = Definition.prepare(self, inputs.replace(scale=1.0 / inputs.sizes.D)).function
        calls = []

        def call(**arguments: Any) -> Any:
            calls.append(1)
            return (wrong if len(calls) % 20 == 0 else plain.function)(**arguments)

        return call

"""Clocks: time calls in this process, or in the child that runs a user's function (`--isolate`).

A child measures its calls itself, because a message takes longer than many calls. But the user's code can
stop the child's clock. So the parent also measures the time until the child answers, less that of an
empty sample. The longer of both times counts. Of the attacks in `tests/exploits/on_clock.py`,
`patches_clock` and `answers_as_read` need it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import Any

import numpy as np

from attention_conformance.backends.engine import Step
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.run.isolation.link import HostPath
from attention_conformance.suite.run.isolation.remote import Remote
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs

CHILD_BACKEND, CHILD_SYNC = HostPath(("backend",)), HostPath(("backend", "sync"))
"""The backend in a child, and the function there that waits until outputs are computed."""

TRIPS = 9
"""Number of empty samples of a child, before it imports the user's file."""


@dataclass
class Rotation:
    """Makes the calls in `calls` in turn: a call of this object is a call of the next one. `turn` is the
    index of the last one.

    A child gets a copy of this object. The judging process counts turns, too, so that it knows to which
    inputs an answer belongs.
    """

    calls: Sequence[Callable[[], Any]]
    turn: int = 0

    def __call__(self) -> Any:
        self.count_calls(1)
        return self.calls[self.turn]()

    def count_calls(self, count: int) -> None:
        """Advance the turn by calls that were made in another process."""
        self.turn = (self.turn + count) % len(self.calls)


@dataclass
class SignedCall:
    """A call whose operand `name`, of the dtype `dtype`, is multiplied by signs (D,).

    The signs are passed when the call is made. So its answer cannot have been computed before.
    """

    backend: Backend
    step: Step
    prepared: PreparedCall
    cotangent: Any
    name: str
    dtype: DType

    def __call__(self, signs: Sequence[float]) -> Any:
        array = self.prepared.arguments[self.prepared.argument(self.name)]
        signed = array * self.backend.array(np.array(signs), self.dtype)
        return self.step(self.prepared.with_operands({self.name: signed}), self.cotangent)()


class Clock:
    """Times calls of a backend in this process. `round_trip`: 0, or for calls in another process the
    seconds of an empty sample. `uncertainty`: the seconds by which the time of one call may be off."""

    round_trip = 0.0

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @property
    def uncertainty(self) -> float:
        return 2 * self.round_trip

    def signed_call(self, inputs: Inputs, name: str, *call: Any) -> tuple[Any, Inputs]:
        """Returns a call whose operand `name` is multiplied by signs, and the inputs that it answers.

        The signs are drawn by the system's random numbers, which no seed predicts. `call`: the fields
        `step`, `prepared` and `cotangent` of `SignedCall`.
        """
        array = inputs.arrays[name]
        signs = SystemRandom().choices((-1.0, 1.0), k=array.shape[-1])
        signed_call = self._make_signed(*call, name, inputs.dtype)
        return partial(signed_call, signs), inputs.replace(**{name: array * signs})

    def _make_signed(self, *fields: Any) -> Any:
        """Returns a `SignedCall` in the process that makes calls. `fields`: its fields after
        `backend`."""
        return SignedCall(self.backend, *fields)

    def timed(self, call: Any, inner: int, slow: float = 0.0) -> tuple[float, Any]:
        """Returns the seconds of one call and the last output, by `protocol.timed`."""
        return protocol.timed(call, self.backend.sync, inner, slow)


class RemoteClock(Clock):
    """Times calls in the child of a backend."""

    def __init__(self, backend: Remote, round_trip: float) -> None:
        super().__init__(backend)
        self.link, self.round_trip = backend.link, round_trip

    def _make_signed(self, *fields: Any) -> Any:
        return self.link.ask(SignedCall, CHILD_BACKEND, *fields)

    def timed(self, call: Any, inner: int, slow: float = 0.0) -> tuple[float, Any]:
        """Returns the seconds of one call and the last output, by `protocol.timed` in the child. The time
        is at least that of the request, less that of an empty sample."""
        start = protocol.now()
        seconds, out = self.link.ask(protocol.timed, call, CHILD_SYNC, inner, slow)
        parent_seconds = protocol.now() - start
        is_possible = type(seconds) is float and 0 <= seconds * inner <= parent_seconds
        child_seconds = seconds * inner if is_possible else 0.0
        if isinstance(call, Rotation):
            call.count_calls(inner)
        total = max(child_seconds, parent_seconds - self.round_trip, protocol.LEAST_SECONDS)
        return total / max(inner, 1), out


def clock_of(backend: Backend, round_trip: float) -> Clock:
    """Returns the clock of calls of a backend; `round_trip` is the result of `measure_round_trip`."""
    return RemoteClock(backend, round_trip) if isinstance(backend, Remote) else Clock(backend)


def measure_round_trip(backend: Remote) -> float:
    """Returns the seconds of an empty sample in the child. Must be called before the child imports the
    user's file, which may slow empty samples."""
    clock, empty = RemoteClock(backend, 0.0), HostPath(("begin",))
    return statistics.median(clock.timed(empty, 0)[0] for _ in range(TRIPS))

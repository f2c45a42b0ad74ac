"""Clocks: time calls in this process, or in the child that runs a user's function (`--isolate`).

A child measures its calls itself, because a message takes longer than many calls. The code that it runs
can stop the child's clock. So the parent measures how long the child takes to answer, and refuses times
that are too short for that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backends.protocol import Backend
from suite.measure import protocol
from suite.measure.protocol import RefusedTime
from suite.measure.seen import arrays_of, plain_copies
from suite.run.isolation.link import Handle, Place
from suite.run.isolation.remote import Remote
from suite.spec.text import printable

TRIPS = 9
"""Number of empty samples of a child, before it imports the user's file."""


class Rotation:
    """Calls in turn: a call of this object is a call of the next one."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self.calls, self.turn = [*calls], 0

    def __call__(self) -> Any:
        self.turn = (self.turn + 1) % len(self.calls)
        return self.calls[self.turn]()

    @property
    def function(self) -> Callable[[], Any]:
        """What a backend calls."""
        return self


class Clock:
    """Times calls of a backend in this process."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def rotation(self, calls: Sequence[Any]) -> Any:
        """The calls in turn (see `Rotation`)."""
        return Rotation(calls)

    def timed(self, call: Any, inner: int, slow: float = 0.0) -> tuple[float, Any]:
        """The result of `protocol.timed`. The output is read by `opened`."""
        return protocol.timed(call, self.backend.profiler.sync, inner, slow)

    def opened(self, out: Any) -> Any:
        """The arrays of an output."""
        return out

    def plain(self, out: Any) -> Any:
        """New arrays with the values of an output. Raises what reading raises."""
        return plain_copies(out, self.backend)

    def reading(self, out: Any) -> float:
        """Seconds of reading all arrays of an output."""
        start = protocol.now()
        for array in arrays_of(self.opened(out), self.backend):
            self.backend.to_numpy(array)
        return protocol.now() - start

    def keep(self) -> None:
        """Let `check` see the last time."""

    def check(self) -> None:
        """Raise RefusedTime "clock" if the times that were kept cannot be true."""


@dataclass
class Held:
    """An output that stays in the child until the parent asks for it."""

    out: Any


def timed_and_held(
    call: Any, turn: int | None, sync: Callable[[Any], None], inner: int, slow: float
) -> tuple[float, Held]:
    """`protocol.timed` in the child; a rotation begins after its call number `turn`."""
    if turn is not None:
        call.turn = turn
    seconds, out = protocol.timed(call, sync, inner, slow)
    return seconds, Held(out)


def held_plain(held: Held, backend: Backend) -> Held:
    """`plain_copies` in the child."""
    return Held(plain_copies(held.out, backend))


@dataclass
class RemoteRotation:
    """A rotation in the child. The parent counts the turns: only then it knows which inputs an answer
    is to."""

    function: Handle
    count: int
    turn: int = 0


class RemoteClock(Clock):
    """Times calls in the child of a backend; `trip` are the seconds of `round_trip`."""

    def __init__(self, backend: Remote, trip: float) -> None:
        super().__init__(backend)
        self.link, self.trip = backend.link, trip
        self.asked: list[tuple[float, float]] = []
        self.impossible = ""

    def rotation(self, calls: Sequence[Any]) -> Any:
        return RemoteRotation(self.link.ask(Rotation, [*calls]), len(calls))

    def timed(self, call: Any, inner: int, slow: float = 0.0) -> tuple[float, Any]:
        rotates = isinstance(call, RemoteRotation)
        target, turn = (call.function, call.turn) if rotates else (call, None)
        sync = Place(("backend", "profiler", "sync"))
        start = protocol.now()
        seconds, held = self.link.ask(timed_and_held, target, turn, sync, inner, slow)
        waited = protocol.now() - start
        if type(seconds) is not float or not 0 <= seconds < math.inf:
            self.impossible, seconds = printable(repr(seconds)), waited / max(inner, 1)
        self.last = inner * seconds, waited
        if rotates:
            call.turn = (call.turn + inner) % call.count
        return seconds, held

    def opened(self, out: Any) -> Any:
        return self.link.ask(getattr, out, "out")

    def plain(self, out: Any) -> Any:
        return self.link.ask(held_plain, out, Place(("backend",)))

    def keep(self) -> None:
        self.asked.append(self.last)

    def check(self) -> None:
        if self.impossible:
            text = f"the function's process says {self.impossible} for the seconds of a call"
            raise RefusedTime("clock", text)
        said, waited = (statistics.median(times) for times in zip(*self.asked, strict=True))
        if waited > self.trip + said * (1 + protocol.APART) + protocol.APART_SECONDS:
            raise RefusedTime(
                "clock",
                f"the function's process says that a sample takes {said * 1e3:.3g} ms, and answers after "
                f"{waited * 1e3:.3g} ms; an empty sample takes {self.trip * 1e3:.3g} ms",
            )


def clock_of(backend: Backend, trip: float) -> Clock:
    """The clock of calls of a backend; `trip` is `round_trip` of a child."""
    return RemoteClock(backend, trip) if isinstance(backend, Remote) else Clock(backend)


def round_trip(backend: Remote) -> float:
    """Seconds of an empty sample in the child. Ask before the child imports the user's file, which may
    slow empty samples."""
    clock = RemoteClock(backend, 0.0)
    for _ in range(TRIPS):
        clock.timed(Place(("begin",)), 0)
        clock.keep()
    return statistics.median(waited - said for said, waited in clock.asked)

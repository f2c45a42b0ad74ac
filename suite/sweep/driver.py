"""The driver: hands tasks to an engine and takes in what comes back, until nothing is left or a limit is
reached. It imports no framework, and what it holds of a run is little: records go to files as they come.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from suite.front.progress import Progress
from suite.sweep.source import Source
from suite.sweep.store import SweepLimits
from suite.sweep.tasks import Task

BATCH_SECONDS = 20.0
"""What a task takes, about: what is lost where it dies. Handing one out takes some milliseconds."""

SHORTEST = 1.0
"""Seconds of a task at the end, where shorter ones let all machines end at once."""

WAIT = 1.0
"""Seconds between two looks at the limits."""

TOLD_EVERY = 30.0
"""Seconds after which it is written down what was spent."""

GRACE = 60.0
"""Seconds that tasks have which run as a limit is reached; then they are given up."""


class Died(Exception):
    """The process of a task died, for want of `memory` or otherwise; the message says what the engine
    knows."""

    def __init__(self, why: str, memory: bool = False) -> None:
        super().__init__(why)
        self.memory = memory


class Engine(Protocol):
    """What carries out tasks. A handle stands for one that was submitted."""

    def cores(self) -> float:
        """How many tasks can run at a time now."""

    def submit(self, task: Task[Any]) -> Any:
        """Have a task carried out; returns its handle."""

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """The handles of tasks that have ended, after so many seconds at most."""

    def result(self, handle: Any) -> Any:
        """What a task gave. Raises Died, or what it raised."""

    def cancel(self, handle: Any) -> None:
        """Give up a task."""


class Driver:
    """Works off sources. `spent` is called now and then, and at the end, as `limits` know more."""

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[Source],
        limits: SweepLimits,
        spent: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.sources, self.limits = engine, list(sources), limits
        self._spent, self._clock = spent, clock
        self._out: dict[Any, tuple[Source, Task[Any]]] = {}
        # What must be alone, and waits until nothing is out.
        self._held: tuple[Source, Task[Any]] | None = None

    def run(self) -> str:
        """Work until all sources are finished, or a limit is reached; returns which, "" for none.

        Raises what sources and tasks raise; tasks that still run are given up then.
        """
        before = told = self._clock()
        cores = self.engine.cores()
        given_up_at = math.inf
        try:
            while True:
                if not self.limits.reached:
                    self._hand_out(cores)
                elif given_up_at == math.inf:
                    given_up_at = self._clock() + GRACE
                if not self._out:
                    break
                for handle in self.engine.wait(list(self._out), WAIT):
                    self._take(handle)
                now = self._clock()
                self.limits.spend(now - before, cores)
                before, cores = now, self.engine.cores()
                if now - told >= TOLD_EVERY:
                    told = now
                    self._spent()
                if now >= given_up_at:
                    break
        finally:
            for handle in self._out:
                self.engine.cancel(handle)
            self._out.clear()
            with contextlib.suppress(
                OSError
            ):  # of a full disk, which is told of by who met it first
                self._spent()
        done = all(source.finished for source in self.sources)
        return "" if done else self.limits.reached

    def _hand_out(self, cores: float) -> None:
        """Keep every core busy, and as many tasks waiting: a cluster that grows sees that it should."""
        most = max(2, 2 * math.ceil(cores))
        while len(self._out) < most and not any(t.exclusive for _, t in self._out.values()):
            assignment = self._held or self._next(cores)
            if assignment is None:
                return
            source, task = assignment
            if assignment is not self._held:
                source.out.append(task)
            self._held = assignment if task.exclusive and self._out else None
            if self._held is not None:
                return
            self._out[self.engine.submit(task)] = assignment

    def _next(self, cores: float) -> tuple[Source, Task[Any]] | None:
        for source in self.sources:
            seconds = source.left / (2 * max(1.0, cores))
            task = source.next(min(BATCH_SECONDS, max(SHORTEST, seconds)))
            if task is not None:
                return source, task
        return None

    def _take(self, handle: Any) -> None:
        source, task = self._out.pop(handle)
        source.out.remove(task)
        try:
            result = self.engine.result(handle)
        except Died as death:
            source.died(task, str(death), death.memory)
        else:
            source.take(task, result)


class Counted:
    """How far a sweep is: cells against those that it owes, by backend."""

    def __init__(self, every: float, say: Callable[[str], None]) -> None:
        self._every, self._say = every, say
        self._progress: Progress | None = None

    def owe(self, cells: Counter[str]) -> None:
        """Take in how many more cells there are of each backend. Time counts from the first of them:
        to make an environment takes minutes."""
        if self._progress is None:
            self._progress = Progress(self._every)
        self._progress.owe(self._progress.owed + cells)

    def take(self, backends: Sequence[str], seconds: Sequence[float]) -> None:
        """Count judged cells, which were owed."""
        assert self._progress is not None
        lines = [
            self._progress.take(backend, took)
            for backend, took in zip(backends, seconds, strict=True)
        ]
        for line in filter(None, lines):
            self._say(line)

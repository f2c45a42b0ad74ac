"""Sources: where tasks come from. A sweep has one for every series and search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from suite.sweep.tasks import SweepError, Task

DEATHS = 3
"""How often a task may die before the sweep says that it cannot go on."""


class Source(ABC):
    """Gives out tasks, and takes in what comes back. `out` are those that are given out; `told` hears
    what becomes of them."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self.out: list[Task[Any]] = []
        self._ready: deque[Task[Any]] = deque()
        self._told = told
        self._deaths: Counter[str] = Counter()

    @abstractmethod
    def next(self, seconds: float) -> Task[Any] | None:
        """A task of about so many seconds, or None where there is none before others came back."""

    @abstractmethod
    def take(self, task: Task[Any], result: Any) -> None:
        """What came back of a task. Raises OSError where it cannot be written down."""

    def died(self, task: Task[Any], why: str, memory: bool = False) -> None:
        """The process of a task died, for want of `memory` or otherwise: have it run again. Raises
        SweepError where it died too often."""
        again = task.less() if memory else ()
        if not again:
            self._deaths[task.name] += 1
            if self._deaths[task.name] >= DEATHS:
                raise SweepError(f"{task.name} died {DEATHS} times: {why}")
            again = [self.alone(task)]
        self._ready += again
        self._told(f"{task.name} died ({why}); it is run again{again[0].manner}")

    def alone(self, task: Task[Any]) -> Task[Any]:
        """What is run where the process of a task died: by default the task."""
        return task

    @property
    @abstractmethod
    def left(self) -> float:
        """About how many seconds of one core the tasks take that are not given out."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing is left, and nothing is given out."""

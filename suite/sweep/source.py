"""Sources: where tasks come from. A sweep has one for every series, search and table of mutants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

from suite.sweep.tasks import SweepError, Task

DEATHS = 3
"""How often a task may die before the sweep says that it cannot go on."""


class Source(ABC):
    """Gives out tasks, and takes in what comes back. `out` are those that are given out."""

    def __init__(self) -> None:
        self.out: list[Task[Any]] = []
        self._deaths: Counter[str] = Counter()

    @abstractmethod
    def next(self, seconds: float) -> Task[Any] | None:
        """A task of about so many seconds, or None where there is none before others came back."""

    @abstractmethod
    def take(self, task: Task[Any], result: Any) -> None:
        """What came back of a task. Raises OSError where it cannot be written down."""

    @abstractmethod
    def died(self, task: Task[Any], why: str, memory: bool = False) -> None:
        """The process of a task died, for want of `memory` or otherwise; what becomes of it. Raises
        SweepError."""

    @property
    @abstractmethod
    def left(self) -> float:
        """About how many seconds of one core the tasks take that are not given out."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing is left, and nothing is given out."""

    def survive(self, task: Task[Any], why: str) -> None:
        """Count a death. Raises SweepError where there were too many."""
        self._deaths[task.name] += 1
        if self._deaths[task.name] >= DEATHS:
            raise SweepError(f"{task.name} died {DEATHS} times: {why}")

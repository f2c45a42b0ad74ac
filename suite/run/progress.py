"""Progress: the done part of a run, and the expected time of the rest."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

EVERY = {True: 10.0, False: 60.0}
"""Seconds between two lines: on a terminal (True) and elsewhere."""


class Progress:
    """Counts the judged cells of a run.

    `every` is the number of seconds between two lines. `clock` returns seconds.
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.owed: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._every, self._clock = every, clock
        self._began = self._said = clock()

    def owe(self, cells: Mapping[str, int]) -> None:
        """Take in the number of cells of each backend."""
        self.owed = Counter(cells)

    def take(self, backend: str, seconds: float) -> str:
        """Count a judged cell, which took some seconds; returns a line if one is due and cells are left,
        else ""."""
        self.judged[backend] += 1
        self._seconds[backend] += seconds  # type: ignore[assignment]
        now = self._clock()
        if now - self._said < self._every or self.judged.total() >= self.owed.total():
            return ""
        self._said = now
        return self.line()

    def line(self) -> str:
        """The number of judged cells of all, by backend if there are several, and the time left."""
        judged, owed = self.judged.total(), self.owed.total()
        each = [f"{name} {self.judged[name]} of {owed}" for name, owed in self.owed.items()]
        by_backend = f" ({', '.join(each)})" if len(each) > 1 else ""
        return f"{judged} of {owed} cells{by_backend}, about {span(self.left())} left"

    def left(self) -> float:
        """The seconds until all cells are judged.

        A cell is expected to take the average of its backend's cells, or of all cells if none of its
        backend is judged. Workers are taken to share the time as before.
        """
        spent = sum(self._seconds.values())
        share = (self._clock() - self._began) / spent if spent else 0.0
        usual = spent / max(1, self.judged.total())
        left = 0.0
        for name, owed in self.owed.items():
            done = self.judged[name]
            left += max(0, owed - done) * (self._seconds[name] / done if done else usual)
        return left * share


class Steps:
    """Announces each of `count` steps, with the expected time of the remaining steps."""

    def __init__(
        self,
        count: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._say, self._clock = count, say, clock
        self._begun, self._began = 0, clock()

    def next(self, text: str) -> None:
        """Announce the next step; the step before is over."""
        done, self._begun = self._begun, self._begun + 1
        each = (self._clock() - self._began) / done if done else 0.0
        left = f"; about {span(each * (self._count - done))} left" if done else ""
        self._say(f"{self._begun} of {self._count}: {text}{left}")


def span(seconds: float) -> str:
    """A time span for people: 45 s, 12 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"

"""Progress of a run: the number of judged cells, and the expected time of the remaining cells."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

EVERY = {True: 10.0, False: 60.0}
"""Seconds between two lines; the key is True for output to a terminal."""


class Progress:
    """Counts the judged cells of a run, and estimates the time left.

    `every` is the number of seconds between two lines. `clock` returns seconds. `owed` and `judged` are
    the numbers of cells to judge in total, and of judged cells, by backend.
    """

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.owed: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._every, self._clock = every, clock
        self._start = self._last_line_time = clock()

    def owe(self, cells: Mapping[str, int]) -> None:
        """Store the numbers of cells to judge in total, by backend."""
        self.owed = Counter(cells)

    def count_cell(self, backend: str, seconds: float) -> str:
        """Count a judged cell of a backend that took `seconds`. Returns a line if one is due and cells
        are left, else ""."""
        self.judged[backend] += 1
        self._seconds[backend] += seconds  # type: ignore[assignment]
        now = self._clock()
        if now - self._last_line_time < self._every or self.judged.total() >= self.owed.total():
            return ""
        self._last_line_time = now
        return self.line()

    def line(self) -> str:
        """Returns a line with the numbers of judged and of all cells, also by backend if there are
        several, and the time left."""
        judged, owed = self.judged.total(), self.owed.total()
        texts = [f"{name} {self.judged[name]} of {owed}" for name, owed in self.owed.items()]
        by_backend = f" ({', '.join(texts)})" if len(texts) > 1 else ""
        return f"{judged} of {owed} cells{by_backend}, about {span(self.left())} left"

    def left(self) -> float:
        """Returns the expected seconds until all cells are judged.

        A cell is expected to take as long as the average judged cell of its backend, or of all backends
        if its backend has none. Workers are expected to share the work as evenly as before."""
        judging_seconds = sum(self._seconds.values())
        elapsed_share = (self._clock() - self._start) / judging_seconds if judging_seconds else 0.0
        average = judging_seconds / max(1, self.judged.total())
        left = 0.0
        for name, owed in self.owed.items():
            judged = self.judged[name]
            left += max(0, owed - judged) * (self._seconds[name] / judged if judged else average)
        return left * elapsed_share


class Steps:
    """Announces each of `count` steps by `say`, with the expected time of the remaining steps. `clock`
    returns seconds."""

    def __init__(
        self,
        count: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._say, self._clock = count, say, clock
        self._number, self._start = 0, clock()

    def next(self, text: str) -> None:
        """Announce the next step, which is called `text`. The step before counts as finished."""
        finished, self._number = self._number, self._number + 1
        seconds = (self._clock() - self._start) / finished if finished else 0.0
        left = f"; about {span(seconds * (self._count - finished))} left" if finished else ""
        self._say(f"{self._number} of {self._count}: {text}{left}")


def span(seconds: float) -> str:
    """Returns a time span for people: 45 s, 12 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"

"""Sweeps made by hand, and an engine that needs no cluster, for the tests of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from suite.records import sweeps
from suite.records.cells import CellRecord
from suite.sweep.driver import Died
from suite.sweep.tasks import Task
from tests.records_by_hand import header


def swept(
    folder: Path,
    *cells: CellRecord,
    seed: int = 0,
    release: str = "",
    owed: int | None = None,
    parts: int = 1,
    **options: Any,
) -> Path:
    """The folder of a sweep with one more run, of these cells, in so many files; `owed` is how many cells
    the run has, where they are not all."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    if owed is not None:
        of_run = header(*cells, options=stated | {"release": release}, cells=owed)
    place = folder / sweeps.CELLS / f"run{seed}{release}{options}".replace(" ", "")
    size = -(-len(cells) // parts)
    for first in range(0, len(cells), size):
        some = cells[first : first + size]
        name = sweeps.file_name(first, first + len(some))
        sweeps.write(place / name, sweeps.encoded(of_run, some))
    return folder


class Here:
    """An engine that carries out tasks in this process, one at a time, in the order in which they come.

    `fate` is asked before each: a text is how its process dies, an exception is raised.
    """

    def __init__(self, fate: Callable[[Task[Any]], str | BaseException | None] = lambda t: None):
        self.fate = fate
        self.tasks: list[Task[Any]] = []
        self.cancelled: list[int] = []
        self._open: dict[int, Task[Any]] = {}

    def cores(self) -> float:
        return 1.0

    def submit(self, task: Task[Any]) -> int:
        self.tasks.append(task)
        self._open[len(self.tasks)] = task
        return len(self.tasks)

    def wait(self, handles: Sequence[int], seconds: float) -> list[int]:
        return [min(handles)]

    def result(self, handle: int) -> Any:
        task = self._open.pop(handle)
        fate = self.fate(task)
        if isinstance(fate, BaseException):
            raise fate
        if fate:
            raise Died(fate)
        return self.carry_out(task)

    def carry_out(self, task: Task[Any]) -> Any:
        """What a task that lives gives."""
        return task.run()

    def cancel(self, handle: int) -> None:
        self.cancelled.append(handle)

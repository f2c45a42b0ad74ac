"""Sweeps made by hand, and an engine that needs no cluster, for the tests of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite.checks import all_checks
from suite.front.options import Options
from suite.front.plan import Plan, record
from suite.records import sweeps
from suite.records.cells import CellRecord
from suite.sweep.driver import Died
from suite.sweep.plan import SweepPlan, plan_of
from suite.sweep.run import Sweep
from suite.sweep.store import Store, SweepLimits
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


NO_MEMORY = "no memory is left"
"""A fate of tasks."""


class Here:
    """An engine that carries out tasks in this process, one at a time, in the order in which they come.

    `fate` is asked before each: a text is how its process dies, `NO_MEMORY` for want of memory; an
    exception is raised.
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
            raise Died(fate, memory=fate == NO_MEMORY)
        return self.carry_out(task)

    def carry_out(self, task: Task[Any]) -> Any:
        """What a task that lives gives."""
        return task.run()

    def cancel(self, handle: int) -> None:
        self.cancelled.append(handle)


def sweep(
    folder: Path, plan: SweepPlan, engine: Here | None = None, limits: SweepLimits | None = None
) -> tuple[int, Here]:
    """The exit code of a sweep in this process, and its engine."""
    engine = engine or Here()
    with Store(folder, plan) as store:
        return Sweep(plan, store, engine, limits or SweepLimits()).run(), engine


def kinds(engine: Here) -> list[type]:
    """What an engine was asked for."""
    return [type(task) for task in engine.tasks]


def recorded(folder: Path) -> list[CellRecord]:
    """All records below a folder, without the time they took."""
    cells = [c for run in sweeps.runs(folder) for c in run.load().cells]
    return sorted((replace(c, seconds=0.0) for c in cells), key=lambda c: c.key)


FEW = {"backends": ["numpy"], "level": "smoke", "dtypes": ["f16"]}
"""A dozen cells."""


def few(**fields: Any) -> SweepPlan:
    """The plan of `FEW`."""
    return plan_of({"judge": [FEW | fields]})


def plainly(seed: int) -> tuple[str, list[CellRecord]]:
    """The digest of a plain run of `FEW`, and its records."""
    options = Options(("numpy",), level="smoke", dtype=("f16",), seed=seed)
    judge = Plan.make(options)
    cells = [cell for check in all_checks() for cell in judge.cells(check)]
    records = [replace(record(c, judge.judge(c)), seconds=0.0) for c in cells]
    return judge.digest()[0], sorted(records, key=lambda c: c.key)

"""Sweeps made by hand, and an engine that needs no cluster, for the tests of sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_conformance.suite.records.cells import CellRecord, writer
from attention_conformance.suite.records.sweeps import runs
from attention_conformance.suite.sweep.child import Outcome, carry_out
from attention_conformance.suite.sweep.cluster import Lost
from attention_conformance.suite.sweep.plan import SweepPlan, Task, plan_of
from attention_conformance.suite.sweep.run import Sweep
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
    """The folder of a sweep with one more run, of these cells, in so many shards; `owed` is how many
    cells the run has, where they are not all."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    of_run = replace(of_run, cells=of_run.cells if owed is None else owed)
    for part in range(1, parts + 1):
        shard = f"{part}/{parts}" if parts > 1 else ""
        name = f"run{seed}{release}{options}{shard}".replace(" ", "").replace("/", "of")
        file = writer(folder / f"{name}.jsonl", replace(of_run, shard=shard))
        for cell in cells[part - 1 :: parts]:
            file.write(cell)
        file.close()
    return folder


class Here:
    """An engine that carries out tasks in children of this process, one at a time, in the order in which
    they come. `fate` is asked before each: an outcome replaces what the task gives, an exception is
    raised."""

    def __init__(self, fate: Callable[[Task], Outcome | BaseException | None] = lambda t: None):
        self.fate = fate
        self.done: list[Task] = []
        self.cancelled: list[Task] = []

    def submit(self, task: Task) -> Task:
        return task

    def ended(self, handles: Sequence[Task], seconds: float) -> list[Task]:
        return [handles[0]]

    def outcome(self, handle: Task) -> Outcome:
        fate = self.fate(handle)
        if isinstance(fate, BaseException):
            raise fate
        self.done.append(handle)
        return fate or carry_out(handle)

    def cancel(self, handle: Task) -> None:
        self.cancelled.append(handle)


DIES = Lost("its process died")


def sweep(
    folder: Path, plan: SweepPlan, engine: Here | None = None, hours: float = 0.0
) -> tuple[int, Here]:
    """The exit code of a sweep in this process, and its engine."""
    engine = engine or Here()
    return Sweep(plan, folder).run(engine, hours), engine


FEW = {"backends": ["numpy"], "level": "smoke", "dtypes": ["f16"]}
"""A dozen cells."""


def few(**fields: Any) -> SweepPlan:
    """The plan of `FEW`."""
    return plan_of({"judge": [FEW | fields]})


def recorded(folder: Path) -> list[CellRecord]:
    """All records below a folder, without the time they took."""
    cells = [c for run in runs(folder) for c in run.load().cells]
    return sorted((replace(c, seconds=0.0) for c in cells), key=lambda c: c.key)

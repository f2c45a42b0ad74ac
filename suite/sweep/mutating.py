"""Machine-made mutants as tasks: each is a run of the suite against a framework with one change.

A mutant is drawn where the framework is installed, and so are the seconds that it has. Records are
those of `python -m suite mutants --framework`, in a file for every time that the sweep was begun or
continued.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backends.threads import thread_variables
from suite.mutation.run import Judge, Mutant, NotGreen, mutants
from suite.mutation.targets import Target, targets
from suite.records import faults, machine
from suite.records.faults import MUTANTS, FaultHeader, FaultRecord
from suite.records.lines import RecordError, Writer
from suite.sweep.plan import Mutating, seeds_of
from suite.sweep.source import Source
from suite.sweep.tasks import AS_A_CRASH, NO_MEMORY, PlainTask, SweepError, Task, check_versions

USUAL = 60.0
"""Seconds of a mutant of which nothing is known."""


@dataclass(frozen=True)
class OfMutants(PlainTask):
    """What tasks of one framework have in common: they judge in processes of their own."""

    framework: str
    level: str

    @property
    def group(self) -> str:
        return f"mutants of {self.framework} {self.level}"

    @property
    def release(self) -> str:
        return ""

    @property
    def variables(self) -> dict[str, str]:
        return thread_variables(1)


@dataclass(frozen=True)
class DrawnMutants:
    """The mutants of a framework, and the versions of the distributions that they change."""

    mutants: tuple[Mutant, ...]
    versions: dict[str, str]


@dataclass(frozen=True)
class DrawTask(OfMutants):
    """Draw mutants where the framework is. Raises SweepError where it is not installed."""

    module: str
    count: int
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"draw of {self.group}{self.manner}"

    def run(self) -> DrawnMutants:
        try:
            chosen = targets(self.framework, self.module)
            draws = [m for seed in self.seeds for m in mutants(chosen, self.count, seed)]
            names = dict.fromkeys(target.distribution for target in chosen)
            versions = {name: version(name) for name in names}
        except ModuleNotFoundError as error:
            raise SweepError(f"{self.group}: {error}") from error
        return DrawnMutants(tuple(dict.fromkeys(draws)), versions)


@dataclass(frozen=True)
class LimitTask(OfMutants):
    """Find out how many seconds the mutants of a target have. Raises SweepError where it is not green
    as it is."""

    target: Target

    @property
    def name(self) -> str:
        return f"{self.target.module} as it is, {self.group}{self.manner}"

    def run(self) -> float:
        try:
            return Judge(self.level).limit(self.target)
        except NotGreen as error:
            raise SweepError(str(error)) from error


@dataclass(frozen=True)
class MutantTask(OfMutants):
    """Judge one mutant, which has so many seconds."""

    mutant: Mutant
    limit: float

    @property
    def name(self) -> str:
        change = self.mutant.change
        place = f"{change.module}:{change.line} {change.start} {change.kind}"
        return f"{self.group}, {place}{self.manner}"

    def less(self) -> Sequence[Task[Any]]:
        if not self.exclusive:
            return super().less()
        return [NoMemoryMutant(**{**vars(self), "exclusive": False})]

    def run(self) -> FaultRecord:
        judge = Judge(self.level)
        target = self.mutant.target
        judge.limits[target.backend, target.implementations] = self.limit
        return judge.judge(self.mutant)


class NoMemoryMutant(MutantTask):
    """A mutant that no memory was enough for; it is not judged."""

    manner = AS_A_CRASH

    def less(self) -> Sequence[Task[Any]]:
        return ()

    def run(self) -> FaultRecord:
        return Judge(self.level).record(self.mutant, status="error", message=NO_MEMORY)


class Mutants(Source):
    """The mutants of one framework of a table. `told` hears what became of each."""

    def __init__(
        self, table: Mutating, framework: str, folder: Path, told: Callable[[str], None]
    ) -> None:
        super().__init__(told)
        self.folder = folder / MUTANTS
        self._of = (framework, table.level)
        self._ready.append(DrawTask(*self._of, table.module, table.count, seeds_of(table.seeds)))
        self._waiting: list[Mutant] = []
        self._limits: dict[tuple[str, tuple[str, ...]], float] = {}
        self._writer: Writer[FaultHeader, FaultRecord] | None = None
        self._options = {"framework": framework, "level": table.level, "module": table.module}
        self._versions: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._seconds = [0.0, 0]

    @property
    def title(self) -> str:
        """The mutants, for people."""
        return f"mutants of {' '.join(self._of)}"

    def next(self, seconds: float) -> Task[Any] | None:
        return self._ready.popleft() if self._ready else None

    def take(self, task: Task[Any], result: Any) -> None:
        if isinstance(result, DrawnMutants):
            self._begin(result)
        elif isinstance(task, LimitTask):
            key = (task.target.backend, task.target.implementations)
            self._limits[key] = result
            ready = [
                m for m in self._waiting if (m.target.backend, m.target.implementations) == key
            ]
            self._waiting = [m for m in self._waiting if m not in ready]
            self._ready += [MutantTask(*self._of, mutant, result) for mutant in ready]
        else:
            assert isinstance(task, MutantTask)
            name = task.mutant.target.distribution
            check_versions({name: result.version}, {name: self._versions[name]})
            self._write(result)

    @property
    def left(self) -> float:
        count = sum(isinstance(task, MutantTask) for task in self._ready) + len(self._waiting)
        spent, judged = self._seconds
        return count * (spent / judged if judged else USUAL)

    @property
    def finished(self) -> bool:
        return not (self.out or self._ready or self._waiting)

    def end(self, finished: bool) -> None:
        """Close the file, with a footer where the mutants are finished."""
        if self._writer is not None:
            self._writer.close(finished)
        self._writer = None

    def _begin(self, drawn: DrawnMutants) -> None:
        """Have all judged that no file has."""
        done = self._done()
        self._versions = drawn.versions
        for mutant in drawn.mutants:
            if mutant.key(drawn.versions[mutant.target.distribution], self._of[1]) not in done:
                self._waiting.append(mutant)
        first: dict[tuple[str, tuple[str, ...]], Target] = {}
        for mutant in self._waiting:
            target = mutant.target
            first.setdefault((target.backend, target.implementations), target)
        self._ready += [LimitTask(*self._of, target) for target in first.values()]
        self._told(f"{self.title}: {len(self._waiting)}, {len(done)} recorded")

    def _done(self) -> set[tuple[Any, ...]]:
        """The changes that are judged. Raises SweepError."""
        try:
            loaded = [faults.load(path, partial=True) for path in self._files()]
        except RecordError as error:
            raise SweepError(str(error)) from error
        return {record.key for content in loaded for record in content.records}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("-".join([*self._of, "*"]) + ".jsonl"))

    def _write(self, record: FaultRecord) -> None:
        if self._writer is None:
            names = ("-".join([*self._of, str(n)]) + ".jsonl" for n in itertools.count(1))
            path = next(path for name in names if not (path := self.folder / name).exists())
            origin = machine.origin() | {"options": self._options, "versions": self._versions}
            self._writer = faults.writer(path, FaultHeader(**origin))
        self._writer.write(record)
        self.counts[record.status] += 1
        self._seconds[0] += record.seconds
        self._seconds[1] += 1
        self._told(f"{record.status}: {record.module}:{record.line} {record.described}")

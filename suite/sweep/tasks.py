"""Tasks: what an engine carries out, on any machine. Each is plain data that travels, with what comes
back.

A task says in which release it is carried out, and which variables its process begins with. Tasks of one
`group` share processes, and so the frameworks that these have imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

from backends.registry import KERAS_ENGINES
from backends.threads import thread_variables
from suite.front.options import Options
from suite.records import sweeps
from suite.records.cells import CellRecord
from suite.spec.vocabulary import BROKEN
from suite.sweep.loaded import Loaded, Survey, loaded

AS_A_CRASH = ", as a crash for want of memory"
"""The manner of a task that no memory was enough for, and that is not carried out."""

NO_MEMORY = (
    "the process that judged it was ended because its machine was short of memory, also with nothing of "
    "the sweep beside it"
)

R_co = TypeVar("R_co", covariant=True)

Failure = tuple[str, str, str]
"""A way of failing, for people: implementation, check and kind."""


class Task(Protocol[R_co]):
    """What an engine carries out: `run` is called once, in a process of the task's group."""

    @property
    def name(self) -> str:
        """The task, for people, and in Ray's dashboard; no other task is called so."""

    @property
    def group(self) -> str:
        """Tasks of one group share processes."""

    @property
    def release(self) -> str:
        """The release whose environment it needs, "" for the machine's own."""

    @property
    def variables(self) -> dict[str, str]:
        """The variables of its process, set before anything is imported."""

    @property
    def exclusive(self) -> bool:
        """Whether nothing else of the sweep runs beside it."""

    @property
    def manner(self) -> str:
        """How it is carried out, at the end of its name; empty where as usual."""

    def less(self) -> Sequence[Task[R_co]]:
        """What is run instead where memory did not last; empty where it is run again as it is."""

    def run(self) -> R_co:
        """Carry it out."""


class SweepError(Exception):
    """The sweep cannot go on; the message says why. What is recorded stays, and can be continued."""


class WrongMachine(SweepError):
    """A machine is not like the one on which the sweep began; the message says how."""


@dataclass(frozen=True)
class PlainTask:
    """What tasks are that do not say otherwise: they run beside others, and where memory did not last,
    `exclusive`, with nothing beside them."""

    exclusive: bool = field(default=False, kw_only=True)
    usual: ClassVar[str] = ""
    """The manner of a task that runs beside others."""

    @property
    def manner(self) -> str:
        return ", with nothing beside it" if self.exclusive else self.usual

    def less(self) -> Sequence[Any]:
        return () if self.exclusive else [replace(self, exclusive=True)]


@dataclass(frozen=True)
class OfSeries(PlainTask):
    """What tasks of one series have in common."""

    options: Options
    release: str

    @classmethod
    def of_task(cls, task: OfSeries) -> Self:
        """The same task, carried out in this class' manner."""
        return cls(**vars(task))

    @property
    def group(self) -> str:
        options = self.options
        words = [
            *options.backend,
            options.level,
            options.mode,
            *options.implementation,
            *options.dtype,
        ]
        return " ".join([*words, *filter(None, [self.release]), *sweeps.switched_on(vars(options))])

    @property
    def variables(self) -> dict[str, str]:
        engines = {KERAS_ENGINES[name] for name in self.options.backend if name in KERAS_ENGINES}
        engine = {"KERAS_BACKEND": engines.pop()} if engines else {}
        return thread_variables(self.options.threads) | engine


@dataclass(frozen=True)
class SurveyTask(OfSeries):
    """Find out which cells the runs of a series have. Raises UsageError."""

    @property
    def name(self) -> str:
        return f"survey of {self.group}{self.manner}"

    def run(self) -> Survey:
        return loaded(self.options).survey()


@dataclass(frozen=True)
class WarmTask(OfSeries):
    """Import frameworks and list cells, as every process does before it judges: while another one
    surveys."""

    number: int

    @property
    def name(self) -> str:
        return f"start {self.number} of {self.group}"

    def run(self) -> None:
        loaded(self.options)


@dataclass(frozen=True)
class Judged:
    """The cells `first` to `end` - 1 of the run with this seed: their file, and what the driver has to
    know of them at once: cells by backend and status, seconds by cell, one failing cell of every way of
    failing, for people."""

    seed: int
    first: int
    end: int
    data: bytes
    counts: Counter[tuple[str, str]]
    seconds: list[float]
    failing: dict[Failure, str]


@dataclass(frozen=True)
class JudgeTask(OfSeries):
    """Judge the cells `first` to `end` - 1 of the runs with these seeds, whose identities
    (`Survey.identity`) come in the same order. Raises WrongMachine.
    """

    order: str
    first: int
    end: int
    seeds: tuple[int, ...]
    identities: tuple[dict[str, Any], ...]
    commit: str = ""
    dirty: bool = False

    @property
    def name(self) -> str:
        one = len(self.seeds) == 1
        seeds = f"seed {self.seeds[0]}" if one else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        return f"{self.group}, {seeds}, cells {self.first}-{self.end}{self.manner}"

    def run(self) -> list[Judged]:
        state = loaded(self.options)
        self.check(state.order, state.plan.versions)
        # Position by position: seeds share what is compiled for a cell.
        records: dict[int, list[CellRecord]] = {seed: [] for seed in self.seeds}
        with self.judging(state) as judge:
            for position in range(self.first, self.end):
                for seed in self.seeds:
                    last = position == self.end - 1 and seed == self.seeds[-1]
                    records[seed].append(judge(position, seed, last))
        return self.results(state, records)

    @contextmanager
    def judging(self, state: Loaded) -> Iterator[Callable[[int, int, bool], CellRecord]]:
        """A context with what judges a cell: a function of its position, its seed, and whether it is the
        last one."""
        yield state.judge

    def less(self) -> Sequence[Task[Any]]:
        return ()

    def check(self, order: str, versions: dict[str, str]) -> None:
        """Raise WrongMachine where this process would judge other cells, or other software."""
        wanted = self.identities[0]["versions"]
        check_versions(versions, wanted)
        if order != self.order:
            raise WrongMachine(
                "this machine's suite asks other cells than the one that began the sweep; have the same "
                "on every machine"
            )

    def results(self, state: Loaded, records: dict[int, list[CellRecord]]) -> list[Judged]:
        """What comes back of records by seed."""
        results = []
        for seed, identity in zip(self.seeds, self.identities, strict=True):
            cells = records[seed]
            header = state.header(
                seed, identity, release=self.release, commit=self.commit, dirty=self.dirty
            )
            broken = [cell for cell in cells if cell.status in BROKEN]
            results.append(
                Judged(
                    seed, self.first, self.end, sweeps.encoded(header, cells),
                    Counter((cell.backend, cell.status) for cell in cells),
                    [cell.seconds for cell in cells],
                    # Reversed: of cells that fail in one way the first is kept.
                    {_failure(cell): _told(cell) for cell in reversed(broken)},
                )
            )  # fmt: skip
        return results


def _failure(cell: CellRecord) -> Failure:
    return f"{cell.backend}:{cell.implementation}", cell.check, cell.kind


def _told(cell: CellRecord) -> str:
    """A failing cell in a line."""
    return (
        f"{cell.status} {cell.kind}: {cell.check} of {cell.backend}:{cell.implementation}, {cell.case}, "
        f"seed {cell.seed}: {' '.join(cell.message.split())[:200]}"
    )


def check_versions(versions: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise WrongMachine where a machine has other software than the one on which the sweep began."""
    if versions != wanted:
        raise WrongMachine(
            f"this machine has {listed(versions)}, the sweep began with {listed(wanted)}; have the same "
            "on every machine"
        )


def listed(versions: Mapping[str, str]) -> str:
    """Versions, for people."""
    return ", ".join(f"{name} {text}" for name, text in versions.items()) or "no framework"

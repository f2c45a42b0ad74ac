"""The plan of a sweep: a TOML file that says which runs and searches there are.

Everything that is wrong with it is a UsageError that names the place and lists what would be right.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backends.registry import UsageError
from suite.front.options import Options
from suite.measure.releases import LOCKS, LockError, Release, read
from suite.records.sweeps import INSTALLED

TIMING = ("bench", "benchmarks", "benchmark", "asv", "speed", "time", "times", "timing", "workload",
          "workloads")  # fmt: skip
"""What a plan may be asked for in vain: speed."""

NO_TIMING = (
    "a sweep does not time: its machines differ and share their cores with other work, and a time taken "
    "there says nothing. Measure speed on one quiet machine, with `python -m suite bench` or asv "
    "(docs/speed.md)"
)

MUTANTS = (
    "a sweep judges no machine-made mutants: remove [[mutants]], and run `python -m tests.mutation "
    "--framework=NAME` in a checkout"
)

MOST_SEEDS = 1_000_000


@dataclass(frozen=True)
class Judging:
    """A table [[judge]]: a run for every release and seed, of all its backends in one process, as
    `pytest suite` judges them. `seeds` are numbers and ranges ("0-19")."""

    backends: tuple[str, ...]
    level: str = Options.level
    mode: str = Options.mode
    seeds: int | str | tuple[int | str, ...] = 0
    releases: tuple[str, ...] = (INSTALLED,)
    implementations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    audit: bool = Options.audit
    optimized: bool = Options.optimized


@dataclass(frozen=True)
class Searching:
    """A table [[search]]: for every seed a random search of so many examples in all implementations of
    its backends."""

    backends: tuple[str, ...]
    examples: int = 1000
    mode: str = Options.mode
    seeds: int | str | tuple[int | str, ...] = 0
    implementations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    gradients: bool = True


@dataclass(frozen=True)
class SweepPlan:
    """A plan as it is written: tables, the seconds of a cell, and what an hour of one core costs, in any
    currency."""

    judge: tuple[Judging, ...] = ()
    search: tuple[Searching, ...] = ()
    core_hour: float = 0.0
    cell_timeout: float = Options.cell_timeout

    @property
    def digest(self) -> str:
        """What identifies the plan, however it is laid out in its file."""
        return hashlib.sha256(msgspec.json.encode(asdict(self), order="sorted")).hexdigest()[:16]


@dataclass(frozen=True)
class Series:
    """Runs that differ in their seeds alone: their options, the release, "" for what is installed, and
    the seeds."""

    options: Options
    release: str
    seeds: tuple[int, ...]

    def run(self, seed: int) -> Options:
        """The options of one of the runs."""
        return replace(self.options, seed=seed)

    def name(self, seed: int) -> str:
        """What a run's folder is called: readable, and another one for every run."""
        options = self.run(seed)
        identity = msgspec.json.encode([asdict(options), self.release], order="sorted")
        parts = [*options.backend, options.level, options.mode, self.release, f"seed{seed}"]
        text = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, parts)))[:100]
        return f"{text}-{hashlib.sha256(identity).hexdigest()[:8]}"

    @property
    def title(self) -> str:
        """The runs, for people."""
        words = [*self.options.backend, self.options.level]
        words += [self.options.mode] if self.options.mode != Options.mode else []
        return " ".join([*words, *filter(None, [self.release])])


def load(path: str | Path) -> SweepPlan:
    """Read a plan. Raises UsageError."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: expected a plan in TOML: {error}") from error
    try:
        return plan_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def plan_of(document: Mapping[str, Any]) -> SweepPlan:
    """The plan that a document holds, checked as far as that goes without a framework.

    Raises UsageError.
    """
    if "mutants" in document:
        raise UsageError(MUTANTS)
    _check_words("the plan", document, [f.name for f in fields(SweepPlan)])
    tables = {"judge": Judging, "search": Searching}
    for name, kind in tables.items():
        entries = document.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise UsageError(f"expected tables [[{name}]], got {entries!r}")
        for number, entry in enumerate(entries, 1):
            _check_words(f"[[{name}]] {number}", entry, [f.name for f in fields(kind)])
    try:
        plan = msgspec.convert(dict(document), SweepPlan)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error
    if not (plan.judge or plan.search):
        raise UsageError(
            f"nothing is asked for; write a table: {', '.join(f'[[{t}]]' for t in tables)}"
        )
    if not 0 <= plan.core_hour < float("inf"):
        raise UsageError(f"core_hour is what an hour of one core costs, got {plan.core_hour}")
    _check_apart(series_of(plan))
    for searching in plan.search:
        _positive("examples", searching.examples)
        search_options(plan, searching)
        seeds_of(searching.seeds)
    _check_searches_apart(plan)
    return plan


def series_of(plan: SweepPlan) -> list[Series]:
    """The runs of a plan, a series for every table and release. Raises UsageError."""
    series = []
    for judging in plan.judge:
        options = Options(
            backend=judging.backends, implementation=judging.implementations, dtype=judging.dtypes,
            level=judging.level, mode=judging.mode, audit=judging.audit, optimized=judging.optimized,
            cell_timeout=plan.cell_timeout,
        )  # fmt: skip
        if not judging.releases:
            raise UsageError(f"releases: name one, {INSTALLED!r} for what the machines have")
        options = _checked(options)
        seeds = seeds_of(judging.seeds)
        for release in judging.releases:
            if release != INSTALLED:
                lock(release)
            series.append(Series(options, "" if release == INSTALLED else release, seeds))
    return series


def search_options(plan: SweepPlan, searching: Searching) -> Options:
    """The options of a search; its seeds are those of cases, and values are drawn as in a run. Raises
    UsageError."""
    options = Options(
        backend=searching.backends, implementation=searching.implementations, mode=searching.mode,
        dtype=searching.dtypes, cell_timeout=plan.cell_timeout,
    )  # fmt: skip
    return _checked(options)


def _checked(options: Options) -> Options:
    """The options with backends by their own names. Raises UsageError."""
    if "all" in options.backend:
        raise UsageError(
            "backends: name each; what is installed may differ from machine to machine"
        )
    options.check()
    return replace(options, backend=tuple(options.backends))


def seeds_of(value: int | str | Sequence[int | str]) -> tuple[int, ...]:
    """Seeds as they are written: numbers, ranges "0-19", or a list of both. Raises UsageError."""
    parts = [value] if isinstance(value, int | str) else list(value)
    seeds: list[int] = []
    for part in parts:
        match = re.fullmatch(r"(\d{1,18})(?:\s*-\s*(\d{1,18}))?", str(part).strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first >= MOST_SEEDS:
            raise UsageError(f'seeds: expected numbers or ranges as "0-19", got {part!r}')
        seeds += range(first, last + 1)
    if not seeds:
        raise UsageError('seeds: name one or more, as "0-19"')
    if len(set(seeds)) < len(seeds):
        raise UsageError("seeds: a seed is named twice")
    return tuple(seeds)


def lock(release: str) -> Release:
    """The lock file of a release: one that comes with the project, by its name ("jax-0.8.1"), or any by
    its path. Raises UsageError."""
    path = Path(release) if release.endswith(".txt") else LOCKS / f"{release}.txt"
    if not path.is_file():
        names = ", ".join([INSTALLED, *sorted(path.stem for path in LOCKS.glob("*.txt"))])
        raise UsageError(f"unknown release {release!r}; valid: {names}, or the path of a lock file")
    try:
        return read(path)
    except (LockError, OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_words(where: str, words: Iterable[str], valid: Collection[str]) -> None:
    """Raise UsageError for a word that is none of the valid ones."""
    for word in words:
        if word.lower() in TIMING:
            raise UsageError(f"{where}: {word!r}: {NO_TIMING}")
        if word not in valid:
            raise UsageError(f"{where}: unknown word {word!r}; valid: {', '.join(valid)}")


def _positive(name: str, number: int) -> None:
    if number < 1:
        raise UsageError(f"{name} must be positive, got {number}")


def _check_apart(series: Sequence[Series]) -> None:
    """Raise UsageError where two series ask the same cells: they would count twice."""
    for n, one in enumerate(series):
        for other in series[:n]:
            if one.release == other.release and set(one.seeds) & set(other.seeds):
                shared = set(one.options.backends) & set(other.options.backends)
                if shared and not _differ(one.options, other.options):
                    raise UsageError(
                        f"{', '.join(sorted(shared))} with seed {min({*one.seeds} & {*other.seeds})} is "
                        "asked by two tables, and cells would count twice (every level holds those "
                        "before it); part them by seeds, modes, implementations or dtypes"
                    )


def _check_searches_apart(plan: SweepPlan) -> None:
    """Raise UsageError where two searches draw the same cases for the same implementations."""
    seen: set[tuple[Any, ...]] = set()
    for table in plan.search:
        options = search_options(plan, table)
        words = map(frozenset, (options.backend, options.implementation, options.dtype))
        drawn = (*words, options.mode, table.gradients)
        for seed in seeds_of(table.seeds):
            if (*drawn, seed) in seen:
                raise UsageError(
                    f"[[search]]: {', '.join(options.backend)} with seed {seed} is searched by two "
                    "tables, which draw the same cases; part them by seeds, modes, implementations or "
                    "dtypes"
                )
            seen.add((*drawn, seed))


def _differ(one: Options, other: Options) -> bool:
    """Whether two runs of one backend have no cell in common."""
    modes = one.mode != other.mode and "all" not in (one.mode, other.mode)
    return modes or any(
        _apart(getattr(one, n), getattr(other, n)) for n in ("implementation", "dtype")
    )


T = TypeVar("T")


def _apart(one: Collection[T], other: Collection[T]) -> bool:
    """Whether two filters, each of which is empty where it lets all pass, have nothing in common."""
    return bool(one) and bool(other) and not set(one) & set(other)


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds for people: "0-19", "3", "1, 5"."""
    return ", ".join(_ranges(sorted(seeds)))


def _ranges(seeds: Sequence[int]) -> Iterator[str]:
    start = 0
    for n, seed in enumerate(seeds):
        if n + 1 == len(seeds) or seeds[n + 1] != seed + 1:
            first = seeds[start]
            yield str(first) if first == seed else f"{first}-{seed}"
            start = n + 1

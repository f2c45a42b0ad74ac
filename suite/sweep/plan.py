"""The plan of a sweep: a TOML file that lists runs and searches.

Every mistake in a plan raises a UsageError, which names the place and the valid values.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.measure.releases import LOCKS, LockError, Release, read
from attention_conformance.suite.records.files import regular
from attention_conformance.suite.records.sweeps import INSTALLED
from attention_conformance.suite.run.options import Options

MOST_SEEDS = 1_000_000

Seeds = int | str | tuple[int | str, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all tables of a plan share. `seeds` are numbers and ranges ("0-19")."""

    backends: tuple[str, ...]
    implementations: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    mode: str = Options.mode
    seeds: Seeds = 0
    releases: tuple[str, ...] = (INSTALLED,)


class Judging(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [[judge]]: a run of `pytest suite` for every release and seed, in `shards` parts."""

    level: str = Options.level
    audit: bool = Options.audit
    optimized: bool = Options.optimized
    shards: int = 1


class Searching(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table [[search]]: a random search of `examples` cases for every release and seed."""

    examples: int = 1000
    gradients: bool = True


class SweepPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan: its tables, and the seconds after which a cell fails."""

    judge: tuple[Judging, ...] = ()
    search: tuple[Searching, ...] = ()
    cell_timeout: float = Options.cell_timeout

    @property
    def digest(self) -> str:
        """A digest of the content, independent of the layout of the file."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A command that one process runs.

    `words` stand after `python -m`, without `--results`. `title` is for people. `release` is the name or
    path of a lock file, "" for the installed packages.
    """

    title: str
    release: str
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The unique, readable name of the result file."""
        digest = hashlib.sha256(msgspec.json.encode([self.words, self.release])).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.title)[:100]}-{digest}"


def load(path: str | Path) -> SweepPlan:
    """Read a plan. Raises UsageError."""
    path = Path(path)
    try:
        document = tomllib.loads(regular(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: expected a plan in TOML: {error}") from error
    try:
        return plan_of(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def plan_of(document: Mapping[str, Any]) -> SweepPlan:
    """The plan in a TOML document, checked without importing a framework. Raises UsageError."""
    try:
        plan = msgspec.convert(dict(document), SweepPlan)
    except msgspec.ValidationError as error:
        words = (f"{name}: {', '.join(kind.__struct_fields__)}" for name, kind in KINDS.items())
        raise UsageError(f"{error}; words are {'; '.join(words)}") from error
    if not (plan.judge or plan.search):
        raise UsageError("nothing is asked for; write a table: [[judge]] or [[search]]")
    for tables in (plan.judge, plan.search):
        for one, other in combinations(tables, 2):
            _check_apart(one, other)
    names = [task.name for task in tasks(plan)]
    assert len(set(names)) == len(names)
    return plan


KINDS: dict[str, type[msgspec.Struct]] = {
    "the plan": SweepPlan, "[[judge]]": Judging, "[[search]]": Searching,
}  # fmt: skip


def tasks(plan: SweepPlan) -> list[Task]:
    """The tasks of a plan: runs, then searches, each in the order of the plan. Raises UsageError."""
    tables: list[Judging | Searching] = [*plan.judge, *plan.search]
    return [task for table in tables for task in _tasks(plan, table)]


def _tasks(plan: SweepPlan, table: Judging | Searching) -> Iterator[Task]:
    options = _options(plan, table)
    if isinstance(table, Judging):
        options = replace(options, level=table.level, audit=table.audit, optimized=table.optimized)
        kind, count, more = [*options.backend, table.level], table.shards, []
        # -n 1: if a cell ends its process, the run continues in a new one.
        checks = "attention_conformance.suite"
        command = ["pytest", "-q", "-n", "1", "-p", f"{checks}.plugin", "-p", "no:cacheprovider",
                   "--pyargs", checks]  # fmt: skip
        _check_positive("shards", count)
    else:
        kind, count, command = (
            ["search", *options.backend],
            1,
            ["attention_conformance.suite", "search"],
        )
        more = [f"--examples={table.examples}", *([] if table.gradients else ["--no-gradients"])]
        _check_positive("examples", table.examples)
    options.check()
    mode = table.mode if table.mode != Options.mode else ""
    for release, seed in _times(table):
        for shard in range(1, count + 1):
            part = f"{shard}/{count}" if count > 1 else ""
            words = replace(options, seed=seed, shard=part).command_line(every=True)
            named = (*kind, mode, release, f"seed {seed}", part and f"part {part}")
            yield Task(" ".join(filter(None, named)), release, (*command, *words, *more))


def _times(table: Table) -> Iterator[tuple[str, int]]:
    """Every pair of a release ("" for the installed packages) and a seed. Raises UsageError."""
    if not table.releases:
        raise UsageError(f"releases: name one, {INSTALLED!r} for the installed packages")
    for release in table.releases:
        if release != INSTALLED:
            lock(release)
        for seed in seeds_of(table.seeds):
            yield "" if release == INSTALLED else release, seed


def _options(plan: SweepPlan, table: Table) -> Options:
    """The options that all tables share; aliases of backends are resolved. Raises UsageError."""
    if "all" in table.backends:
        raise UsageError(
            "backends: name each; the installed backends may differ from machine to machine"
        )
    options = Options(
        backend=table.backends, implementation=table.implementations, dtype=table.dtypes,
        mode=table.mode, cell_timeout=plan.cell_timeout,
    )  # fmt: skip
    return replace(options, backend=tuple(options.backends))


def seeds_of(value: Seeds | Sequence[int | str]) -> tuple[int, ...]:
    """Parse seeds: a number, a range "0-19", or a list of both. Raises UsageError."""
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
    """Read the lock file of a release, by name ("jax-0.8.1") or by path. Raises UsageError."""
    path = Path(release) if release.endswith(".txt") else LOCKS / f"{release}.txt"
    if not path.is_file():
        names = ", ".join([INSTALLED, *sorted(path.stem for path in LOCKS.glob("*.txt"))])
        raise UsageError(f"unknown release {release!r}; valid: {names}, or the path of a lock file")
    try:
        return read(path)
    except (LockError, OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _check_positive(name: str, number: int) -> None:
    if number < 1:
        raise UsageError(f"{name} must be positive, got {number}")


def _check_apart(one: Table, other: Table) -> None:
    """Raise UsageError if two tables contain the same cells, which would be counted twice."""
    backends = set(Options(one.backends).backends) & set(Options(other.backends).backends)
    seeds = set(seeds_of(one.seeds)) & set(seeds_of(other.seeds))
    if not (backends and seeds and set(one.releases) & set(other.releases)):
        return
    modes = one.mode == other.mode or "all" in (one.mode, other.mode)
    filters = ((one.implementations, other.implementations), (one.dtypes, other.dtypes))
    if modes and all(_meet(*pair) for pair in filters):
        raise UsageError(
            f"{', '.join(sorted(backends))} with seed {min(seeds)} is in two tables and would count "
            "twice (every level includes the lower levels); separate the tables by seeds, modes, "
            "implementations or dtypes"
        )


def _meet(one: Collection[str], other: Collection[str]) -> bool:
    """Whether two filters have a common element; an empty filter accepts everything."""
    return not one or not other or bool(set(one) & set(other))

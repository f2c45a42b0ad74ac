"""Runs: the suite against a framework with one change, each in a process of its own."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from suite.records import cells
from suite.records.lines import RecordError
from suite.records.machine import ROOT
from suite.run.process import run_module
from suite.spec.vocabulary import BROKEN
from tests.mutation.changes import Change, changes
from tests.mutation.loader import VARIABLE
from tests.mutation.records import FaultRecord
from tests.mutation.targets import Target

BESIDES = 60.0
"""Seconds that a mutant has beyond three times what the framework as it is takes."""

GREEN, RED = 0, 1
"""The exit codes of pytest that say that a run was made."""


class NotGreen(Exception):
    """The framework as it is does not end green; the message says how it ends."""


@dataclass(frozen=True)
class Mutant:
    """A change, and whose implementations are asked."""

    target: Target
    change: Change

    def key(self, version: str, level: str) -> tuple[str, str, int, str, str, str]:
        """The key of its record, where its distribution has this version."""
        c = self.change
        return (c.module, version, c.start, c.old, c.new, level)


def mutants(targets: Sequence[Target], count: int, seed: int) -> list[Mutant]:
    """`count` mutants, drawn evenly from the targets and without repetition; fewer where there are no
    more. Raises ModuleNotFoundError where a framework is not installed."""
    chance = random.Random(seed)
    pools = []
    for target in targets:
        text = target.path.read_text(encoding="utf-8")
        pool = [Mutant(target, change) for change in changes(text, target.module, target.names)]
        chance.shuffle(pool)
        pools.append(pool)
    turns = (
        pool[n] for n in range(max(map(len, pools), default=0)) for pool in pools if n < len(pool)
    )
    return [mutant for mutant, _ in zip(turns, range(count), strict=False)]


class Judge:
    """Runs the suite at a level, `jobs` runs at a time, with more `variables` than this process has.

    `limits` are the seconds that a mutant has, by backend and implementations: three times what these
    take as they are, and a minute.
    """

    def __init__(
        self, level: str, jobs: int = 1, variables: Mapping[str, str] | None = None
    ) -> None:
        self.level, self.jobs, self.variables = level, jobs, dict(variables or {})
        self.limits: dict[tuple[str, tuple[str, ...]], float] = {}

    def judged(self, chosen: Sequence[Mutant]) -> Iterator[FaultRecord]:
        """What becomes of each mutant, in their order. Raises NotGreen."""
        for target in dict.fromkeys(mutant.target for mutant in chosen):
            self.limit(target)
        with ThreadPoolExecutor(self.jobs) as threads:
            yield from threads.map(self.judge, chosen)

    def limit(self, target: Target) -> float:
        """The seconds that a mutant of the target has; the target is run as it is, once. Raises
        NotGreen."""
        key = (target.backend, target.implementations)
        if key not in self.limits:
            self.limits[key] = 3 * self._as_it_is(target) + BESIDES
        return self.limits[key]

    def judge(self, mutant: Mutant) -> FaultRecord:
        """What becomes of one mutant. A backend without a limit is run as it is first. Raises
        NotGreen."""
        seconds = 0.0
        for target in mutant.target.everywhere:
            limit = self.limit(target)
            with tempfile.TemporaryDirectory(prefix="attention-mutant-") as folder:
                results = Path(folder) / "cells.jsonl"
                start = time.perf_counter()
                code, said = self._run(target, results, limit, mutant.change)
                seconds += time.perf_counter() - start
                status, fields = _outcome(code, said, results)
            if status != "survived":
                break
        change = mutant.change
        return FaultRecord(
            framework=target.framework, version=version(target.distribution), module=change.module,
            function=change.function, line=change.line, start=change.start, change=change.kind,
            old=change.old, new=change.new, level=self.level, backend=target.backend, status=status,
            seconds=round(seconds, 3), **fields,
        )  # fmt: skip

    def _as_it_is(self, target: Target) -> float:
        """Seconds that the target takes as it is."""
        with tempfile.TemporaryDirectory(prefix="attention-mutant-") as folder:
            start = time.perf_counter()
            code, said = self._run(target, Path(folder) / "cells.jsonl", 0.0, None)
        if code != GREEN:
            raise NotGreen(
                f"{target.framework} as it is ends with exit code {code}; expected 0: nothing could be "
                f"seen of a change. Its last lines:\n{_last(said, 5)}"
            )
        return time.perf_counter() - start

    def _run(
        self, target: Target, results: Path, limit: float, change: Change | None
    ) -> tuple[int | None, str]:
        """Exit code and output of a run up to the first failure; None where it did not end in time."""
        own = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        own[VARIABLE] = "" if change is None else json.dumps(asdict(change))
        words = [
            "pytest", "-x", "-q", "-p", "tests.mutation.loader",
            "-p", "suite.plugin", "-p", "no:cacheprovider", "--pyargs", "suite",
            f"--backend={target.backend}", f"--level={self.level}", f"--results={results}",
            *(f"--implementation={name}" for name in target.implementations),
        ]  # fmt: skip
        return run_module(words, results.parent, {**own, **self.variables}, limit)


def _outcome(code: int | None, said: str, results: Path) -> tuple[str, dict[str, str]]:
    """The status of a mutant, and the check, case, implementation and message of what killed it."""
    if code is None:
        return "timed-out", {"message": _last(said)}
    if code == GREEN:
        return "survived", {}
    try:
        failing = [c for c in cells.load(results, partial=True).cells if c.status in BROKEN]
    except RecordError:
        failing = []
    if failing:
        cell = failing[0]
        names = {"check": cell.check, "case": cell.case, "implementation": cell.implementation}
        return "killed", {**names, "message": cell.message}
    if code == RED:
        return "killed", {"check": "expectations", "message": _last(said)}
    if "cannot be used" in said or "Error" in said:
        return "not-imported", {"message": _last(said)}
    # What kills the process without a word (a crash of the interpreter) is seen, too.
    return ("killed" if code < 0 else "error"), {"message": f"exit code {code}: {_last(said)}"}


def _last(said: str, count: int = 1) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return "\n".join(lines[-count:])

"""The plan of a run over stored answers, with the cells, verdicts and records of any backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance import suite
from attention_conformance.backends.claims import read_elections
from attention_conformance.backends.registry import ALIASES, UsageError, registered
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records.cells import CellRecord, Header
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import header, record
from attention_conformance.suite.vectors.answers import read_answers
from attention_conformance.suite.vectors.asked import StoredProblem, problems_of
from attention_conformance.suite.vectors.index import Index, Runtime, VectorsError
from attention_conformance.suite.vectors.options import JudgeOptions, Selection
from attention_conformance.suite.vectors.runtime import StoredBackend


@dataclass(frozen=True)
class StoredPlan(Plan):
    """The plan of a run over the answers to the cases `ids`."""

    ids: frozenset[str] = frozenset()
    filtered: bool = False
    digest_of_vectors: str = ""

    def cells(self, check: Check, whole: bool = False) -> list[Cell]:
        """The cells of a check; [] if the check needs more than one answer to a case."""
        if not check.single_answer:
            return []
        return [cell for cell in super().cells(check, whole) if cell.case.id in self.ids]

    def every_cell(self) -> list[Cell]:
        """The cells of all checks."""
        return [cell for check in all_checks().values() for cell in self.cells(check)]

    @property
    def title(self) -> str:
        """The runtime's name and version, and the vectors."""
        (name,) = self.options.backend
        seed = f", seed {self.options.seed}" if self.options.seed else ""
        return f"{name} {self.versions[name]}, vectors of level {self.options.level}{seed}"

    def header(self) -> Header:
        """The header of the records."""
        return header(self.options, self.identity(), self.filtered, vectors=self.digest_of_vectors)


def plan_of(folder: Path, asked: JudgeOptions) -> StoredPlan:
    """The plan that judges the answers in a folder. Raises VectorsError and UsageError."""
    vectors = asked.vectors
    answers = read_answers(folder, vectors)
    index, runtime = answers.index, answers.runtime
    if runtime.name in (*registered(), *ALIASES):
        raise UsageError(
            f"a runtime cannot be called {runtime.name!r}, which is a backend of the suite: choose "
            "another name"
        )
    ids = frozenset(entry.case for entry in index.cases)
    if unknown := sorted(set(asked.case) - ids):
        raise UsageError(f"{unknown[0]!r} is no case of {vectors}")
    backend = StoredBackend(answers, as_drawn_here(index, vectors), claimed(runtime, asked))
    options = Options(
        (runtime.name,), level=index.level, seed=index.seed, numerics=asked.numerics,
        elect=asked.elect, expect=asked.expect,
    )  # fmt: skip
    plan = StoredPlan(
        options,
        [load_backend(backend, options)],
        {},
        ids=frozenset(asked.case) or ids,
        filtered=bool(asked.case or index.operators or index.dtypes),
        digest_of_vectors=index.digest,
    )
    if stale := plan.stale_expectations():
        raise UsageError("stale expectations: " + "; ".join(stale))
    return plan


def claimed(runtime: Runtime, asked: JudgeOptions) -> dict[str, Any]:
    """The claims of a runtime by options, else by `runtime.json`."""
    return {
        "numerics": asked.numerics or runtime.numerics,
        "elections": {**runtime.elections, **read_elections(asked.elect)},
    }


def as_drawn_here(index: Index, vectors: Path) -> list[StoredProblem]:
    """The problems of an index, drawn by this version of the suite. Raises VectorsError if the drawn
    inputs differ from the vectors."""
    selection = Selection(index.level, index.seed, index.operators, index.dtypes)
    problems = {one.id: one for one in problems_of(selection)}
    theirs = {entry.case: entry.inputs_sha256 for entry in index.cases}
    other = [
        name for name in theirs if name not in problems or problems[name].digest() != theirs[name]
    ]
    other += [name for name in problems if name not in theirs]
    if other:
        raise VectorsError(
            f"{vectors} was made by version {index.suite} of the suite, this is {suite.__version__}: "
            f"{len(other)} cases differ, the first is {other[0]}. Judge with version {index.suite}, or "
            "make the vectors anew and answer them"
        )
    return list(problems.values())


def judged(plan: StoredPlan) -> Iterator[CellRecord]:
    """The records of all cells, as they are judged."""
    for cell in plan.every_cell():
        yield record(cell, judge(cell, plan.policy(cell, 0.0)))

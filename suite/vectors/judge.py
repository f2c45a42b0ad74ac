"""Judge stored answers with the cells, verdicts and records of any backend."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from attention_conformance import suite
from attention_conformance.backends.registry import ALIASES, UsageError, registered
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.coverage import NOT_JUDGED_ENOUGH, shortfalls
from attention_conformance.suite.records.files import new_file
from attention_conformance.suite.report import summary
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import header, record
from attention_conformance.suite.run.terminal import MOST, failure_lines, groups
from attention_conformance.suite.spec.vocabulary import BROKEN
from attention_conformance.suite.vectors.asked import stored_cases
from attention_conformance.suite.vectors.files import VectorsError, encoded, read_index, sha256
from attention_conformance.suite.vectors.options import JudgeOptions
from attention_conformance.suite.vectors.runtime import StoredBackend


@dataclass(frozen=True)
class StoredPlan(Plan):
    """The plan of a run that judges stored answers. `ids`: the ids of the cases to judge. `filtered`:
    True if these are only a part of the level. `vectors`: the digest of the vectors."""

    ids: frozenset[str] = frozenset()
    filtered: bool = False
    vectors: str = ""

    def cells(self, check: Check, whole: bool = False) -> list[Cell]:
        """Returns the cells of a check for the cases `ids`; [] if the check needs several answers to a
        case."""
        cells = super().cells(check, whole) if check.single_answer else []
        return [cell for cell in cells if cell.case.id in self.ids]


def plan_of(folder: Path, options: JudgeOptions) -> StoredPlan:
    """Returns the plan that judges the answers in a folder. Raises UsageError, and VectorsError if this
    version of the suite has other cases or draws other inputs."""
    index = read_index(options.vectors)
    problems = stored_cases(index.selection)
    here = {(problem.case.id, sha256(encoded(problem.arrays()))) for problem in problems}
    if differing := dict(here ^ {(entry.case, entry.inputs_sha256) for entry in index.cases}):
        raise VectorsError(
            f"{options.vectors} was made by version {index.suite} of the suite, this is "
            f"{suite.__version__}: {len(differing)} cases differ, the first is {min(differing)}. Judge "
            f"with version {index.suite}, or make the vectors anew and answer them"
        )
    backend, ids = StoredBackend(folder, index, problems), frozenset(name for name, _ in here)
    if backend.name in (*registered(), *ALIASES):
        raise UsageError(
            f"{backend.name!r} is a backend of the suite: give the runtime another name"
        )
    if unknown := sorted({*options.case} - ids):
        raise UsageError(f"{unknown[0]!r} is no case of {options.vectors}")
    run_options = Options((backend.name,), level=index.selection.level, seed=index.selection.seed)
    filtered = bool(options.case or index.selection.operator or index.selection.dtype)
    loaded, ids = [load_backend(backend, run_options)], frozenset(options.case) or ids
    plan = StoredPlan(run_options, loaded, {}, ids, filtered, index.digest)
    if stale := plan.stale_expectations():
        raise UsageError("stale expectations: " + "; ".join(stale))
    return plan


def judge_answers(folder: Path, options: JudgeOptions) -> int:
    """Judge a folder of answers, print the verdict, and write the records if the options name a file.
    Returns the exit code. Raises as `plan_of`, and OSError."""
    plan = plan_of(folder, options)
    file = new_file(options.results) if options.results else None
    cells = [cell for check in all_checks().values() for cell in plan.cells(check)]
    head = header(plan.options, plan.identity(), plan.filtered, vectors=plan.vectors)
    run = Run(head, tuple(record(cell, judge(cell, plan.policy(cell, 0.0))) for cell in cells))
    if file is not None:
        run.save(options.results, file)

    def commands(cell: CellRecord) -> Mapping[str, str]:
        words = replace(options, case=(cell.case,)).command_line()
        again = ["attention-conformance", "vectors", "judge", str(folder), *words]
        return {"again": shlex.join(again)}

    reasons = shortfalls(run.cells, (), filtered=plan.filtered)
    failures, in_full = groups(run), options.verbose
    limits = (len(failures), commands, len(failures)) if in_full else (MOST, commands)
    print(
        *(summary.tables(run) if in_full else summary.statuses(run)),
        summary.verdict(run, reasons),
        *failure_lines(run, failures, *limits),
        "",
        *summary.summary_lines(run.cells, {}),
        *([] if in_full else [summary.HIDDEN]),
        *(f"not judged enough: {text}" for text in reasons),
        sep="\n",
    )
    if not run.totals["pass"] or any(run.totals[status] for status in BROKEN):
        return 1
    return NOT_JUDGED_ENOUGH if reasons else 0

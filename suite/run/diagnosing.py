"""Diagnoses of a run: what is wrong with implementations that fail, and the smallest case that shows it.

Failing cells of user functions are diagnosed; without user functions, new failures of a framework. No
verdict is changed: an exception becomes a note. In a run with workers the process that writes records has
no backend, so a child process loads the plan again.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from attention_conformance.backends.protocol import ENDS, Implementation, TimeOver, UsageError
from attention_conformance.backends.sources import JUDGED
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.diagnose import choose_cells, diagnose, simplicity
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.instrument import deadline
from attention_conformance.suite.judge.judge import Policy, judge
from attention_conformance.suite.judge.verdict import Verdict, first_line
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.diagnoses import (
    NO_REPORT,
    DiagnosisRecord,
    FailureReport,
    group_order,
)
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.process import run_module, time_limit
from attention_conformance.suite.run.script import NoScript, script
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.spec.smaller import simpler_cases, smallest_failing, what_it_takes
from attention_conformance.suite.spec.vocabulary import SEARCHED, VALUES

SECONDS = 5.0
"""Processor seconds for the diagnoses of a run and its smaller case."""

COMPILING_FACTOR = 5
"""How many times as long diagnoses may take in frameworks that compile every call for its shapes."""

SHRINK_SECONDS = 1.5
"""The part of `SECONDS` for the smaller case."""

HANG_SECONDS = 300.0
"""Elapsed seconds after which a diagnosis is broken off, also on a busy machine."""

LOAD_SECONDS = 300.0
"""Seconds in which a child must have imported the framework and answered."""

MOST_IMPLEMENTATIONS = 2
"""The number of implementations that are diagnosed, those with the most failures."""

MOST_FIRST_CALLS = 3
"""The number of failing cells that are judged again, each as the first call of a new import."""

MOST_PASSING = 300
"""The number of passing cells that a diagnosis can choose from."""

NO_WRONG_ANSWER = ("stale-claim", "unexpected-pass", "no-raise", "forbidden")
"""Kinds of failures that are no wrong answers."""


def diagnose_run(plan: Plan, cells: Sequence[CellRecord], folder: Path | None) -> FailureReport:
    """Diagnose the failures among `cells`, the records of a run of the plan, and shrink one of them.
    Returns the report. The script of the smaller case is written into `folder`, if not None. The
    diagnosis has a time limit if cells have one. Errors become notes of the report; only exceptions that
    end the process are raised."""
    try:
        with time_limit(HANG_SECONDS if plan.options.cell_timeout else 0.0, "the diagnosis"):
            return _diagnose(plan, cells, folder)
    except (Exception, TimeOver) as error:
        return FailureReport(notes=(f"no diagnosis: {first_line(error)}",))


def diagnose_in_child(
    options: Options, cells: Sequence[CellRecord], folder: Path | None
) -> FailureReport:
    """Call `diagnose_run` in a child process, which loads the plan of these options. Returns its report;
    `NO_REPORT` if no answer is wrong."""
    if not any(map(_is_wrong_answer, cells)):
        return NO_REPORT
    with TemporaryDirectory(prefix="attention-") as temporary:
        path = Path(temporary) / "cells"
        path.write_bytes(pickle.dumps((sys.path, options, _failing_and_passing(cells), folder)))
        _, output = run_module([__name__, str(path)], Path.cwd(), {}, LOAD_SECONDS)
        try:
            return msgspec.json.decode(path.read_bytes(), type=FailureReport)
        except msgspec.DecodeError:
            last_line = (output.strip().splitlines() or ["it says nothing"])[-1]
            return FailureReport(notes=(f"no diagnosis: {last_line}",))


def _answer_request(path: Path) -> None:
    """Read a request, a trusted pickle, from a file. Diagnose, and overwrite the file with the report as
    JSON."""
    sys.path[:], options, cells, folder = pickle.loads(path.read_bytes())
    path.write_bytes(msgspec.json.encode(diagnose_run(Plan.make(options), cells, folder)))


def _is_wrong_answer(cell: CellRecord) -> bool:
    """True if the cell failed because of an answer: then it is diagnosed."""
    return cell.status == "fail" and cell.kind not in NO_WRONG_ANSWER


def _failing_and_passing(cells: Sequence[CellRecord]) -> list[CellRecord]:
    """Returns the failing cells, then passing cells of the same implementations: first of the check
    `VALUES`, then of other failing checks. Within a check, cells come first that have all features common
    to the failing cells."""
    failing = [c for c in cells if _is_wrong_answer(c)]
    checks = {VALUES, *(c.check for c in failing)}
    names = {c.implementation for c in failing}
    passing = [
        c for c in cells if c.status == "pass" and c.check in checks and c.implementation in names
    ]
    shared = set.intersection(*({*c.features} for c in failing)) if failing else set()
    passing.sort(key=lambda c: (c.check != VALUES, not shared.issubset(c.features)))
    return [*failing, *passing]


def _diagnose(plan: Plan, cells: Sequence[CellRecord], folder: Path | None) -> FailureReport:
    """Returns the report of `diagnose_run`. Raises the errors of `_with_smaller_case`; errors of
    diagnoses become notes."""
    implementations = [i.optimized or i for i in plan.functions] or plan.implementations
    by_name = {(i.backend.name, i.name): i for i in implementations}
    cells = [c for c in _failing_and_passing(cells) if (c.backend, c.implementation) in by_name]
    counts = Counter((c.backend, c.implementation) for c in cells if _is_wrong_answer(c))
    diagnosed = [by_name[name] for name, _ in counts.most_common(MOST_IMPLEMENTATIONS)]
    if not diagnosed:
        return NO_REPORT
    compiles = diagnosed[0].backend.compiles_shapes
    seconds = SECONDS * (COMPILING_FACTOR if compiles else 1)
    time_is_over = deadline(seconds)
    diagnoses, notes = [], []
    for implementation in diagnosed:
        try:
            limit = (seconds - SHRINK_SECONDS) / len(diagnosed)
            diagnoses += _diagnose_implementation(plan, implementation, cells, limit)
        except ENDS:
            raise
        except Exception as error:
            notes.append(f"no diagnosis of {implementation}: {first_line(error)}")
    report = _with_smaller_case(plan, diagnosed[0], cells, folder, time_is_over)
    return replace(report, diagnoses=tuple(diagnoses), notes=(*notes, *report.notes))


def _cells(implementation: Implementation, records: Iterable[CellRecord]) -> list[Cell]:
    """Returns the cells of an implementation among records, to be judged again."""
    checks = all_checks()
    return [
        Cell(checks[record.check], find(record.case), implementation, record.seed)
        for record in records
        if (record.backend, record.implementation)
        == (implementation.backend.name, implementation.name)
    ]


def _diagnose_implementation(
    plan: Plan, implementation: Implementation, records: Sequence[CellRecord], seconds: float
) -> list[DiagnosisRecord]:
    """Returns the diagnoses of one implementation from its records, within `seconds` of processor
    time."""
    failing = _cells(implementation, filter(_is_wrong_answer, records))
    passing = _cells(implementation, [r for r in records if r.status == "pass"][:MOST_PASSING])
    check_of = {
        cell.case.id: cell.check.name for cell in sorted(failing, key=simplicity, reverse=True)
    }
    diagnosis_records = []
    diagnoses = _advice_diagnoses(implementation, failing)
    if diagnoses:
        failing = [cell for cell in failing if not _advice_applies(cell, implementation)]
    diagnoses += _state_diagnosis(plan, implementation, failing) or diagnose(
        implementation, failing, passing, seconds
    )
    for diagnosis in diagnoses:
        names = [f.name for f in fields(diagnosis) if f.name not in ("source", "key")]
        values = {name: getattr(diagnosis, name) for name in names}
        diagnosis_records.append(
            DiagnosisRecord(
                implementation.backend.name, implementation.name, origin=diagnosis.source,
                check=check_of.get(diagnosis.case, VALUES), **values,
            )
        )  # fmt: skip
    return diagnosis_records


def _advice_diagnoses(implementation: Implementation, failing: Sequence[Cell]) -> list[Diagnosis]:
    """Returns the advice of the trial calls as a list of one diagnosis; [] if the advice applies to no
    failing cell."""
    cells = [cell for cell in failing if _advice_applies(cell, implementation)]
    if not cells:
        return []
    count, first_case = len(cells), str(min(cells, key=simplicity).case.id)
    sentence, _ = implementation.advice
    return [Diagnosis(sentence, "", "masks", "measured", count, count, 0, first_case)]


def _advice_applies(cell: Cell, implementation: Implementation) -> bool:
    """True if the advice of the trial calls names a feature of the cell's case."""
    return not {*implementation.advice[1]}.isdisjoint(cell.case.needs)


def _state_diagnosis(
    plan: Plan, implementation: Implementation, failing: Sequence[Cell]
) -> list[Diagnosis]:
    """Returns a list of one diagnosis if answers depend on earlier calls: failing cells of `VALUES` pass
    if the function's file is imported anew before each cell. [] if a cell still fails, or if the function
    is in no file."""
    named_functions = zip(plan.options.function, plan.functions, strict=False)
    text = next((text for text, f in named_functions if implementation in (f, f.optimized)), "")
    cells = choose_cells([cell for cell in failing if cell.check.name == VALUES], MOST_FIRST_CALLS)
    if ".py:" not in text or not cells:
        return []
    # The diagnosis has a limit of its own.
    options = replace(
        plan.options, function=(text,), implementation=(), start_timeout=0.0, cell_timeout=0.0,
        optimized=True,
    )  # fmt: skip
    # Scripts import the function from the module that the run judged.
    modules = {n: m for n, m in sys.modules.items() if n.rpartition(".")[2].startswith(JUDGED)}
    try:
        for cell in cells:
            new_import = load_backend(implementation.backend, options).functions[0]
            if judge(Cell(cell.check, cell.case, new_import, cell.seed)).status != "pass":
                return []
    except UsageError:
        return []
    finally:
        sys.modules.update(modules)
    sentence = "Answers depend on earlier calls: what fails in the run is right as a first call."
    hint = "a mask, a buffer or a cache that is kept between calls under too short a key"
    first_case = str(cells[0].case.id)
    return [Diagnosis(sentence, hint, "state", "measured", len(cells), len(cells), 0, first_case)]


def _with_smaller_case(
    plan: Plan, implementation: Implementation, records: Sequence[CellRecord], folder: Path | None,
    time_is_over: Any,
) -> FailureReport:  # fmt: skip
    """Shrinks one case of the group of failures that the terminal lists first. Returns a report with the
    smallest failing case, and the path of its script if `folder` is given. `NO_REPORT` without a case.
    Shrinking ends when `time_is_over()` is True."""
    failing = [
        r for r in records if _is_wrong_answer(r) and r.implementation == implementation.name
    ]
    groups = Counter((r.check, r.kind) for r in failing if r.check in SEARCHED)
    group = min(groups, key=lambda key: group_order(key[0], key[1], groups[key]), default=None)
    group_records = [r for r in failing if (r.check, r.kind) == group]
    chosen_cells = choose_cells(_cells(implementation, group_records), 1)
    if not chosen_cells or not isinstance(chosen_cells[0].case, Case):
        return NO_REPORT
    cell, kind = chosen_cells[0], group_records[0].kind
    policy = Policy(limit=partial(time_limit, plan.options.cell_timeout, "the cell"))
    verdicts: dict[str, Verdict] = {}

    def fails(case: Case) -> bool:
        if time_is_over():
            return False
        smaller = Cell(cell.check, case, implementation, cell.seed)
        verdicts[case.id] = judge(smaller, policy)
        return verdicts[case.id].status == "fail" and verdicts[case.id].kind == kind

    case = smallest_failing(chosen_cells[0].case, fails)
    simpler = () if time_is_over() else simpler_cases(case)
    passing = (one for one in simpler if one.id in verdicts and verdicts[one.id].status == "pass")
    takes = what_it_takes(case, passing)
    group_key = (cell.check.name, implementation.name, kind)
    report = FailureReport(group=group_key, smaller=case.id, takes=takes)
    verdict = verdicts.get(case.id)
    if folder is None or verdict is None:
        return report
    path = folder / f"{cell.check.name}-{implementation.name.replace('@', '-')}.py"
    try:
        text = script(Cell(cell.check, case, implementation, cell.seed), verdict)
        path.write_text(text, encoding="utf-8")
    except (NoScript, OSError):
        return report
    return replace(report, script=str(path))


if __name__ == "__main__":
    _answer_request(Path(sys.argv[1]))

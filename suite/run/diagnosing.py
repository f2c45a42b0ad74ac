"""Diagnoses of a run: what is wrong with implementations that fail, and the smallest case that shows it.

Failing cells of user functions are diagnosed; without user functions, new failures of a framework. The
verdicts stand before, and nothing here changes one: an exception is a note. A run with workers has no
backend in the process that writes records, so a child loads the plan again.
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
from attention_conformance.suite.run.process import limited, run_module
from attention_conformance.suite.run.script import NoScript, script
from attention_conformance.suite.run.smaller import shrunk
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.spec.vocabulary import SEARCHED, VALUES

SECONDS = 5.0
"""Processor seconds for the diagnoses of a run and its smaller case."""

COMPILING = 5
"""How many times as long diagnoses may take in frameworks that compile every call for its shapes."""

SHRINKING = 1.5
"""Processor seconds of these for the smaller case."""

HANGING = 300.0
"""Seconds after which a diagnosis is broken off, whatever it does and however busy the machine is."""

LOADING = 300.0
"""Seconds in which a child must have imported the framework and answered."""

IMPLEMENTATIONS = 2
"""The number of implementations that are diagnosed, those with the most failures."""

ALONE = 3
"""The number of failing cells that are asked as the first call of a function."""

PASSES = 300
"""The number of passing cells from which those to try are chosen."""

DECLARED = ("stale-claim", "unexpected-pass", "no-raise", "forbidden")
"""Kinds of failures that are no wrong answers."""


def diagnose_run(plan: Plan, cells: Sequence[CellRecord], folder: Path | None) -> FailureReport:
    """The diagnoses of the failures among `cells`, records of the plan, and the smaller case, whose
    script is written into `folder`. Nothing is broken off if cells have no time limit. Raises nothing but
    what ends the process."""
    try:
        with limited(HANGING if plan.options.cell_timeout else 0.0, "the diagnosis"):
            return _diagnosed(plan, cells, folder)
    except (Exception, TimeOver) as error:
        return FailureReport(notes=(f"no diagnosis: {first_line(error)}",))


def diagnose_in_child(
    options: Options, cells: Sequence[CellRecord], folder: Path | None
) -> FailureReport:
    """What `diagnose_run` says, in a child that loads the plan of these options."""
    if not any(map(_is_asked, cells)):
        return NO_REPORT
    with TemporaryDirectory(prefix="attention-") as place:
        path = Path(place) / "cells"
        path.write_bytes(pickle.dumps((sys.path, options, _few(cells), folder)))
        _, said = run_module([__name__, str(path)], Path.cwd(), {}, LOADING)
        try:
            return msgspec.json.decode(path.read_bytes(), type=FailureReport)
        except msgspec.DecodeError:
            last = (said.strip().splitlines() or ["it says nothing"])[-1]
            return FailureReport(notes=(f"no diagnosis: {last}",))


def _answer(path: Path) -> None:
    """Answer the request of a file there, which this process trusts; the answer is plain data."""
    sys.path[:], options, cells, folder = pickle.loads(path.read_bytes())
    path.write_bytes(msgspec.json.encode(diagnose_run(Plan.make(options), cells, folder)))


def _is_asked(cell: CellRecord) -> bool:
    return cell.status == "fail" and cell.kind not in DECLARED


def _few(cells: Sequence[CellRecord]) -> list[CellRecord]:
    """The failing cells, and passing cells of `VALUES` and of the checks that fail: first those with the
    features that all failing ones have."""
    failing = [cell for cell in cells if _is_asked(cell)]
    checks = {VALUES, *(cell.check for cell in failing)}
    names = {cell.implementation for cell in failing}
    passing = [
        c for c in cells if c.status == "pass" and c.check in checks and c.implementation in names
    ]
    shared = set.intersection(*({*cell.features} for cell in failing)) if failing else set()
    passing.sort(key=lambda cell: (cell.check != VALUES, not shared.issubset(cell.features)))
    return [*failing, *passing]


def _diagnosed(plan: Plan, cells: Sequence[CellRecord], folder: Path | None) -> FailureReport:
    judged = [one.optimized or one for one in plan.functions] or plan.implementations
    by_name = {(one.backend.name, one.name): one for one in judged}
    few = [cell for cell in _few(cells) if (cell.backend, cell.implementation) in by_name]
    counts = Counter((c.backend, c.implementation) for c in few if _is_asked(c))
    first = [by_name[name] for name, _ in counts.most_common(IMPLEMENTATIONS)]
    if not first:
        return NO_REPORT
    compiles = first[0].backend.compilers.compiles_shapes
    seconds = SECONDS * (COMPILING if compiles else 1)
    late = deadline(seconds)
    diagnoses, notes = [], []
    for implementation in first:
        try:
            diagnoses += _of_one(plan, implementation, few, (seconds - SHRINKING) / len(first))
        except ENDS:
            raise
        except Exception as error:
            notes.append(f"no diagnosis of {implementation}: {first_line(error)}")
    reduced = _reduced(plan, first[0], few, folder, late)
    return replace(reduced, diagnoses=tuple(diagnoses), notes=(*notes, *reduced.notes))


def _cells(implementation: Implementation, records: Iterable[CellRecord]) -> list[Cell]:
    checks = all_checks()
    return [
        Cell(checks[record.check], find(record.case), implementation, record.seed)
        for record in records
        if (record.backend, record.implementation)
        == (implementation.backend.name, implementation.name)
    ]


def _of_one(
    plan: Plan, implementation: Implementation, records: Sequence[CellRecord], seconds: float
) -> list[DiagnosisRecord]:
    """The diagnoses of one implementation."""
    failing = _cells(implementation, filter(_is_asked, records))
    passing = _cells(implementation, [r for r in records if r.status == "pass"][:PASSES])
    by_size = sorted(failing, key=simplicity, reverse=True)
    check_of = {cell.case.id: cell.check.name for cell in by_size}
    found_records = []
    found = _advised(implementation, failing)
    if found:
        failing = [cell for cell in failing if not _is_about(cell, implementation)]
    found += _of_state(plan, implementation, failing) or diagnose(
        implementation.backend, implementation, failing, passing, seconds
    )
    for one in found:
        shared = {
            f.name: getattr(one, f.name) for f in fields(one) if f.name not in ("source", "key")
        }
        found_records.append(
            DiagnosisRecord(
                implementation.backend.name, implementation.name, origin=one.source,
                check=check_of.get(one.case, VALUES), **shared,
            )
        )  # fmt: skip
    return found_records


def _advised(implementation: Implementation, failing: Sequence[Cell]) -> list[Diagnosis]:
    """The advice of the trial calls, if cells that it is about fail."""
    about = [cell for cell in failing if _is_about(cell, implementation)]
    if not about:
        return []
    count, first = len(about), str(min(about, key=simplicity).case.id)
    sentence, _ = implementation.advice
    return [Diagnosis(sentence, "", "masks", "measured", count, count, 0, first)]


def _is_about(cell: Cell, implementation: Implementation) -> bool:
    """True if the advice of the trial calls is about the case of a cell."""
    return not {*implementation.advice[1]}.isdisjoint(cell.case.needs)


def _of_state(
    plan: Plan, implementation: Implementation, failing: Sequence[Cell]
) -> list[Diagnosis]:
    """The diagnosis of a function that keeps something of earlier calls: values that fail in a run pass
    alone, if the file of the function is imported anew before each."""
    texts = zip(plan.options.function, plan.functions, strict=False)
    text = next((text for text, f in texts if implementation in (f, f.optimized)), "")
    cells = choose_cells([cell for cell in failing if cell.check.name == VALUES], ALONE)
    if ".py:" not in text or not cells:
        return []
    # The diagnosis has a limit of its own.
    options = replace(
        plan.options, function=(text,), implementation=(), start_timeout=0.0, cell_timeout=0.0,
        optimized=True,
    )  # fmt: skip
    # Scripts import the function from the module that the run judged.
    judged = {n: m for n, m in sys.modules.items() if n.rpartition(".")[2].startswith(JUDGED)}
    try:
        for cell in cells:
            anew = load_backend(implementation.backend, options).functions[0]
            if judge(Cell(cell.check, cell.case, anew, cell.seed)).status != "pass":
                return []
    except UsageError:
        return []
    finally:
        sys.modules.update(judged)
    sentence = "Answers depend on earlier calls: what fails in the run is right as a first call."
    hint = "a mask, a buffer or a cache that is kept between calls under too short a key"
    first = str(cells[0].case.id)
    return [Diagnosis(sentence, hint, "state", "measured", len(cells), len(cells), 0, first)]


def _reduced(
    plan: Plan, implementation: Implementation, records: Sequence[CellRecord], folder: Path | None,
    late: Any,
) -> FailureReport:  # fmt: skip
    """The smallest failing case that was reached from the group that is listed first, with its script."""
    its = [r for r in records if _is_asked(r) and r.implementation == implementation.name]
    groups = Counter((r.check, r.kind) for r in its if r.check in SEARCHED)
    group = min(groups, key=lambda of: group_order(of[0], of[1], groups[of]), default=None)
    searched = [r for r in its if (r.check, r.kind) == group]
    first = choose_cells(_cells(implementation, searched), 1)
    if not first or not isinstance(first[0].case, Case):
        return NO_REPORT
    cell, kind = first[0], searched[0].kind
    policy = Policy(limit=partial(limited, plan.options.cell_timeout, "the cell"))
    verdicts: dict[str, Verdict] = {}

    def fails(case: Case) -> bool:
        if late():
            return False
        smaller = Cell(cell.check, case, implementation, cell.seed)
        verdicts[case.id] = judge(smaller, policy)
        return verdicts[case.id].status == "fail" and verdicts[case.id].kind == kind

    case = shrunk(first[0].case, fails)
    report = FailureReport(group=(cell.check.name, implementation.name, kind), smaller=case.id)
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
    _answer(Path(sys.argv[1]))

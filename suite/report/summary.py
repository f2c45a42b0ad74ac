"""The terminal summary of a run: one line of verdict, a few lines of facts, and with -v tables.

Only tables import pandas, which takes half a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.coverage import percent, score_text, verdict_word
from attention_conformance.suite.records.findings import Contents, find_fulfilled, manifests
from attention_conformance.suite.report.conformance import (
    ACCURACY,
    FAILING,
    OF_STATUSES,
    OF_UNSUPPORTED,
    UNSUPPORTED,
    widest_grade,
)
from attention_conformance.suite.report.semantics import BY_QUESTION, ELECTION, PROBES, by_dtype
from attention_conformance.suite.spec.vocabulary import BROKEN, REFUSED, VALUES

if TYPE_CHECKING:
    import pandas as pd

REASONS = 20
"""The number of reasons for unsupported cells that are shown."""

FINDINGS = 12
"""The number of findings of known failures that are shown."""

HIDDEN = (
    "accuracy, elections and unsupported cells: -v, or `attention-conformance report` of --results"
)
"""The line that stands for the tables that are left out."""


def verdict(run: Run, shortfalls: Sequence[str] = ()) -> str:
    """Returns one line: the verdict (`verdict_word`) with the numbers of cells, and the name of the
    implementation if there is only one."""
    totals, cells = run.totals, len(run.cells)
    names = {cell.name for cell in run.cells}
    name_text = f" of {names.pop()}" if len(names) == 1 else ""
    judged, broken = cells - totals[UNSUPPORTED], sum(totals[status] for status in BROKEN)
    score = score_text(totals["pass"], judged, cells)
    counts = [f"{totals[status]} {status}" for status in ("known", UNSUPPORTED) if totals[status]]
    suffix = f" ({', '.join(counts)})" if counts else ""
    word = verdict_word(totals, shortfalls)
    if broken:
        verb = "fails" if broken == 1 else "fail"
        return f"{word}: {broken} of {judged} judged cells{name_text} {verb}; score {score}{suffix}"
    passes = f"{totals['pass']} of {judged} judged cells{name_text} pass"
    return f"{word}: {passes}; score {score}{suffix}"


def summary_lines(cells: Sequence[CellRecord], unavailable: Mapping[str, str]) -> list[str]:
    """Returns further lines of a summary: the precision that is reached, elections that differ from the
    framework's own attention, refusals, and known failures by finding. `unavailable` maps backends that
    could not be used to reasons."""
    return [
        *reached_precision(cells),
        *differing_elections(cells),
        *refusal_counts(cells),
        *inherited_failures(cells),
        *known_failures(cells),
        *(f"not judged: {name}: {reason}" for name, reason in unavailable.items()),
    ]


def _cells_by(
    name: Callable[[CellRecord], str], cells: Iterable[CellRecord]
) -> dict[str, list[CellRecord]]:
    """Returns the cells grouped by the text that `name` gives, in the order of occurrence."""
    groups: dict[str, list[CellRecord]] = {}
    for cell in cells:
        groups.setdefault(name(cell), []).append(cell)
    return groups


def statuses(run: Run) -> list[str]:
    """Returns the lines of a table with the status counts of each implementation, the framework's own
    first; [] for a single implementation. Textbook implementations without a failing cell share one
    line."""
    groups = _cells_by(attrgetter("name"), _framework_first(run).cells)
    if len(groups) <= 1:
        return []
    textbook = [name for name in groups if name in run.header.controls]
    right = [name for name in textbook if all(cell.status not in FAILING for cell in groups[name])]
    rows = {name: cells for name, cells in groups.items() if name not in right}
    if not rows:
        rows, right = groups, []
    table = OF_STATUSES.make(_cell_frame(replace(run, cells=tuple(chain(*rows.values())))))
    lines = _lines_of_tables({"statuses": table})
    if right:
        cells = [cell for name in right for cell in groups[name]]
        judged = sum(cell.status != UNSUPPORTED for cell in cells)
        score = score_text(judged, judged, len(cells))
        sentence = f"{len(right)} of {len(textbook)} textbook implementations are right"
        lines += ["", f"{sentence}; score {score}; -v shows each"]
    return lines


def _framework_first(run: Run) -> Run:
    """Returns the run with the cells of textbook implementations last."""
    return replace(
        run, cells=tuple(sorted(run.cells, key=lambda cell: cell.name in run.header.controls))
    )


def _cell_frame(run: Run) -> pd.DataFrame:
    from attention_conformance.suite.report import frames

    return frames.cells(run)


def _lines_of_tables(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    from attention_conformance.suite.report.render import as_text

    return as_text(tables, "attention conformance").splitlines()


def tables(run: Run) -> list[str]:
    """Returns the lines of tables: statuses, accuracy with the worst case, elections, and reasons for
    unsupported cells."""
    cells = _cell_frame(_framework_first(run))
    accuracy = ACCURACY.make(cells)[["numerics", "grade", "median", "max", "rms", "case"]]
    accuracy = accuracy.sort_index(level="implementation", sort_remaining=False, kind="stable")
    frame_of = {"statuses": OF_STATUSES.make(cells), "accuracy": accuracy}
    probes = cells.query(PROBES)
    answered = probes[probes["observed"].groupby(probes["operator"]).transform("any")]
    for operator, answers in answered.groupby("operator", sort=False):
        is_single = answered["operator"].nunique() == 1
        frame_of["elections" if is_single else f"elections: {operator}"] = BY_QUESTION.make(answers)
    reasons = OF_UNSUPPORTED.make(cells).drop(columns=["check", "case"])
    frame_of["unsupported"] = reasons[:REASONS]
    text = _lines_of_tables(frame_of)
    if len(reasons) > REASONS:
        further = reasons["cells"][REASONS:]
        text.append(f"... and {len(further)} more reasons, of {further.sum()} cells")
    return text


def reached_precision(cells: Sequence[CellRecord]) -> list[str]:
    """Returns a list of one line: the numerics class that outputs reach, by dtype. [] if there are
    several implementations, or if an answer exceeds its bound."""
    labels = {cell.name for cell in cells}
    outputs = [cell for cell in cells if cell.check == VALUES and cell.status != UNSUPPORTED]
    errors = [cell.error_ratio for cell in outputs if cell.error_ratio is not None]
    beyond = any(cell.kind == "non-finite" for cell in outputs)
    if len(labels) > 1 or not errors or beyond or not all(error <= 1 for error in errors):
        return []
    graded = {
        dtype: widest_grade(_grade(cell) for cell in dtype_cells)
        for dtype, dtype_cells in _cells_by(attrgetter("dtype"), outputs).items()
    }
    grades = ", ".join(f"{dtype} {grade}" for dtype, grade in graded.items() if grade)
    return [
        f"outputs of {labels.pop()} reach the numerics classes {grades}, with errors of at most "
        f"{max(errors):.3g} of their bounds; gradients do not count"
    ]


def _grade(cell: CellRecord) -> str:
    """Returns the grade of a cell; "none" for a wrong value without a grade, else ""."""
    wrong = cell.status != "pass" and cell.kind == "value"
    return cell.grade or ("none" if wrong else "")


def differing_elections(cells: Sequence[CellRecord]) -> list[str]:
    """Returns the elections in which a user function differs from the framework's own attention, a line
    for each operator that has any."""
    probes = [cell for cell in cells if cell.question and cell.check == ELECTION]
    lines = []
    for operator_cells in _cells_by(attrgetter("operator"), probes).values():
        for label, answers in _cells_by(attrgetter("name"), operator_cells).items():
            questions = _cells_by(attrgetter("question"), answers)
            differing = ", ".join(
                f"{question} {by_dtype({cell.dtype: _answer(cell) for cell in question_cells})}"
                for question, question_cells in questions.items()
                if any(c.observed and c.native and c.observed != c.native for c in question_cells)
            )
            if differing:
                text = "elects otherwise than the framework's own attention"
                lines.append(f"{label} {text}: {differing}")
    return lines


def _answer(cell: CellRecord) -> str:
    """Returns the observed answer, or the status if there is none."""
    return cell.status if cell.status == UNSUPPORTED else cell.observed or cell.status


def refusal_counts(cells: Sequence[CellRecord]) -> list[str]:
    """Returns the share of cells that were answered, a line for each user function that refused any."""
    lines = []
    for label, function_cells in _cells_by(attrgetter("name"), cells).items():
        count = sum(cell.kind == REFUSED for cell in function_cells)
        judged = sum(cell.status != UNSUPPORTED for cell in function_cells)
        if count:
            lines.append(
                f"{label}: judged on {percent(judged / (judged + count))} of its cells: it "
                f"refused {count} of {judged + count} cells"
            )
    return lines


def inherited_failures(cells: Sequence[CellRecord]) -> list[str]:
    """Returns the numbers of inherited failures by finding, a line for each user function with such
    failures."""
    lines = []
    inherited = (cell for cell in cells if cell.inherited)
    for label, failures in _cells_by(attrgetter("name"), inherited).items():
        counts = Counter(cell.inherited for cell in failures).most_common()
        findings = ", ".join(f"{name} {count}" for name, count in counts)
        lines.append(
            f"{label}: {len(failures)} known: the framework's own code fails them too ({findings}); with "
            "--inherit-known=no they fail"
        )
    return lines


def known_failures(cells: Sequence[CellRecord]) -> list[str]:
    """Returns lines with the numbers of known failures by finding, the most frequent first; [] if there
    are none. Inherited failures are left out."""
    failures = [cell for cell in cells if cell.status == "known" and not cell.inherited]
    if not failures:
        return []
    contents = manifests()
    titles = {f.name: f.title for findings, _ in contents.values() for f in findings}
    by_finding = _cells_by(lambda cell: _finding_or_cause(contents, cell), failures)
    groups = sorted(by_finding.items(), key=lambda group: -len(group[1]))
    lines = [f"known failures: {len(failures)} cells, by finding (docs/findings):"]
    for name, group in groups[:FINDINGS]:
        labels = [*dict.fromkeys(cell.name for cell in group)]
        names = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        description = f"{name}: {titles[name]}" if name in titles else name
        lines.append(f"  {len(group):4}  {description} ({names})")
    if further := groups[FINDINGS:]:
        count = sum(len(group) for _, group in further)
        lines.append(
            f"  {count:4}  of {len(further)} more findings: `attention-conformance findings RESULTS`"
        )
    return lines


def _finding_or_cause(contents: Contents, cell: CellRecord) -> str:
    """Returns the name of the finding by which a cell is known. Without a finding returns the cause at
    the end of the cell's message."""
    names = cell.backend, cell.implementation, cell.check, cell.case, cell.message
    entry = find_fulfilled(contents, *names)
    if entry and entry.finding:
        return entry.finding
    return cell.message.rpartition(" [")[2].rpartition("; ")[0] or "expected by a manifest"

"""The terminal summary of a run: one line of verdict, a few lines of facts, and with -v tables.

`cells` are a row per cell, as `suite.report.frames.cells` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.coverage import percent, scored, word
from attention_conformance.suite.records.expectations import Expectation
from attention_conformance.suite.records.findings import manifests, title_of
from attention_conformance.suite.report.conformance import (
    ACCURACY,
    OF_STATUSES,
    OF_UNSUPPORTED,
    UNSUPPORTED,
)
from attention_conformance.suite.report.render import as_text
from attention_conformance.suite.report.semantics import BY_QUESTION, DIFFERS, PROBES
from attention_conformance.suite.spec.vocabulary import BROKEN, REFUSED

REASONS = 20
"""The number of reasons for unsupported cells that are shown."""

KERAS = "keras"
"""The manifest of Keras on every engine."""

FINDINGS = 12
"""The number of findings of known failures that are shown."""

HIDDEN = (
    "accuracy, elections and unsupported cells: -v, or `attention-conformance report` of --results"
)
"""The line that stands for the tables that are left out."""


def verdict(run: Run, shortfalls: Sequence[str] = ()) -> str:
    """One line: the verdict (`word`) with the counts of cells, and the name of the implementation if
    there is one."""
    totals, cells = run.totals, len(run.cells)
    names = {f"{cell.backend}:{cell.implementation}" for cell in run.cells}
    of = f" of {names.pop()}" if len(names) == 1 else ""
    judged, broken = cells - totals[UNSUPPORTED], sum(totals[status] for status in BROKEN)
    score = scored(totals["pass"], judged, cells)
    counts = [f"{totals[status]} {status}" for status in ("known", UNSUPPORTED) if totals[status]]
    rest = f" ({', '.join(counts)})" if counts else ""
    said = word(totals, shortfalls)
    if broken:
        verb = "fails" if broken == 1 else "fail"
        return f"{said}: {broken} of {judged} judged cells{of} {verb}; score {score}{rest}"
    return f"{said}: {totals['pass']} of {judged} judged cells{of} pass; score {score}{rest}"


def facts(cells: pd.DataFrame, unavailable: Mapping[str, str]) -> list[str]:
    """What a person should know besides: the precision that is reached, elections that differ from the
    framework's own attention, refusals, known failures by finding. `unavailable` maps backends that could
    not be used to reasons."""
    return [
        *reached(cells),
        *differing(cells),
        *refused(cells),
        *inherited(cells),
        *known(cells),
        *(f"not judged: {name}: {reason}" for name, reason in unavailable.items()),
    ]


def statuses(cells: pd.DataFrame) -> list[str]:
    """Status counts as text, if there are several implementations."""
    counts = OF_STATUSES.of(cells)
    return _as_lines({"statuses": counts}) if len(counts) > 1 else []


def _as_lines(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    return as_text(tables, "attention conformance").splitlines()


def tables(cells: pd.DataFrame) -> list[str]:
    """Statuses, accuracy with the worst case, elections, and reasons for unsupported cells, as text."""
    accuracy = ACCURACY.of(cells)[["numerics", "grade", "median", "max", "rms", "case"]]
    accuracy = accuracy.sort_index(level="implementation", sort_remaining=False, kind="stable")
    tables = {"statuses": OF_STATUSES.of(cells), "accuracy": accuracy}
    of_operators = _elections(cells)
    for operator, answers in of_operators.items():
        name = "elections" if len(of_operators) == 1 else f"elections: {operator}"
        tables[name] = BY_QUESTION.of(answers)
    reasons = OF_UNSUPPORTED.of(cells).drop(columns=["check", "case"])
    tables["unsupported"] = reasons[:REASONS]
    text = _as_lines(tables)
    if len(reasons) > REASONS:
        left = reasons["cells"][REASONS:]
        text.append(f"... and {len(left)} more reasons, of {left.sum()} cells")
    return text


def _elections(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The cells of election questions that were answered, by operator."""
    probes = cells.query(PROBES)
    answered = probes[probes["observed"].groupby(probes["operator"]).transform("any")]
    return {str(name): of for name, of in answered.groupby("operator", sort=False)}


def reached(cells: pd.DataFrame) -> list[str]:
    """The numerics class that outputs of an implementation reach by dtype, one line; [] if there are
    several implementations, or if an answer is beyond every class."""
    accuracy = ACCURACY.of(cells)
    several = cells["label"].nunique() > 1
    if accuracy.empty or several or not accuracy["max"].max() <= 1:
        return []
    dtypes = accuracy.index.get_level_values("dtype")
    graded = zip(dtypes, accuracy["grade"], strict=True)
    grades = ", ".join(f"{dtype} {grade}" for dtype, grade in graded if grade)
    label, worst = cells["label"].iloc[0], f"{accuracy['max'].max():.3g}"
    return [
        f"outputs of {label} reach the numerics classes {grades}, with errors of at most {worst} of "
        "their bounds; gradients do not count"
    ]


def differing(cells: pd.DataFrame) -> list[str]:
    """The elections in which a user function differs from the framework's own attention, a line for each
    operator that has any."""
    lines = []
    for answers in _elections(cells).values():
        table = BY_QUESTION.of(answers)
        for label in dict.fromkeys(answers["label"]):
            marked = table[label][table[label].str.endswith(DIFFERS)].str.removesuffix(DIFFERS)
            said = ", ".join(f"{question} {answer}" for question, answer in marked.items())
            if said:
                lines.append(f"{label} elects otherwise than the framework's own attention: {said}")
    return lines


def refused(cells: pd.DataFrame) -> list[str]:
    """The share of cells that were answered, a line for each user function that refused any."""
    lines = []
    for label, of in cells.groupby("label", sort=False):
        count, judged = (of["kind"] == REFUSED).sum(), (of["status"] != UNSUPPORTED).sum()
        if count:
            lines.append(
                f"{label}: judged on {percent(judged / (judged + count))} of what it could be asked: it "
                f"refused {count} of {judged + count} cells"
            )
    return lines


def inherited(cells: pd.DataFrame) -> list[str]:
    """The number of inherited failures by finding, a line for each user function that has any."""
    known = cells[cells["inherited"] != ""]
    lines = []
    for label, of in known.groupby("label", sort=False):
        findings = ", ".join(
            f"{name} {count}" for name, count in of["inherited"].value_counts().items()
        )
        lines.append(
            f"{label}: {len(of)} known: the framework's own code fails them too ({findings}); with "
            "--inherit-known=no they fail"
        )
    return lines


def known(cells: pd.DataFrame) -> list[str]:
    """The known failures of backends by finding, the most frequent first; [] if there are none."""
    rows = cells[(cells["status"] == "known") & (cells["inherited"] == "")]
    if rows.empty:
        return []
    contents = manifests()
    titles = {f.name: f.title for findings, _ in contents.values() for f in findings}
    entries = {
        name: [entry for entry in listed if entry.finding and not entry.drawn]
        for name, (_, listed) in contents.items()
    }
    rows = rows.assign(of=[_finding(entries, row) for _, row in rows.iterrows()])
    named = ((str(name), block) for name, block in rows.groupby("of", sort=False))
    blocks = sorted(named, key=lambda block: -len(block[1]))
    lines = [f"known failures: {len(rows)} cells, by finding (FINDINGS.md):"]
    for name, block in blocks[:FINDINGS]:
        labels = [*dict.fromkeys(block["label"])]
        who = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        said = f"{title_of(name)}: {titles[name]}" if name in titles else name
        lines.append(f"  {len(block):4}  {said} ({who})")
    if left := blocks[FINDINGS:]:
        count = sum(len(block) for _, block in left)
        lines.append(
            f"  {count:4}  of {len(left)} more findings: `attention-conformance findings RESULTS`"
        )
    return lines


def _finding(entries: Mapping[str, Sequence[Expectation]], row: pd.Series) -> str:
    """The name of the finding that an entry cites for a known cell, or the cause that its message ends
    with. `entries` are those of each manifest."""
    for entry in (*entries.get(row["backend"], ()), *entries.get(KERAS, ())):
        named = entry.matches(row["implementation"], row["check"], row["case"])
        if named and entry.kind == row["kind"]:
            return entry.finding
    return row["message"].rpartition(" [")[2].rpartition("; ")[0] or "expected by a manifest"

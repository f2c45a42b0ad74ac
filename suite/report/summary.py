"""The terminal summary of a run: its most important tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from suite.records.cells import Run
from suite.records.coverage import percent
from suite.report import frames
from suite.report.conformance import ACCURACY, OF_STATUSES, OF_UNSUPPORTED, UNSUPPORTED
from suite.report.render import as_text
from suite.report.semantics import BY_QUESTION, PROBES
from suite.spec.vocabulary import REFUSED

REASONS = 20
"""The number of reasons for unsupported cells that are shown."""


def lines(run: Run, unavailable: Mapping[str, str]) -> list[str]:
    """Status counts, accuracy with the worst case, elections, and reasons for unsupported cells, as text.

    `unavailable` maps backends that could not be used to reasons.
    """
    cells = frames.cells(run)
    accuracy = ACCURACY.of(cells)[["numerics", "grade", "median", "max", "rms", "case"]]
    accuracy = accuracy.sort_index(level="implementation", sort_remaining=False, kind="stable")
    tables = {"statuses": OF_STATUSES.of(cells), "accuracy": accuracy}
    probes = cells.query(PROBES)
    answered = probes[probes["observed"].groupby(probes["operator"]).transform("any")]
    of_operators = dict(list(answered.groupby("operator", sort=False)))
    for operator, answers in of_operators.items():
        name = "elections" if len(of_operators) == 1 else f"elections: {operator!s}"
        tables[name] = BY_QUESTION.of(answers)
    reasons = OF_UNSUPPORTED.of(cells).drop(columns=["check", "case"])
    tables["unsupported"] = reasons[:REASONS]
    text = as_text(tables, "attention conformance").splitlines()
    if len(reasons) > REASONS:
        left = reasons["cells"][REASONS:]
        text.append(f"... and {len(left)} more reasons, of {left.sum()} cells")
    text += [f"not judged: {name}: {reason}" for name, reason in unavailable.items()]
    return text + refused(cells) + inherited(cells)


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

"""The terminal summary of a run: the tables that a person who just ran the suite wants to see."""

from __future__ import annotations

from collections.abc import Mapping

from suite.records.cells import Run
from suite.report import conformance, frames, precision, semantics
from suite.report.render import as_text


def lines(run: Run, unavailable: Mapping[str, str]) -> list[str]:
    """Status counts, accuracy with the worst case, and elections, as lines of text.

    `unavailable` names backends that were asked for with others and could not be imported, with the
    reason.
    """
    frame = frames.cells(run)
    accuracy = precision.accuracy(frame)[["numerics", "grade", "median", "max", "rms", "case"]]
    accuracy = accuracy.sort_index(level="implementation", sort_remaining=False, kind="stable")
    tables = {"statuses": conformance.statuses(frame), "accuracy": accuracy}
    probes = semantics.asked(frame)
    of_operators = dict(list(probes.groupby("operator", sort=False)))
    for operator, cells in of_operators.items():
        name = "elections" if len(of_operators) == 1 else f"elections: {operator!s}"
        tables[name] = semantics.by_question(cells)
    text = as_text(tables, "attention conformance").splitlines()
    return text + [f"not installed: {name}: {reason}" for name, reason in unavailable.items()]

"""The terminal summary of a run: the tables that a person who just ran the suite wants to see."""

from __future__ import annotations

from collections.abc import Mapping

from suite.judge.records import Run
from suite.report import tables
from suite.report.render import as_text


def lines(run: Run, unavailable: Mapping[str, str]) -> list[str]:
    """Status counts, accuracy with the worst case, and elections, as lines of text.

    `unavailable` names backends that were asked for with others and could not be imported, with the
    reason.
    """
    frame = tables.cells(run)
    accuracy = tables.accuracy(frame)[["numerics", "grade", "median", "max", "rms", "case"]]
    accuracy = accuracy.sort_index(level="implementation", sort_remaining=False, kind="stable")
    shown = {"statuses": tables.statuses(frame), "accuracy": accuracy}
    operators = tables.operators(frame)
    for operator in operators.unique():
        elections = tables.elections(frame[operators == operator])
        if not elections.empty:
            name = "elections" if operator == "sdpa" else f"elections: {operator}"
            shown[name] = elections.T.rename_axis("question")
    text = as_text(shown, "attention conformance").splitlines()
    return text + [f"not installed: {name}: {reason}" for name, reason in unavailable.items()]

"""Tables of judged cells: what was run, what passed, and what did not (`suite.report.frames.cells`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from suite.report.table import Columns, Table, across, same
from suite.spec.vocabulary import STATUSES

if TYPE_CHECKING:
    import pandas as pd

FAILING = ("crash", "error", "fail", "known")
"""The statuses of cells that did not do what was asked, the gravest first."""

UNSUPPORTED = "unsupported"
"""The status of cells that an implementation was not asked."""

SLOWEST_CELLS = 20
REASONS_NAMED = 3
"""How many implementations are named that give one reason."""

BY_IMPLEMENTATION = {"implementation": "label"}


def _count(status: str, rows: pd.DataFrame) -> int:
    return int((rows["status"] == status).sum())


def _score(rows: pd.DataFrame) -> float:
    """The part of what was asked that passed; NaN where nothing was asked."""
    return (rows["status"][rows["status"] != UNSUPPORTED] == "pass").mean()


def _coverage(rows: pd.DataFrame) -> float:
    """The part of all cells that was asked."""
    return (rows["status"] != UNSUPPORTED).mean()


COUNTS: Columns = {"score": _score, "coverage": _coverage, "cells": len} | {
    status: partial(_count, status) for status in STATUSES
}
"""How much passed, how much was asked, and the cells per status."""


def tally(rows: pd.DataFrame) -> str:
    """Cells passed / asked, and in brackets what else became of them, the gravest first."""
    counts = {status: _count(status, rows) for status in ("pass", *FAILING, UNSUPPORTED)}
    others = ", ".join(f"{n} {status}" for status, n in counts.items() if n and status != "pass")
    share = f"{counts['pass']}/{len(rows) - counts[UNSUPPORTED]}"
    return f"{share} ({others})" if others else share


RUNS = Table("runs", "What was run: versions, machine, options.", over="runs")

OF_STATUSES = Table(
    "statuses",
    "Cells per status. The score is pass / judged, with the cells judged of all cells; what is "
    "unsupported was not judged, and coverage is judged / all cells. - where nothing was judged.",
    by=BY_IMPLEMENTATION,
    columns=COUNTS,
)


def _named(rows: pd.DataFrame) -> str:
    """The implementations; if there are more than a few, the first and how many more."""
    first, *others = dict.fromkeys(rows["label"])
    few = len(others) < REASONS_NAMED
    return ", ".join([first, *others]) if few else f"{first} and {len(others)} more"


OF_UNSUPPORTED = Table(
    "unsupported",
    "Why cells were not asked, by reason.",
    rows=f"status == '{UNSUPPORTED}'",
    by={"reason": "message"},
    columns={"cells": len, "implementations": _named, **same("check", "case")},
    order="cells",
)

CONFORMANCE = Table(
    "conformance",
    "Cells passed / asked in every group of cases, with what else became of them in brackets; what is "
    "unsupported was not asked.",
    by=BY_IMPLEMENTATION,
    columns=lambda rows: {**COUNTS, **across("group", tally)(rows)},
)


def _explained(cells: pd.DataFrame) -> pd.DataFrame:
    from suite.report.explanation import explained

    return explained(cells)


EXPLAINED = Table(
    "explained",
    "Failures by check, kind and implementation: what separates them from the cells of the same check "
    "that pass, and the smallest case.",
    rows=_explained,
)


def _failing(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that failed, the gravest first."""
    failing = cells[cells["status"].isin(FAILING)]
    return failing.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")


def _beside_others(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that failed, with the number of implementations in which the same check of the same case
    is `supported`, fails (`failing`), and passes (`passed`). Of several seeds one failure is enough."""
    asked, fails = cells["status"] != UNSUPPORTED, cells["status"].isin(FAILING)
    each = cells.assign(supported=asked, failing=fails).groupby(["check", "case", "label"])
    outcomes = each[["supported", "failing"]].any().astype(int)
    outcomes["passed"] = outcomes["supported"] - outcomes["failing"]
    numbers = outcomes.groupby(["check", "case"]).sum().reset_index()
    return _failing(cells).merge(numbers, on=["check", "case"])


_FAILURE = {**same("status"), **BY_IMPLEMENTATION, **same("check", "case", "kind", "error_ratio")}

ONLY_HERE = Table(
    "only_here",
    "Failures of exactly one implementation where at least one other passes.",
    rows=lambda cells: _beside_others(cells).query("failing == 1 and passed > 0"),
    columns={**_FAILURE, **same("passed", "message")},
)


def _kinds(rows: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(filter(None, rows["kind"])))


EVERYWHERE = Table(
    "everywhere",
    "Failures of every implementation that supports the case, at least two.",
    rows=lambda cells: _beside_others(cells).query("failing == supported and failing > 1"),
    by=same("check", "case"),
    columns={"implementations": "failing", "kinds": _kinds, **same("message")},
)

FAILURES = Table(
    "failures",
    "Every cell that crashed, broke or failed, expected or not.",
    rows=_failing,
    columns={**_FAILURE, **same("message")},
)

SLOWEST = Table(
    "slowest",
    "The cells that took longest to judge.",
    rows=lambda cells: cells.nlargest(SLOWEST_CELLS, "seconds"),
    columns={**same("seconds"), **BY_IMPLEMENTATION, **same("check", "case", "status")},
)


def _recorded(cells: pd.DataFrame) -> pd.DataFrame:
    from suite.report.frames import recorded

    return recorded(cells)


CELLS = Table("cells", "One row per cell, as recorded.", rows=_recorded, rare=True)

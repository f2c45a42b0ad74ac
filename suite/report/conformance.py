"""Tables of judged cells (`suite.report.frames.cells`): runs, statuses, precision, failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from attention_conformance.suite.report.table import Columns, Table, across, same
from attention_conformance.suite.spec.vocabulary import BROKEN, GRADES, GRADIENTS, STATUSES, VALUES

if TYPE_CHECKING:
    import pandas as pd

FAILING = ("crash", "error", "fail", "known")
"""The statuses of failing cells, the gravest first."""

UNSUPPORTED = "unsupported"
"""The status of cells that were not asked."""

SLOWEST_CELLS = 20
REASONS_NAMED = 3
"""The number of implementations that are named for one reason."""

BY_IMPLEMENTATION = {"implementation": "label"}
BY_DTYPE = {"implementation": "label", "dtype": "dtype"}


def _count(status: str, rows: pd.DataFrame) -> int:
    return int((rows["status"] == status).sum())


def _score(rows: pd.DataFrame) -> float:
    """The share of judged cells that pass; NaN if no cell was judged."""
    return (rows["status"][rows["status"] != UNSUPPORTED] == "pass").mean()


def _coverage(rows: pd.DataFrame) -> float:
    """The share of cells that were judged."""
    return (rows["status"] != UNSUPPORTED).mean()


COUNTS: Columns = {"score": _score, "coverage": _coverage, "cells": len} | {
    status: partial(_count, status) for status in STATUSES
}
"""Columns with score, coverage, and cells per status."""


def tally(rows: pd.DataFrame) -> str:
    """Cells passed / judged, with the counts of other statuses in brackets, the gravest first."""
    counts = {status: _count(status, rows) for status in ("pass", *FAILING, UNSUPPORTED)}
    others = ", ".join(f"{n} {status}" for status, n in counts.items() if n and status != "pass")
    share = f"{counts['pass']}/{len(rows) - counts[UNSUPPORTED]}"
    return f"{share} ({others})" if others else share


RUNS = Table("runs", "The runs: versions, machine, options.", over="runs")

OF_STATUSES = Table(
    "statuses",
    "Cells per status. Unsupported cells are not judged. The score is pass / judged cells, the coverage "
    "judged / all cells; - if no cell was judged.",
    by=BY_IMPLEMENTATION,
    columns=COUNTS,
)

OF_OPERATORS = Table(
    "operators",
    "Cells per status of every implementation, by operator, and the seconds that they took.",
    by={"operator": "operator", **BY_IMPLEMENTATION},
    columns={**COUNTS, "seconds": ("seconds", "sum")},
    rare=True,
)


def _named(rows: pd.DataFrame) -> str:
    """The first implementations, and the number of others."""
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
    "Cells passed / judged in every group of cases, with other statuses in brackets. Unsupported cells "
    "are not judged.",
    by=BY_IMPLEMENTATION,
    columns=lambda rows: {**COUNTS, **across("group", tally)(rows)},
)


def _classes(rows: pd.DataFrame) -> str:
    """The numerics classes whose bounds were used."""
    return ", ".join(dict.fromkeys(filter(None, rows["numerics"])))


def widest(grades: Iterable[str]) -> str:
    """The widest grade. An unknown grade, of another version, counts as wider than all except "none"."""
    width = {"none": len(GRADES)} | {grade: n for n, grade in enumerate(GRADES) if grade != "none"}
    unknown = len(GRADES) - 0.5
    return max(filter(None, grades), key=lambda grade: width.get(grade, unknown), default="")


def _widest(rows: pd.DataFrame) -> str:
    return widest(rows["grade"])


def _number(condition: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], int]:
    return lambda rows: int(condition(rows).sum())


def _measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of the check `VALUES`.

    A wrong answer without a grade, as one that is not finite, has an infinite error ratio and the grade
    "none".
    """
    rows = cells.query(f"check == '{VALUES}' and status != '{UNSUPPORTED}'")
    wrong = (rows["status"] != "pass") & rows["kind"].isin(["non-finite", "value"])
    return rows.assign(
        error_ratio=rows["error_ratio"].where(rows["kind"] != "non-finite", math.inf),
        grade=rows["grade"].mask(wrong & (rows["grade"] == ""), "none"),
    )


def _worst_case(rows: pd.DataFrame) -> str:
    measured = rows[rows["error_ratio"].notna()]
    return "".join(measured.nlargest(1, "error_ratio")["case"])


ACCURACY = Table(
    "accuracy",
    "The check values: error ratio = max |error| / bound of the declared numerics class; the grade is "
    "the narrowest class whose bounds hold for all cells (exact, fused and eager are equal for f32 and "
    "f64); beyond counts the cells that exceed their bound.",
    rows=_measured,
    by=BY_DTYPE,
    columns={
        "numerics": _classes,
        "grade": _widest,
        "cells": ("error_ratio", "count"),
        "beyond": _number(lambda rows: rows["error_ratio"] > 1),
        "unmeasured": _number(lambda rows: rows["error_ratio"].isna()),
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
        "rms": ("rms", "max"),
        "case": _worst_case,
    },
)


LARGEST = Table(
    "largest",
    "The check values: the largest error ratio of right answers, over all seeds of the records, by "
    "operator, framework, numerics class and dtype.",
    rows=lambda cells: _measured(cells).query("status == 'pass' and error_ratio.notna()"),
    by={"operator": "operator", "backend": "backend", "numerics": "numerics"},
    columns=lambda rows: {
        "implementations": ("implementation", "nunique"),
        "seeds": ("seed", "nunique"),
        "cells": len,
        **across("dtype", lambda some: some["error_ratio"].max(), absent=math.nan)(rows),
    },
    rare=True,
)


EDGES = (0.01, 0.03, 0.1, 0.3, 1.0, math.inf)
"""The upper ends of `INTERVALS`."""

INTERVALS = {
    f"> {low:g}" if high == math.inf else f"≤ {high:g}": (low, high)
    for low, high in pairwise((-1.0, *EDGES))
}
"""The intervals of error ratios, by their names."""


def _between(low: float, high: float, rows: pd.DataFrame) -> int:
    return int(((rows["error_ratio"] > low) & (rows["error_ratio"] <= high)).sum())


DISTRIBUTION = Table(
    "distribution",
    "The check values: how many cells have an error ratio in each interval. Above 1 is wrong.",
    rows=_measured,
    by=BY_DTYPE,
    columns={
        **{name: partial(_between, *ends) for name, ends in INTERVALS.items()},
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
    },
    rare=True,
)

_RATIO = "ratio of "


def _differentiated(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of the checks `GRADIENTS`, with a column for every error ratio."""
    from attention_conformance.suite.report.frames import expanded

    rows = cells[cells["check"].isin(GRADIENTS) & (cells["status"] != UNSUPPORTED)]
    return rows.join(expanded(rows["ratios"]).add_prefix(_RATIO))


def _of_gradients(rows: pd.DataFrame) -> Columns:
    ratios = [str(name) for name in rows.filter(like=_RATIO)]
    return {
        "numerics": _classes,
        "grade": _widest,
        "cells": len,
        "beyond": _number(lambda rows: rows["status"] != "pass"),
        **{name.removeprefix(_RATIO): (name, "max") for name in ratios},
    }


OF_GRADIENTS = Table(
    "gradients",
    "The checks gradients and gradient_of_bias: the largest error ratio of the gradient of each operand "
    "and parameter, by the bound of the declared class, and the widest grade.",
    rows=_differentiated,
    by=BY_DTYPE,
    columns=_of_gradients,
)

KERNELS = Table(
    "kernels",
    "The kernels that compiled implementations ran, as the framework names them, with the number of "
    "cells.",
    rows=f"check == '{VALUES}' and kernels != ''",
    by={"implementation": "label", "kernels": "kernels"},
    columns={"cells": len},
)


def _explained(cells: pd.DataFrame) -> pd.DataFrame:
    from attention_conformance.suite.report.explanation import explained

    return explained(cells)


EXPLAINED = Table(
    "explained",
    "Failures by check, kind and implementation: the difference to passing cells of the same check, and "
    "the smallest case.",
    rows=_explained,
)


DIAGNOSES = Table(
    "diagnoses",
    "What is wrong with implementations that fail. Of the failing cells tried, `explains` behave so; of "
    "the passing cells tried, `contradicts` do not.",
    over="diagnoses",
    columns={
        **BY_IMPLEMENTATION,
        **same(
            "sentence",
            "explains",
            "tried",
            "contradicts",
            "hint",
            "family",
            "origin",
            "check",
            "case",
        ),
    },
)


def _failing(cells: pd.DataFrame) -> pd.DataFrame:
    """The failing cells, the gravest status first."""
    failing = cells[cells["status"].isin(FAILING)]
    return failing.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")


def _beside_others(cells: pd.DataFrame) -> pd.DataFrame:
    """The failing cells, with numbers of implementations for the same check and case.

    `supported`, `failing` and `passed` count implementations. With several seeds one failure counts as
    failing.
    """
    asked, fails = cells["status"] != UNSUPPORTED, cells["status"].isin(FAILING)
    each = cells.assign(supported=asked, failing=fails).groupby(["check", "case", "label"])
    outcomes = each[["supported", "failing"]].any().astype(int)
    outcomes["passed"] = outcomes["supported"] - outcomes["failing"]
    numbers = outcomes.groupby(["check", "case"]).sum().reset_index()
    return _failing(cells).merge(numbers, on=["check", "case"])


_FAILURE = {**same("status"), **BY_IMPLEMENTATION, **same("check", "case", "kind", "error_ratio")}

ONLY_HERE = Table(
    "only_here",
    "Cells that fail in exactly one implementation and pass in another.",
    rows=lambda cells: _beside_others(cells).query("failing == 1 and passed > 0"),
    columns={**_FAILURE, **same("passed", "message")},
)


def _kinds(rows: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(filter(None, rows["kind"])))


EVERYWHERE = Table(
    "everywhere",
    "Cells that fail in every implementation that supports the case, at least two.",
    rows=lambda cells: _beside_others(cells).query("failing == supported and failing > 1"),
    by=same("check", "case"),
    columns={"implementations": "failing", "kinds": _kinds, **same("message")},
)

FAILURES = Table(
    "failures",
    "Every cell with the status crash, error, fail or known.",
    rows=_failing,
    columns={**_FAILURE, **same("message")},
)

SLOWEST = Table(
    "slowest",
    "The cells that took longest to judge.",
    rows=lambda cells: cells.nlargest(SLOWEST_CELLS, "seconds"),
    columns={**same("seconds"), **BY_IMPLEMENTATION, **same("check", "case", "status")},
)


HISTORY = Table(
    "history",
    "Runs of each implementation, the oldest first: cells per status, the largest error ratio.",
    over="dated",
    rows=lambda dated: dated.sort_values("started", kind="stable"),
    by={"implementation": "name", "started": "started", "versions": "versions", "run": "source"},
    columns={**COUNTS, "max": ("error_ratio", "max")},
    rare=True,
)


def _changed(dated: pd.DataFrame) -> pd.DataFrame:
    """The cells whose oldest and newest records have different statuses, new failures first."""
    from attention_conformance.suite.report.frames import asked_again

    again = asked_again(dated)
    changed = again[again["before"] != again["status"]]
    return changed.sort_values("status", key=lambda s: ~s.isin(BROKEN), kind="stable")


CHANGED = Table(
    "changed",
    "Cells whose status changed from the oldest to the newest of the runs given, new failures first.",
    over="dated",
    rows=_changed,
    columns={"implementation": "name", **same("before", "status", "check", "case", "message")},
    rare=True,
)


def _recorded(cells: pd.DataFrame) -> pd.DataFrame:
    from attention_conformance.suite.report.frames import recorded

    return recorded(cells)


CELLS = Table("cells", "One row per cell, as recorded.", rows=_recorded, rare=True)

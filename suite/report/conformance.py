"""Tables of judged cells (`suite.report.frames.cells`): runs, statuses, precision, failures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.report.table import (
    Column,
    Entries,
    Groups,
    Table,
    across,
    counted,
    distinct,
    extreme,
    grouped,
    same,
)
from attention_conformance.suite.spec.vocabulary import BROKEN, GRADES, GRADIENTS, STATUSES, VALUES

if TYPE_CHECKING:
    import pandas as pd

FAILING = ("crash", "error", "fail", "known")
"""The statuses of failing cells, the gravest first."""

UNSUPPORTED = "unsupported"
"""The status of cells that were not asked."""

REASONS_NAMED = 3
"""The number of implementations that are named for one reason."""

BY_IMPLEMENTATION = {"implementation": "label"}
BY_DTYPE = {"implementation": "label", "dtype": "dtype"}


def _counts(groups: Groups) -> pd.DataFrame:
    """Score, coverage, and cells per status; NaN for the score if no cell was judged."""
    numbers = counted("status", STATUSES)(groups)
    cells = groups.size()
    judged = cells - numbers[UNSUPPORTED]
    shares = {"score": numbers["pass"] / judged, "coverage": judged / cells, "cells": cells}
    return numbers.assign(**shares)[[*shares, *STATUSES]]


COUNTS: dict[str, Entries] = {"counts": _counts}
"""Columns with score, coverage, and cells per status."""


def _tallies(groups: Groups) -> pd.Series:
    """Cells passed / judged, with the counts of other statuses in brackets, the gravest first."""
    import pandas as pd

    counts = _counts(groups)
    return pd.Series([*map(_tally, counts.to_dict("records"))], counts.index, dtype=object)


def _tally(counts: dict[Any, Any]) -> str:
    others = ", ".join(f"{counts[s]} {s}" for s in (*FAILING, UNSUPPORTED) if counts[s])
    share = f"{counts['pass']}/{counts['cells'] - counts[UNSUPPORTED]}"
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


def _named(labels: Iterable[str]) -> str:
    """The first implementations, and the number of others."""
    one, *others = labels
    few = len(others) < REASONS_NAMED
    return ", ".join([one, *others]) if few else f"{one} and {len(others)} more"


OF_UNSUPPORTED = Table(
    "unsupported",
    "Why cells were not asked, by reason.",
    rows=f"status == '{UNSUPPORTED}'",
    by={"reason": "message"},
    columns={
        "cells": ("case", "size"),
        "implementations": distinct("label", _named),
        **same("check", "case"),
    },
    order="cells",
)

CONFORMANCE = Table(
    "conformance",
    "Cells passed / judged in every group of cases, with other statuses in brackets. Unsupported cells "
    "are not judged.",
    by=BY_IMPLEMENTATION,
    columns={**COUNTS, "groups": across("group", _tallies)},
)


def widest(grades: Iterable[str]) -> str:
    """The widest grade. An unknown grade, of another version, counts as wider than all except "none"."""
    width = {"none": len(GRADES)} | {grade: n for n, grade in enumerate(GRADES) if grade != "none"}
    unknown = len(GRADES) - 0.5
    return max(filter(None, grades), key=lambda grade: width.get(grade, unknown), default="")


CLASSES: dict[str, Column] = {
    "numerics": distinct("numerics"),
    "grade": distinct("grade", widest),
}
"""The numerics classes whose bounds were used, and the widest grade."""


def _measured(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of the check `VALUES`.

    A wrong answer without a grade, as one that is not finite, has an infinite error ratio and the grade
    "none".
    """
    rows = cells.query(f"check == '{VALUES}' and status != '{UNSUPPORTED}'")
    wrong = (rows["status"] != "pass") & rows["kind"].isin(["non-finite", "value"])
    ratio = rows["error_ratio"].where(rows["kind"] != "non-finite", math.inf)
    return rows.assign(
        error_ratio=ratio,
        beyond=ratio > 1,
        unmeasured=ratio.isna(),
        grade=rows["grade"].mask(wrong & (rows["grade"] == ""), "none"),
    )


ACCURACY = Table(
    "accuracy",
    "The check values: error ratio = max |error| / bound of the declared numerics class; the grade is "
    "the narrowest class whose bounds hold for all cells (exact, fused and eager are equal for f32 and "
    "f64); beyond counts the cells that exceed their bound.",
    rows=_measured,
    by=BY_DTYPE,
    columns={
        **CLASSES,
        "cells": ("error_ratio", "count"),
        "beyond": ("beyond", "sum"),
        "unmeasured": ("unmeasured", "sum"),
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
        "rms": ("rms", "max"),
        "case": extreme("case"),
    },
)


LARGEST = Table(
    "largest",
    "The check values: the largest error ratio of right answers, over all seeds of the records, by "
    "operator, framework, numerics class and dtype.",
    rows=lambda cells: _measured(cells).query("status == 'pass' and error_ratio.notna()"),
    by={"operator": "operator", "backend": "backend", "numerics": "numerics"},
    columns={
        "implementations": ("implementation", "nunique"),
        "seeds": ("seed", "nunique"),
        "cells": ("case", "size"),
        "dtypes": across("dtype", lambda groups: groups["error_ratio"].max(), absent=math.nan),
    },
    rare=True,
)


EDGES = (-1.0, 0.01, 0.03, 0.1, 0.3, 1.0, math.inf)
"""The ends of `INTERVALS`."""

INTERVALS = (*(f"≤ {high:g}" for high in EDGES[1:-1]), f"> {EDGES[-2]:g}")
"""The names of the intervals of error ratios."""


def _distributed(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of the check `VALUES`, each with its interval."""
    import pandas as pd

    rows = _measured(cells)
    return rows.assign(interval=pd.cut(rows["error_ratio"], EDGES, labels=INTERVALS).astype(object))


DISTRIBUTION = Table(
    "distribution",
    "The check values: how many cells have an error ratio in each interval. Above 1 is wrong.",
    rows=_distributed,
    by=BY_DTYPE,
    columns={
        "intervals": counted("interval", INTERVALS),
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
    ratios = expanded(rows["ratios"]).add_prefix(_RATIO)
    return rows.assign(beyond=rows["status"] != "pass").join(ratios)


def _largest_ratios(groups: Groups) -> pd.DataFrame:
    names = [name for name in groups.obj if name.startswith(_RATIO)]
    return groups[names].max().rename(columns=lambda name: name.removeprefix(_RATIO))


OF_GRADIENTS = Table(
    "gradients",
    "The checks gradients and gradient_of_bias: the largest error ratio of the gradient of each operand "
    "and parameter, by the bound of the declared class, and the widest grade.",
    rows=_differentiated,
    by=BY_DTYPE,
    columns={
        **CLASSES,
        "cells": ("case", "size"),
        "beyond": ("beyond", "sum"),
        "operands": _largest_ratios,
    },
)

KERNELS = Table(
    "kernels",
    "The kernels that compiled implementations ran, as the framework names them, with the number of "
    "cells.",
    rows=f"check == '{VALUES}' and kernels != ''",
    by={"implementation": "label", "kernels": "kernels"},
    columns={"cells": ("case", "size")},
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
        **same("sentence", "explains", "tried", "contradicts"),
        **same("hint", "family", "origin", "check", "case"),
    },
)


def failing_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The failing cells, the gravest status first."""
    failing = cells[cells["status"].isin(FAILING)]
    return failing.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")


def _beside_others(cells: pd.DataFrame) -> pd.DataFrame:
    """The failing cells, with numbers of implementations for the same check and case: those that fail
    with any seed, and all that were asked."""
    wrong = failing_cells(cells)
    cells = cells[cells["case"].isin(wrong["case"])]
    asked, fails = cells["status"] != UNSUPPORTED, cells["status"].isin(FAILING)
    each = grouped(cells.assign(asked=asked, failing=fails), ["check", "case", "label"])
    numbers = each[["failing", "asked"]].any().groupby(["check", "case"]).sum().reset_index()
    return wrong.merge(numbers, on=["check", "case"])


FAILURES = Table(
    "failures",
    "Every cell with the status crash, error, fail or known, with the number of implementations that "
    "fail in the same check and case, and of those that were asked.",
    rows=_beside_others,
    columns={
        **same("status"),
        **BY_IMPLEMENTATION,
        **same("check", "case", "kind", "error_ratio", "failing", "asked", "message"),
    },
)

HISTORY = Table(
    "history",
    "Runs of each implementation, the oldest first: cells per status, the largest error ratio.",
    rows=lambda cells: cells.sort_values("started", kind="stable"),
    by={"implementation": "name", "started": "started", "versions": "versions", "run": "source"},
    columns={**COUNTS, "max": ("error_ratio", "max")},
    rare=True,
)


def _changed(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells whose oldest and newest records have different statuses, new failures first."""
    from attention_conformance.suite.report.frames import asked_again

    again = asked_again(cells)
    changed = again[again["before"] != again["status"]]
    return changed.sort_values("status", key=lambda s: ~s.isin(BROKEN), kind="stable")


CHANGED = Table(
    "changed",
    "Cells whose status changed from the oldest to the newest of the runs given, new failures first.",
    rows=_changed,
    columns={"implementation": "name", **same("before", "status", "check", "case", "message")},
    rare=True,
)


def _recorded(cells: pd.DataFrame) -> pd.DataFrame:
    from attention_conformance.suite.report.frames import recorded

    return recorded(cells)


CELLS = Table("cells", "One row per cell, as recorded.", rows=_recorded, rare=True)

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
    distinct_texts,
    entry_of_largest,
    group_rows,
    per_value,
    same_names,
    value_counts,
)
from attention_conformance.suite.spec.vocabulary import BROKEN, GRADES, GRADIENTS, STATUSES, VALUES

if TYPE_CHECKING:
    import pandas as pd

FAILING = ("crash", "error", "fail", "known")
"""The statuses of failing cells, the gravest first."""

UNSUPPORTED = "unsupported"
"""The status of cells that were not judged."""

REASONS_NAMED = 3
"""The number of implementations that are named for one reason."""

BY_IMPLEMENTATION = {"implementation": "label"}
BY_DTYPE = {"implementation": "label", "dtype": "dtype"}


def _counts(groups: Groups) -> pd.DataFrame:
    """Returns score, coverage, number of cells, and cells per status, a row per group. The score is NaN
    if no cell was judged."""
    numbers = value_counts("status", STATUSES)(groups)
    cells = groups.size()
    judged = cells - numbers[UNSUPPORTED]
    shares = {"score": numbers["pass"] / judged, "coverage": judged / cells, "cells": cells}
    return numbers.assign(**shares)[[*shares, *STATUSES]]


COUNTS: dict[str, Entries] = {"counts": _counts}
"""Columns with score, coverage, and cells per status."""


def _tallies(groups: Groups) -> pd.Series:
    """Returns a text for each group: cells passed / judged, with the counts of other statuses in
    brackets, the gravest first."""
    import pandas as pd

    counts = _counts(groups)
    return pd.Series([*map(_tally_text, counts.to_dict("records"))], counts.index, dtype=object)


def _tally_text(counts: dict[Any, Any]) -> str:
    """Returns the tally of one group: "17/20 (3 fail, 2 unsupported)"."""
    other_counts = ", ".join(f"{counts[s]} {s}" for s in (*FAILING, UNSUPPORTED) if counts[s])
    share = f"{counts['pass']}/{counts['cells'] - counts[UNSUPPORTED]}"
    return f"{share} ({other_counts})" if other_counts else share


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


def _shortened_list(labels: Iterable[str]) -> str:
    """Returns the labels as one text. For more than `REASONS_NAMED` labels only the first is named, with
    the number of further ones."""
    first_label, *further = labels
    all_fit = len(further) < REASONS_NAMED
    return (
        ", ".join([first_label, *further]) if all_fit else f"{first_label} and {len(further)} more"
    )


OF_UNSUPPORTED = Table(
    "unsupported",
    "Why cells were not tested, by reason.",
    rows=f"status == '{UNSUPPORTED}'",
    by={"reason": "message"},
    columns={
        "cells": ("case", "size"),
        "implementations": distinct_texts("label", _shortened_list),
        **same_names("check", "case"),
    },
    order="cells",
)

CONFORMANCE = Table(
    "conformance",
    "Cells passed / judged in every group of cases, with other statuses in brackets. Unsupported cells "
    "are not judged.",
    by=BY_IMPLEMENTATION,
    columns={**COUNTS, "groups": per_value("group", _tallies)},
)


def widest_grade(grades: Iterable[str]) -> str:
    """Returns the widest grade; "" if there is none. A grade that this version does not know counts as
    wider than all except "none"."""
    width = {"none": len(GRADES)} | {grade: n for n, grade in enumerate(GRADES) if grade != "none"}
    unknown = len(GRADES) - 0.5
    return max(filter(None, grades), key=lambda grade: width.get(grade, unknown), default="")


CLASSES: dict[str, Column] = {
    "numerics": distinct_texts("numerics"),
    "grade": distinct_texts("grade", widest_grade),
}
"""The numerics classes whose bounds were used, and the widest grade."""


def _value_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the judged cells of the check `VALUES`, with the flags `beyond` and `unmeasured`.

    An answer that is not finite gets an infinite error ratio. A wrong answer without a grade gets the
    grade "none"."""
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
    rows=_value_cells,
    by=BY_DTYPE,
    columns={
        **CLASSES,
        "cells": ("error_ratio", "count"),
        "beyond": ("beyond", "sum"),
        "unmeasured": ("unmeasured", "sum"),
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
        "rms": ("rms", "max"),
        "case": entry_of_largest("case"),
    },
)


LARGEST = Table(
    "largest",
    "The check values: the largest error ratio of right answers, over all seeds of the records, by "
    "operator, framework, numerics class and dtype.",
    rows=lambda cells: _value_cells(cells).query("status == 'pass' and error_ratio.notna()"),
    by={"operator": "operator", "backend": "backend", "numerics": "numerics"},
    columns={
        "implementations": ("implementation", "nunique"),
        "seeds": ("seed", "nunique"),
        "cells": ("case", "size"),
        "dtypes": per_value("dtype", lambda groups: groups["error_ratio"].max(), absent=math.nan),
    },
    rare=True,
)


EDGES = (-1.0, 0.01, 0.03, 0.1, 0.3, 1.0, math.inf)
"""The ends of `INTERVALS`."""

INTERVALS = (*(f"≤ {high:g}" for high in EDGES[1:-1]), f"> {EDGES[-2]:g}")
"""The names of the intervals of error ratios."""


def _with_intervals(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the judged cells of the check `VALUES`, with the column `interval`, a name of
    `INTERVALS`."""
    import pandas as pd

    rows = _value_cells(cells)
    return rows.assign(interval=pd.cut(rows["error_ratio"], EDGES, labels=INTERVALS).astype(object))


DISTRIBUTION = Table(
    "distribution",
    "The check values: how many cells have an error ratio in each interval. Above 1 is wrong.",
    rows=_with_intervals,
    by=BY_DTYPE,
    columns={
        "intervals": value_counts("interval", INTERVALS),
        "median": ("error_ratio", "median"),
        "max": ("error_ratio", "max"),
    },
    rare=True,
)

_RATIO = "ratio of "


def _gradient_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the judged cells of the checks `GRADIENTS`, with a column for every error ratio."""
    from attention_conformance.suite.report.frames import dict_columns

    rows = cells[cells["check"].isin(GRADIENTS) & (cells["status"] != UNSUPPORTED)]
    ratios = dict_columns(rows["ratios"]).add_prefix(_RATIO)
    return rows.assign(beyond=rows["status"] != "pass").join(ratios)


def _largest_ratios(groups: Groups) -> pd.DataFrame:
    names = [name for name in groups.obj if name.startswith(_RATIO)]
    return groups[names].max().rename(columns=lambda name: name.removeprefix(_RATIO))


OF_GRADIENTS = Table(
    "gradients",
    "The checks gradients and gradient_of_bias: the largest error ratio of the gradient of each operand "
    "and parameter, by the bound of the declared class, and the widest grade.",
    rows=_gradient_cells,
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
    from attention_conformance.suite.report.explanation import failure_table

    return failure_table(cells)


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
        **same_names("sentence", "explains", "tried", "contradicts"),
        **same_names("hint", "family", "origin", "check", "case"),
    },
)


def failing_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the failing cells, the gravest status first."""
    failing = cells[cells["status"].isin(FAILING)]
    return failing.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")


def _with_failing_counts(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the failing cells with two columns that count implementations with the same check and case:
    `failing` (with any seed), and `asked` (judged with any seed)."""
    failing = failing_cells(cells)
    cells = cells[cells["case"].isin(failing["case"])]
    flags = {"asked": cells["status"] != UNSUPPORTED, "failing": cells["status"].isin(FAILING)}
    by_label = group_rows(cells.assign(**flags), ["check", "case", "label"])[[*flags]].any()
    counts = by_label.groupby(["check", "case"])[["failing", "asked"]].sum().reset_index()
    return failing.merge(counts, on=["check", "case"])


FAILURES = Table(
    "failures",
    "Every cell with the status crash, error, fail or known, with the number of implementations that "
    "fail in the same check and case, and of those that were tested.",
    rows=_with_failing_counts,
    columns={
        **same_names("status"),
        **BY_IMPLEMENTATION,
        **same_names("check", "case", "kind", "error_ratio", "failing", "asked", "message"),
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


def _changed_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the cells whose oldest and newest records have different statuses, new failures first."""
    from attention_conformance.suite.report.frames import repeated_cells

    repeated = repeated_cells(cells)
    changed = repeated[repeated["before"] != repeated["status"]]
    return changed.sort_values("status", key=lambda s: ~s.isin(BROKEN), kind="stable")


CHANGED = Table(
    "changed",
    "Cells whose status changed from the oldest to the newest of the runs given, new failures first.",
    rows=_changed_cells,
    columns={"implementation": "name"} | same_names("before", "status", "check", "case", "message"),
    rare=True,
)


def _file_columns(cells: pd.DataFrame) -> pd.DataFrame:
    from attention_conformance.suite.report.frames import file_columns

    return file_columns(cells)


CELLS = Table("cells", "One row per cell, as recorded.", rows=_file_columns, rare=True)

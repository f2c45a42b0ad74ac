"""Tables of sweeps (`suite.report.swept`), over many seeds, releases and searches."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.report.conformance import COUNTS, UNSUPPORTED
from attention_conformance.suite.report.table import Columns, Table, same
from attention_conformance.suite.spec.vocabulary import BROKEN, VALUES

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999, "99.99%": 0.9999, "max": 1.0}
"""The quantiles of error ratios by column."""

CONTROLS = ("numpy",)
"""Backends that are right by construction. If one fails, the suite is wrong."""

BY_RELEASE = {"implementation": "label", "release": "release"}

SWEPT = Table(
    "swept",
    "Runs that differ only in their seeds, with their core hours.",
    over="swept_runs",
    by={"runs": "title", "release": "release"},
    columns={
        "seeds": len, "whole": ("whole", "sum"), "cells": ("cells", "sum"), "owed": ("owed", "sum"),
        "core_hours": ("core_hours", "sum"),
        "versions": lambda rows: "; ".join(dict.fromkeys(rows["versions"])),
    },
)  # fmt: skip

OF_RELEASES = Table(
    "by_release",
    "Cells per status and release, over all seeds. The score is pass / judged, coverage judged / all "
    "cells.",
    over="swept_cells",
    by=BY_RELEASE,
    columns=COUNTS,
)

OF_SEEDS = Table(
    "by_seed",
    "Cells per status and seed.",
    over="swept_cells",
    rows=lambda cells: cells.sort_values(["release", "seed"], kind="stable"),
    by=same("release", "seed"),
    columns=COUNTS,
)


def _failed(rows: pd.DataFrame) -> int:
    return int(rows["status"].isin(BROKEN).sum())


def _rate(rows: pd.DataFrame) -> float:
    return _failed(rows) / len(rows)


def _end(name: str, rows: pd.DataFrame) -> float:
    """The end "low" or "high" of the exact interval of the rate (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    interval = binomtest(_failed(rows), len(rows)).proportion_ci(CONFIDENCE, method="exact")
    return float(getattr(interval, name))


def _a_million(figure: Any, rows: pd.DataFrame) -> float:
    return 1e6 * figure(rows)


RATES = Table(
    "rates",
    "Rates of failures among judged cells, with exact 95 % intervals of independent draws. Known "
    "failures are counted separately. Seeds of one case are not independent: if a fault depends on the "
    "case, the intervals are too narrow.",
    over="swept_cells",
    rows=f"status != '{UNSUPPORTED}'",
    by=BY_RELEASE,
    columns={
        "asked": len, "failed": _failed, "rate": _rate, "low": partial(_end, "low"),
        "high": partial(_end, "high"), "known": lambda rows: int((rows["status"] == "known").sum()),
        "seeds": ("seed", "nunique"),
    },
)  # fmt: skip


def _of_controls(cells: pd.DataFrame) -> pd.DataFrame:
    """The judged cells of the controls, and all of them again under the name "all"."""
    import pandas as pd

    mine = cells[cells["backend"].isin(CONTROLS) & (cells["status"] != UNSUPPORTED)]
    return pd.concat([mine, mine.assign(label="all", release="")])


FALSE_ALARMS = Table(
    "false_alarms",
    "Failures of the control per million cells, with exact 95 % intervals. If the control fails, the "
    "suite is wrong.",
    over="swept_cells",
    rows=_of_controls,
    by=BY_RELEASE,
    columns={
        "asked": len, "failed": _failed, "a_million": partial(_a_million, _rate),
        "low": partial(_a_million, partial(_end, "low")),
        "high": partial(_a_million, partial(_end, "high")),
    },
)  # fmt: skip


def _quantile(share: float, rows: pd.DataFrame) -> float:
    # "higher", since interpolation with infinity gives NaN.
    return float(rows["error_ratio"].quantile(share, interpolation="higher"))


OF_RATIOS: Columns = {
    "cells": len,
    "beyond": lambda rows: int((rows["error_ratio"] > 1).sum()),
    **{name: partial(_quantile, share) for name, share in QUANTILES.items()},
}

TIGHTNESS = Table(
    "tightness",
    "Quantiles of max |error| / bound over the cells and seeds of the check values; beyond counts cells "
    "that exceed their bound.",
    over="swept_cells",
    rows=f"check == '{VALUES}' and error_ratio.notna()",
    by={"implementation": "label", **same("dtype", "release")},
    columns={
        "numerics": lambda rows: ", ".join(filter(None, dict.fromkeys(rows["numerics"]))),
        **OF_RATIOS,
    },
)

TIGHTNESS_OF_CHECKS = Table(
    "tightness_of_checks",
    "The same quantiles by check and numerics class, over all implementations.",
    over="swept_cells",
    rows=lambda cells: cells[cells["error_ratio"].notna()].sort_values(["check", "numerics"]),
    by=same("check", "numerics"),
    columns=OF_RATIOS,
)


def _worst(column: str, none: Any, rows: pd.DataFrame) -> Any:
    """The column's entry for the failure with the largest error ratio, or for the first failure if none
    has a ratio; `none` without a failure."""
    failed = rows[rows["status"].isin(BROKEN)]
    if failed.empty:
        return none
    return failed[column].iloc[int(failed["error_ratio"].fillna(-math.inf).argmax())]


WORST: Columns = {
    "error_ratio": partial(_worst, "error_ratio", math.nan),
    "case": partial(_worst, "case", ""),
    "message": partial(_worst, "message", ""),
}

FAILING = Table(
    "failing",
    "Failures by implementation, check and kind, the most frequent first, with the worst.",
    over="swept_cells",
    rows=f"status in {BROKEN}",
    by={"implementation": "label", **same("check", "kind", "release")},
    columns={
        "cells": ("case", "nunique"), "seeds": ("seed", "nunique"), **WORST,
    },
    order="cells",
)  # fmt: skip


def _of_some_seeds(cells: pd.DataFrame) -> pd.DataFrame:
    """Failures (also known ones) of cells that do not fail with every seed.

    Cells that fail with few seeds come first, cells with only known failures last.
    """
    seeds = cells.groupby(["release", "label"])["seed"].transform("nunique")
    rows = cells.assign(of=seeds)[cells["status"].isin([*BROKEN, "known"])]
    failed = rows["status"].isin(BROKEN)
    one = [rows[name] for name in ("release", "check", "case", "label")]
    times, every = failed.groupby(one).transform("sum"), failed.groupby(one).transform("size")
    some = (times < rows["of"]) & ((times > 0) | (every < rows["of"]))
    last = times.where(times > 0, math.inf)
    return rows.assign(times=last)[some].sort_values("times", kind="stable")


def _first_seed(rows: pd.DataFrame) -> float:
    """The smallest seed with a failure; NaN if all failures are known."""
    return rows["seed"][rows["status"].isin(BROKEN)].min()


SOME_SEEDS = Table(
    "some_seeds",
    "Cells that fail, or are known, with some seeds and pass with others, so the failure depends on the "
    "values. Known counts seeds with an expected failure; seed is the smallest that fails.",
    over="swept_cells",
    rows=_of_some_seeds,
    by={**same("release", "check", "case"), "implementation": "label"},
    columns={
        "failed": _failed, "known": lambda rows: len(rows) - _failed(rows), "of": "of",
        "status": partial(_worst, "status", "known"), "kind": partial(_worst, "kind", ""),
        "error_ratio": WORST["error_ratio"], "seed": _first_seed, "message": WORST["message"],
    },
)  # fmt: skip


def _of_searches(searches: pd.DataFrame) -> Columns:
    """A column for every status of a cell in the searches, and the other columns of the table."""
    statuses = sorted({status for counts in searches["statuses"] for status in counts})
    counts = {status: partial(_cells_of, status) for status in statuses}
    figures = {name: (name, "sum") for name in ("died", "examples", "core_hours")}
    return {"seeds": len, **figures, **counts}


def _cells_of(status: str, searches: pd.DataFrame) -> int:
    return sum((Counter(counts) for counts in searches["statuses"]), Counter[str]())[status]


SEARCHES = Table(
    "searched",
    "Searches that differ only in their seeds: judged cases, cells by status, and the number of "
    "processes that died.",
    over="searches",
    by=same("backends", "implementations", "dtypes", "mode", "gradients", "versions"),
    columns=_of_searches,
)


def _by_cause(found: pd.DataFrame) -> pd.DataFrame:
    """Failures, smallest case first, each with the smallest case of its cause."""
    ordered = found.assign(size=found["case"].str.len()).sort_values(
        ["size", "case"], kind="stable"
    )
    one = ordered.groupby(["implementation", "check", "kind", "dtype", "said"])
    return ordered.assign(case=one["case"].transform("first"))


FOUND = Table(
    "found",
    "Failures that searches found, each cause once: the smallest case, the number of failures, the "
    "number of seeds, and the first seed.",
    over="found",
    rows=_by_cause,
    by=same("implementation", "check", "kind", "case"),
    columns={
        "times": ("times", "sum"), "seeds": ("seed", "nunique"), "seed": ("seed", "min"),
        **same("message"),
    },
    order="times",
)  # fmt: skip

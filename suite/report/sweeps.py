"""Tables of sweeps (`suite.report.swept`), over many seeds, releases and searches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attention_conformance.suite.report.conformance import COUNTS, UNSUPPORTED
from attention_conformance.suite.report.table import Groups, Table, distinct_texts, same_names
from attention_conformance.suite.spec.vocabulary import BROKEN, VALUES

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999, "99.99%": 0.9999, "max": 1.0}
"""The quantiles of error ratios by column."""

BY_RELEASE = {"implementation": "label", "release": "release"}

SWEPT = Table(
    "swept",
    "Runs that differ only in their seeds, with their core hours.",
    over="swept_runs",
    by={"runs": "title", "release": "release"},
    columns={
        "seeds": ("seed", "size"),
        **{name: (name, "sum") for name in ("whole", "cells", "owed", "core_hours")},
        "versions": distinct_texts("versions", "; ".join),
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
    by=same_names("release", "seed"),
    columns=COUNTS,
)


def _with_failures(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the judged cells, with flags: `failed` and `known`."""
    judged = cells[cells["status"] != UNSUPPORTED]
    status = judged["status"]
    return judged.assign(failed=status.isin(BROKEN), known=status == "known")


def _rates(groups: Groups) -> pd.DataFrame:
    """Returns the rate of failures of each group, with its exact interval (Clopper and Pearson 1934):
    columns rate, low and high."""
    import pandas as pd
    from scipy.stats import binomtest

    failed = groups["failed"].agg(["sum", "size"])
    tests = [binomtest(k, n) for k, n in failed.itertuples(index=False, name=None)]
    intervals = [test.proportion_ci(CONFIDENCE, method="exact") for test in tests]
    rates = [
        (test.statistic, float(end.low), float(end.high))
        for test, end in zip(tests, intervals, strict=True)
    ]
    return pd.DataFrame(rates, failed.index, ["rate", "low", "high"], dtype="float64")


RATES = Table(
    "rates",
    "Rates of failures among judged cells, with exact 95 % intervals of independent draws. Known "
    "failures are counted separately; a failure of a control is a false alarm of the suite. Seeds of "
    "one case are not independent: if a fault depends on the case, the intervals are too narrow.",
    over="swept_cells",
    rows=_with_failures,
    by=BY_RELEASE,
    columns={
        "asked": ("case", "size"), "failed": ("failed", "sum"), "rates": _rates,
        "known": ("known", "sum"), "seeds": ("seed", "nunique"),
    },
)  # fmt: skip


def _ratio_quantiles(groups: Groups) -> pd.DataFrame:
    """Returns, for each group, the numbers of cells and of cells beyond their bound, and `QUANTILES` of
    error ratios."""
    # "higher", since interpolation with infinity gives NaN.
    shares = [*QUANTILES.values()]
    quantiles = groups["error_ratio"].quantile(shares, interpolation="higher").unstack()
    quantiles = quantiles.reindex(columns=shares).set_axis([*QUANTILES], axis=1)
    quantiles.insert(0, "cells", groups.size())
    quantiles.insert(1, "beyond", groups["beyond"].sum())
    return quantiles


def _with_ratios(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the measured cells, with the flag `beyond`."""
    return cells[cells["error_ratio"].notna()].assign(beyond=cells["error_ratio"] > 1)


TIGHTNESS = Table(
    "tightness",
    "Quantiles of max |error| / bound over the cells and seeds of the check values; beyond counts cells "
    "that exceed their bound.",
    over="swept_cells",
    rows=lambda cells: _with_ratios(cells[cells["check"] == VALUES]),
    by={"implementation": "label", **same_names("dtype", "release")},
    columns={"numerics": distinct_texts("numerics"), "ratios": _ratio_quantiles},
)

TIGHTNESS_OF_CHECKS = Table(
    "tightness_of_checks",
    "The same quantiles by check and numerics class, over all implementations.",
    over="swept_cells",
    rows=lambda cells: _with_ratios(cells).sort_values(["check", "numerics"]),
    by=same_names("check", "numerics"),
    columns={"ratios": _ratio_quantiles},
)


FAILING = Table(
    "failing",
    "Failures by implementation, check and kind, the most frequent first, with the worst.",
    over="swept_cells",
    rows=lambda cells: cells.query(f"status in {BROKEN}").sort_values(
        "error_ratio", ascending=False, kind="stable"
    ),
    by={"implementation": "label", **same_names("check", "kind", "release")},
    columns={
        "cells": ("case", "nunique"), "seeds": ("seed", "nunique"),
        **same_names("error_ratio", "case", "message"),
    },
    order="cells",
)  # fmt: skip


def _failing_with_some_seeds(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the failures, known ones included, of cells that do not fail with every seed.

    Cells that fail with few seeds come first, cells with only known failures last. Within a cell, the
    worst failure comes first."""
    seeds = cells.groupby(["release", "label"])["seed"].transform("nunique")
    rows = cells.assign(of=seeds)[cells["status"].isin([*BROKEN, "known"])]
    failed = rows["status"].isin(BROKEN)
    by_cell = failed.groupby([rows[name] for name in ("release", "check", "case", "label")])
    failure_counts, record_counts = by_cell.transform("sum"), by_cell.transform("size")
    varies = (failure_counts < rows["of"]) & ((failure_counts > 0) | (record_counts < rows["of"]))
    sort_counts = failure_counts.where(failure_counts > 0, math.inf)
    columns = {"failed": failed, "known": ~failed, "first": rows["seed"].where(failed)}
    order = {"times": True, "known": True, "error_ratio": False}
    cells = rows.assign(times=sort_counts, **columns)[varies]
    return cells.sort_values([*order], ascending=[*order.values()])


SOME_SEEDS = Table(
    "some_seeds",
    "Cells that fail, or are known, with some seeds and pass with others, so the failure depends on the "
    "values. Known counts seeds with an expected failure; seed is the smallest that fails.",
    over="swept_cells",
    rows=_failing_with_some_seeds,
    by={**same_names("release", "check", "case"), "implementation": "label"},
    columns={
        "failed": ("failed", "sum"), "known": ("known", "sum"), "of": "of",
        **same_names("status", "kind", "error_ratio"), "seed": ("first", "min"), **same_names("message"),
    },
)  # fmt: skip


def _status_counts(groups: Groups) -> pd.DataFrame:
    """Returns the numbers of cells by status, summed over the searches of a group."""
    import pandas as pd

    counts = pd.DataFrame([*groups.obj["statuses"]], groups.obj.index).fillna(0).astype(int)
    return counts.sort_index(axis=1).groupby([groups.obj[key] for key in groups.keys]).sum()


SEARCHES = Table(
    "searched",
    "Searches that differ only in their seeds: judged cases, cells by status, and the number of "
    "processes that died.",
    over="searches",
    by=same_names("backends", "implementations", "dtypes", "mode", "gradients", "versions"),
    columns={
        "seeds": ("seed", "size"),
        **{name: (name, "sum") for name in ("died", "examples", "core_hours")},
        "statuses": _status_counts,
    },
)


def _by_cause(failures: pd.DataFrame) -> pd.DataFrame:
    """Returns the failures, the smallest case first. The case of each is replaced by the smallest case
    with the same cause."""
    smallest_first = failures.assign(size=failures["case"].str.len()).sort_values(
        ["size", "case"], kind="stable"
    )
    causes = smallest_first.groupby(["implementation", "check", "kind", "dtype", "said"])
    return smallest_first.assign(case=causes["case"].transform("first"))


FOUND = Table(
    "found",
    "Failures that searches found, each cause once: the smallest case, the number of failures, the "
    "number of seeds, and the first seed.",
    over="found",
    rows=_by_cause,
    by=same_names("implementation", "check", "kind", "case"),
    columns={
        "times": ("times", "sum"), "seeds": ("seed", "nunique"), "seed": ("seed", "min"),
        **same_names("message"),
    },
    order="times",
)  # fmt: skip

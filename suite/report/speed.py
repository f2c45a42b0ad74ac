"""Tables of speed: of measurements (`suite.report.frames.measurements`), and of asv's results.

A refused measurement has a row with the reason and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from attention_conformance.suite.records.speed import TIMED
from attention_conformance.suite.report.table import Table, first_entry, per_value, same_names

if TYPE_CHECKING:
    import pandas as pd

_WAS_TIMED = f"status in {TIMED}"

_IMPLEMENTATION = {"implementation": "label"}


def _scaled_column(column: str, factor: float) -> Callable[[pd.DataFrame], pd.Series]:
    """Returns a function of rows that returns this column multiplied by `factor`."""
    return lambda rows: rows[column] * factor


SPEED = Table(
    "speed",
    "Times of right answers: the median of a call and its quartiles in ms, shares of the machine's best "
    "matrix product and copy, tokens per second of decoding, the first call, peak memory.",
    over="measurements",
    rows=_WAS_TIMED,
    columns={
        **same_names("workload", "direction", "dtype"),
        **_IMPLEMENTATION,
        "ms": _scaled_column("seconds", 1e3),
        "q1": _scaled_column("low", 1e3),
        "q3": _scaled_column("high", 1e3),
        **same_names("share_of_gemm", "share_of_copy", "tokens_per_second"),
        "first_call_ms": _scaled_column("first_call", 1e3),
        "MiB": _scaled_column("peak_bytes", 2.0**-20),
        **same_names("error_ratio"),
        "settled": lambda rows: rows["status"] == "timed",
        **same_names("kernel"),
    },
)

SPEEDUP = Table(
    "speedup",
    "Seconds of the baseline / seconds of the implementation: 2 is twice as fast.",
    over="measurements",
    rows=_WAS_TIMED,
    by=same_names("workload", "direction", "dtype", "device", "threads"),
    columns={"speedups": per_value("label", first_entry("speedup"), absent=float("nan"))},
)

EXACTNESS = Table(
    "exactness",
    "The largest error ratio beside the share of the best matrix product.",
    over="measurements",
    rows=_WAS_TIMED,
    by=_IMPLEMENTATION | same_names("direction", "dtype"),
    columns={
        "workloads": ("workload", "nunique"),
        "error_ratio": ("error_ratio", "max"),
        "share_of_gemm": ("share_of_gemm", "median"),
        "best_share": ("share_of_gemm", "max"),
    },
)


def _cost_law(measurements: pd.DataFrame) -> pd.DataFrame:
    from attention_conformance.suite.report.laws import cost_law

    return cost_law(measurements.query(f"{_WAS_TIMED} and swept"))


COST_LAW = Table(
    "cost_law",
    "T(L) = a + b L + c L^2 of the sweep, with 95 % intervals: a and b in microseconds, c in "
    "nanoseconds per query-key pair.",
    over="measurements",
    rows=_cost_law,
)

REFUSED = Table(
    "refused",
    "Refused times, with reasons.",
    over="measurements",
    rows=f"status not in {(*TIMED, 'unsupported')}",
    columns={
        **same_names("workload", "direction", "dtype"),
        **_IMPLEMENTATION,
        **same_names("status", "kind", "message"),
    },
)

SAMPLES = Table(
    "samples",
    "Every sample, in seconds.",
    over="measurements",
    rows=lambda measurements: measurements.query(_WAS_TIMED).explode("samples"),
    columns={
        **same_names("workload", "direction", "dtype", "device", "threads", "case", "label"),
        "seconds": lambda rows: rows["samples"].astype("float64"),
    },
    rare=True,
)


def _history(results: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per benchmark, parameters, machine and environment; a column per commit, by date.

    Each version of a benchmark has its own row.
    """
    column = results["date"].dt.strftime("%Y-%m-%d") + " " + results["commit"].str[:8]
    order = column.loc[results.sort_values("date", kind="stable").index].drop_duplicates()
    index = ["benchmark", "parameters", "machine", "environment", "version"]
    grouped = results.assign(column=column).groupby([*index, "column"], sort=False)["value"]
    wide = grouped.first().unstack("column")
    constant: list[Hashable] = [name for name in index[2:] if results[name].nunique() == 1]
    return wide.reindex(columns=order).droplevel(constant).rename_axis(columns=None)


ASV_HISTORY = Table(
    "asv_history",
    "asv's values, a column per commit: seconds, bytes, or what the benchmark counts.",
    over="asv",
    rows=_history,
)

ASV = Table(
    "asv",
    "asv's results, in asv's units; NaN if a benchmark failed or has no value.",
    over="asv",
    rare=True,
)

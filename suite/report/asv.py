"""Tables of asv's results: speed over time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.records.lines import RecordError


def tables_of_asv(folders: Iterable[Path], names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The tables of `suite.report.kinds.ASV` called `names`. Raises RecordError."""
    results = pd.concat([asv_results(folder) for folder in folders], ignore_index=True)
    return {name: asv_history(results) if name == "asv_history" else results for name in names}


def asv_results(folder: str | Path) -> pd.DataFrame:
    """asv's results: a row per commit, machine, environment, benchmark and parameters.

    `value` is in asv's unit (seconds, bytes, or what a track_ benchmark gives), NaN where a benchmark
    failed or has no value; `low` and `high` are asv's 99 % interval where it has one. `folder` is asv's
    results_dir. Raises RecordError where it holds no results.
    """
    rows: list[dict[str, Any]] = []
    for path in sorted(Path(folder).glob("*/*.json")):
        if path.name == "machine.json":
            continue
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            columns = stored["result_columns"]
            for name, values in stored["results"].items():
                rows += _asv_rows(path, stored, name, dict(zip(columns, values, strict=False)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(f"{path}: not a result file of asv: {error}") from error
    if not rows:
        raise RecordError(f"{folder}: no results of asv (its results_dir, .asv/results)")
    return pd.DataFrame(rows)


def asv_history(results: pd.DataFrame) -> pd.DataFrame:
    """asv's values side by side, a column per commit in the order of their dates.

    `results` is what `asv_results` gives. A row per benchmark, parameters, machine and environment; what
    asv is no longer asked, because its version changed, has a row of its own.
    """
    day = results["date"].dt.strftime("%Y-%m-%d")
    column = day + " " + results["commit"].str[:8]
    order = column.loc[results.sort_values("date", kind="stable").index].drop_duplicates()
    index = ["benchmark", "parameters", "machine", "environment", "version"]
    grouped = results.assign(column=column).groupby([*index, "column"], sort=False)["value"]
    wide = grouped.first().unstack("column")
    once: list[Hashable] = [name for name in index[2:] if results[name].nunique() == 1]
    return wide.reindex(columns=order).droplevel(once).rename_axis(columns=None)


def _asv_rows(
    path: Path, stored: dict[str, Any], name: str, entry: dict[str, Any]
) -> list[dict[str, Any]]:
    combinations = list(itertools.product(*(entry.get("params") or [])))
    results = entry["result"] or [None] * len(combinations)
    lows = entry.get("stats_ci_99_a") or [None] * len(results)
    highs = entry.get("stats_ci_99_b") or [None] * len(results)
    rows = []
    for chosen, value, low, high in zip(combinations, results, lows, highs, strict=True):
        texts = [str(text).strip("'") for text in chosen]
        rows.append(
            {
                "commit": stored["commit_hash"],
                "date": pd.to_datetime(stored["date"], unit="ms", utc=True),
                "machine": stored["params"].get("machine", path.parent.name),
                "environment": stored["env_name"],
                "benchmark": name,
                "parameters": ", ".join(texts),
                "value": np.nan if value is None else float(value),
                "low": np.nan if low is None else float(low),
                "high": np.nan if high is None else float(high),
                "version": entry.get("version", ""),
            }
        )
    return rows

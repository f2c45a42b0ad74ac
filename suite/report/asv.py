"""asv's results as a DataFrame: speed over time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.records.lines import RecordError


def asv_results(folder: str | Path) -> pd.DataFrame:
    """asv's results: a row per commit, machine, environment, benchmark and parameters.

    `value` is in asv's unit (seconds, bytes, or what a track_ benchmark gives), NaN where a benchmark
    failed or has no value; `low` and `high` are asv's 99 % interval where it has one. `folder` is asv's
    results_dir. Raises RecordError where it holds no results.
    """
    files = (path for path in sorted(Path(folder).glob("*/*.json")) if path.name != "machine.json")
    rows = [row for path in files for row in _read(path)]
    if not rows:
        raise RecordError(f"{folder}: no results of asv (its results_dir, .asv/results)")
    return pd.DataFrame(rows)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        of_file = {
            "commit": stored["commit_hash"],
            "date": pd.to_datetime(stored["date"], unit="ms", utc=True),
            "machine": stored["params"].get("machine", path.parent.name),
            "environment": stored["env_name"],
        }
        return [
            of_file | {"benchmark": name} | row
            for name, values in stored["results"].items()
            for row in _rows(dict(zip(stored["result_columns"], values, strict=False)))
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: not a result file of asv: {error}") from error


def _rows(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row per combination of a benchmark's parameters."""
    combinations = list(itertools.product(*(entry.get("params") or [])))
    figures = (entry["result"], entry.get("stats_ci_99_a"), entry.get("stats_ci_99_b"))
    columns = [values or [None] * len(combinations) for values in figures]
    for parameters, *numbers in zip(combinations, *columns, strict=True):
        value, low, high = (np.nan if number is None else float(number) for number in numbers)
        yield {
            "parameters": ", ".join(str(text).strip("'") for text in parameters),
            "value": value,
            "low": low,
            "high": high,
            "version": entry.get("version", ""),
        }

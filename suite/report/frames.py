"""Result files as pandas DataFrames, from which every table is made.

`cells` has a row for every judged cell. Its columns are the fields of `suite.records.cells.CellRecord`,
name ("backend:implementation"), label, and of the run its source, started, digest and versions:

text            case, check, backend, implementation, mode, device, dtype, status, kind, message, grade,
                observed, group, numerics, operator, question, kernels, native, inherited, name, label,
                source, started, digest, versions; "" for unknown
float64         error_ratio, rms, max_abs_error, seconds; NaN where nothing was measured, infinity for a
                measured error ratio of NaN, which is beyond every bound
int64           seed; uint64 if one is beyond
tuple of text   features
dict            ratios (float by operand), facts (text, number, flag or None by name); see `dict_columns`

The source is the result file. The label names the implementation in tables: it is the name, and if the
name occurs with several modes, devices or sources, these in brackets.

`runs` has a row for every field of the headers, `measurements` a row for every speed record, `facts_of` a
row for every fact that `explain` read, and `asv_results` a row for every value that asv stored.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.records.cells import KEY, CellRecord, Run
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.facts import FactsRun
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.machine import Origin
from attention_conformance.suite.records.speed import TIMED, SpeedRecord, SpeedRun

COMPARED = ("workload", "direction", "dtype", "device", "threads")
"""Measurements are compared only if these fields are equal."""


def cells(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """Returns a row for every cell of one run, or of several, with the columns that this module
    describes."""
    names = [f.name for f in fields(CellRecord)]
    records = [cell for run in _as_list(loaded) for cell in run.cells]
    columns: dict[str, list[Any]] = {name: [*map(attrgetter(name), records)] for name in names}
    columns["error_ratio"] = [*map(_no_nan, columns["error_ratio"])]
    columns["ratios"] = [
        {name: _no_nan(ratio) for name, ratio in ratios.items()} for ratios in columns["ratios"]
    ]
    for name, text_of in _RUN_COLUMNS.items():
        columns[name] = [text_of(run) for run in _as_list(loaded) for _ in run.cells]
    figures = ("error_ratio", "rms", "max_abs_error", "seconds")
    frame = pd.DataFrame(columns, dtype=None if records else object).astype(
        dict.fromkeys(figures, "float64")
    )
    frame["name"] = frame["backend"] + ":" + frame["implementation"]
    return frame.assign(label=_labels(frame))


_RUN_COLUMNS: dict[str, Callable[[Run], str]] = {
    "source": lambda run: run.source,
    "started": lambda run: run.header.started,
    "digest": lambda run: run.header.digest,
    "versions": lambda run: run.header.installed,
}
"""The columns of `cells` that are equal in all cells of a run."""


def provenance(headers: Iterable[Origin]) -> str:
    """Returns the versions, the machines and the newest date of runs, as one text."""
    headers = list(headers)
    versions = {name: text for header in headers for name, text in header.versions.items()}
    machines = {str(header.machine.get("cpu", "")) for header in headers} - {""}
    dates = sorted({header.started[:10] for header in headers} - {""})
    return "; ".join(
        filter(None, [", ".join(f"{n} {t}" for n, t in versions.items()), *machines, *dates[-1:]])
    )


def newest_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the cells of the newest run of each implementation, with labels without sources.

    Runs of one list of cells, such as shards, count as one run: the newest record of each cell is taken.
    """
    order = cells.sort_values("started", kind="stable")
    digest = order.groupby(["name", "mode", "device"])["digest"].transform("last")
    newest = order[order["digest"] == digest].drop_duplicates([*KEY], keep="last").sort_index()
    return newest.assign(label=_labels(newest.assign(source="")))


def repeated_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the newest record of each cell that has several records. The column `before` is the status
    in its oldest record."""
    order = cells[cells.duplicated([*KEY], keep=False)].sort_values("started", kind="stable")
    statuses = order.groupby([*KEY])["status"]
    return order.assign(before=statuses.transform("first")).drop_duplicates([*KEY], keep="last")


def newest_times(measurements: pd.DataFrame) -> pd.DataFrame:
    """Returns the newest record of each measurement, with labels without sources. Records are of the same
    measurement if case, implementation and the fields `COMPARED` are equal."""
    order = measurements.sort_values("started", kind="stable")
    identity = [*COMPARED, "case", "backend", "implementation"]
    newest = order.drop_duplicates(identity, keep="last").sort_index()
    return newest.assign(label=newest["backend"] + ":" + newest["implementation"])


def _no_nan(ratio: float | None) -> float | None:
    """Returns the ratio, with infinity in place of NaN."""
    return math.inf if ratio is not None and math.isnan(ratio) else ratio


def _labels(cells: pd.DataFrame) -> pd.Series:
    """Returns the label of each cell: the name, and in brackets the mode, device or source if the name
    occurs with several."""
    name = cells["name"]
    details = cells[["mode", "device"]].assign(source=_short_sources(cells["source"]))
    label = name
    for column in details:
        varies = details[column].groupby(name).transform("nunique") > 1
        label = label.where(~varies, label + " [" + details[column].astype(str) + "]")
    return label


def _short_sources(sources: pd.Series) -> pd.Series:
    """Returns the sources without folder and suffix; unchanged if two would become equal."""
    names = {
        source: "+".join(Path(part).stem for part in source.split("+"))
        for source in sources.unique()
    }
    return sources.map(names) if len({*names.values()}) == len(names) else sources


def dict_columns(entries: pd.Series) -> pd.DataFrame:
    """Returns a column of dicts (`ratios`, `facts`) as columns by name, in the order of occurrence.

    Dtypes are Int64 for integers, float64 for other numbers, else object. Missing values are NA, NaN or
    None.
    """
    columns = {}
    for name in dict.fromkeys(name for entry in entries for name in entry):
        values = [entry.get(name) for entry in entries]
        types = {type(value) for value in values if value is not None}
        dtype = "Int64" if types == {int} else "float64" if types == {float} else "object"
        columns[name] = pd.Series(values, entries.index, dtype=dtype)
    return pd.DataFrame(columns, index=entries.index)


def file_columns(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame of `cells` in plain columns, for files: one for every ratio and every fact, and
    features as one text."""
    ratios, facts = (dict_columns(cells[name]) for name in ("ratios", "facts"))
    texts = facts.select_dtypes("object")
    facts[[*texts]] = texts.map(lambda value: "" if value is None else str(value))
    names = [f.name for f in fields(CellRecord) if f.name not in ("ratios", "facts")]
    features = [" ".join(needed) for needed in cells["features"]]
    frame = cells[[*names, "source"]].assign(features=features)
    return frame.join([ratios.add_prefix("ratio_of_"), facts.add_prefix("fact_")])


def runs(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """Returns a row per header field, a column per run, all text."""
    columns = {run.source: _run_fields(run) for run in _as_list(loaded)}
    order = dict.fromkeys(name for column in columns.values() for name in column)
    frame = pd.DataFrame(columns, index=pd.Index(list(order), name="field"), dtype=object)
    return frame.fillna("")


def _run_fields(run: Run) -> dict[str, str]:
    """Returns the texts of a run's header, by field."""
    h = run.header
    extent = [f"shard {h.shard}"] if h.shard else []
    extent += ["partial: cells were left out by a filter"] if h.partial else []
    short = not (h.shard or h.partial) and len(run.cells) != h.cells
    if short or not run.complete:
        extent.append(f"unfinished: {len(run.cells)} of {h.cells} cells")
    return {
        "started": h.started,
        "extent": "; ".join(extent) or "whole",
        "cells": str(len(run.cells)),
        "suite": f"{h.suite_version} {h.commit}{' (modified)' if h.dirty else ''}".strip(),
        "python": h.python,
        **{str(name): str(value) for name, value in {**h.versions, **h.machine}.items()},
        "options": " ".join(f"{k}={v}" for k, v in h.options.items() if v or v == 0),
    }


def diagnoses(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """Returns a row for every diagnosis: the fields of `suite.records.diagnoses.DiagnosisRecord`, source
    and label ("backend:name")."""
    rows = [vars(one) | {"source": run.source} for run in _as_list(loaded) for one in run.diagnoses]
    frame = pd.DataFrame(rows, columns=[*(f.name for f in fields(DiagnosisRecord)), "source"])
    return frame.assign(label=frame["backend"] + ":" + frame["implementation"])


def measurements(runs: Iterable[SpeedRun], baseline: str | None = None) -> pd.DataFrame:
    """Returns a row for every speed record: the fields of `suite.records.speed.SpeedRecord`, and

    seconds, low, high            float64: the median of the samples and their quartiles; NaN: no time
    share_of_gemm, share_of_copy  float64: parts of the machine's best matrix product and copy
    tokens_per_second             float64: tokens of a step of decoding over its median; NaN: no such step
    speedup                       float64: seconds of the baseline over seconds
    label, source, started        text: "backend:name", with the file if files hold the same measurement;
                                  the file; when its run started

    `baseline` is a label; by default the baseline of each workload is the first timed implementation.
    Raises RecordError if there is no record, or the baseline was never timed.
    """
    rows = [
        _measurement_row(record) | {"source": run.source, "started": run.header.started}
        for run in runs
        for record in run.records
    ]
    if not rows:
        raise RecordError("the speed records hold no measurement")
    frame = pd.DataFrame(rows)
    figures = ("seconds", "share_of_gemm", "share_of_copy", "tokens_per_second", "error_ratio",
               "peak_bytes", "first_call")  # fmt: skip
    frame = frame.astype(dict.fromkeys(figures, "float64"))
    repeated = frame.duplicated([*COMPARED, "case", "label"], keep=False)
    files = frame.loc[repeated, "source"].map(lambda source: Path(source).stem)
    frame.loc[repeated, "label"] += " [" + files + "]"
    timed = frame[frame["status"].isin(TIMED)]
    labels = list(dict.fromkeys(timed["label"]))
    if baseline and baseline not in labels:
        raise RecordError(f"unknown baseline {baseline!r}; timed: {', '.join(labels)}")
    baseline_rows = timed[timed["label"] == baseline] if baseline else timed
    baseline_rows = baseline_rows.sort_values(
        "label", key=lambda names: names.map(labels.index), kind="stable"
    )
    baseline_seconds = baseline_rows.groupby([*COMPARED])["seconds"].first()
    seconds = baseline_seconds.reindex(pd.MultiIndex.from_frame(frame[[*COMPARED]])).to_numpy()
    return frame.assign(speedup=seconds / frame["seconds"])


def facts_of(runs: Iterable[FactsRun]) -> pd.DataFrame:
    """Returns a row for every fact of every implementation, all text: backend, implementation, device,
    fact, answer, started and label ("backend:name"), of the newest reading of the implementation.

    Raises RecordError if there is no record.
    """
    newest = {
        record.key: (run.header.started, record)
        for run in sorted(runs, key=lambda run: run.header.started)
        for record in run.records
    }
    if not newest:
        raise RecordError("the records of facts hold no implementation")
    rows = [
        (*key, fact, answer, started, f"{record.backend}:{record.implementation}")
        for key, (started, record) in newest.items()
        for fact, answer in record.facts.items()
    ]
    columns = ["backend", "implementation", "device", "fact", "answer", "started", "label"]
    return pd.DataFrame(rows, columns=columns)


def _measurement_row(record: SpeedRecord) -> dict[str, Any]:
    low, high = np.quantile(record.samples, (0.25, 0.75)) if record.samples else (np.nan, np.nan)
    derived = ("seconds", "share_of_gemm", "share_of_copy", "tokens_per_second")
    return {
        **asdict(record), **{name: getattr(record, name) for name in derived},
        "label": f"{record.backend}:{record.implementation}", "low": float(low), "high": float(high),
    }  # fmt: skip


def asv_results(folder: str | Path) -> pd.DataFrame:
    """Returns asv's results: a row per commit, machine, environment, benchmark and parameters.

    `value` is in asv's unit (seconds, bytes, or that of a track_ benchmark), NaN if a benchmark failed or
    has no value; `low` and `high` are asv's 99 % interval if there is one. `folder` is asv's results_dir.
    Raises RecordError if the folder holds no results.
    """
    files = (path for path in sorted(Path(folder).glob("*/*.json")) if path.name != "machine.json")
    rows = [row for path in files for row in _asv_file(path)]
    if not rows:
        raise RecordError(
            f"{folder}: expected result files, a sweep, or asv's results_dir (.asv/results), got none"
        )
    return pd.DataFrame(rows)


def _asv_file(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a result file of asv. Raises RecordError."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        file_fields = {
            "commit": stored["commit_hash"],
            "date": pd.to_datetime(stored["date"], unit="ms", utc=True),
            "machine": stored["params"].get("machine", path.parent.name),
            "environment": stored["env_name"],
        }
        return [
            file_fields | {"benchmark": name} | row
            for name, values in stored["results"].items()
            for row in _asv_rows(dict(zip(stored["result_columns"], values, strict=False)))
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: not a result file of asv: {error}") from error


def _asv_rows(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row per combination of a benchmark's parameters. `entry`: the fields of the benchmark in
    asv's file, by asv's names."""
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


def _as_list(loaded: Run | Sequence[Run]) -> list[Run]:
    return [loaded] if isinstance(loaded, Run) else list(loaded)

"""Frames: runs as pandas DataFrames, and the labels of implementations.

`cells` makes one frame of all runs, a row per cell; every table is a function of that frame. An
implementation is labelled "backend:name", with its mode, device or source added in brackets where the
frame holds the same name in more than one of them; no cell counts under two labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from suite.records.cells import CellRecord, Run

FIGURES = ("error_ratio", "rms", "max_abs_error", "seconds")


def cells(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """One row per cell with every field of `CellRecord` and the run's `source`.

    Figures are float64, NaN where nothing was measured. A measured error ratio of NaN is beyond every
    bound and becomes infinite. Entries of `ratios` and `facts` are dicts, those of `features` tuples.
    """
    every = [(cell, run.source) for run in listed(loaded) for cell in run.cells]
    columns = {f.name: [getattr(cell, f.name) for cell, _ in every] for f in fields(CellRecord)}
    columns["error_ratio"] = [
        math.inf if ratio is not None and math.isnan(ratio) else ratio
        for ratio in columns["error_ratio"]
    ]
    frame = pd.DataFrame(columns | {"source": [source for _, source in every]})
    return frame.astype(dict.fromkeys(FIGURES, "float64"))


def recorded(cells: pd.DataFrame) -> pd.DataFrame:
    """The frame of `cells` for files: a column for every ratio and every fact, features as one text."""
    ratios = by_operand(cells).add_prefix("ratio_of_")
    facts = by_fact(cells).add_prefix("fact_")
    for name in facts.columns.drop(facts.select_dtypes("Int64").columns):
        facts[name] = ["" if value is None else str(value) for value in facts[name]]
    features = [" ".join(needed) for needed in cells["features"]]
    return cells.drop(columns=["ratios", "facts"]).assign(features=features).join([ratios, facts])


def by_operand(cells: pd.DataFrame) -> pd.DataFrame:
    """The error ratios, a column per operand or parameter in the order they occur in; NaN where none."""
    names = list(dict.fromkeys(name for ratios in cells["ratios"] for name in ratios))
    columns = {name: [r.get(name, np.nan) for r in cells["ratios"]] for name in names}
    return pd.DataFrame(columns, index=cells.index, dtype="float64")


def by_fact(cells: pd.DataFrame) -> pd.DataFrame:
    """What cases ask, a column per fact in the order they occur in; None where a case has no such fact.

    Columns of whole numbers are Int64; all others hold objects.
    """
    names = list(dict.fromkeys(name for facts in cells["facts"] for name in facts))
    columns = {}
    for name in names:
        values = [facts.get(name) for facts in cells["facts"]]
        whole = {type(value) for value in values} - {type(None)} == {int}
        columns[name] = pd.Series(values, cells.index, dtype="Int64" if whole else "object")
    return pd.DataFrame(columns, index=cells.index)


def runs(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """What the runs were: a row per header field, a column per run, all text."""
    columns = {}
    for run in listed(loaded):
        h = run.header
        extent = [f"shard {h.shard}"] if h.shard else []
        extent += ["partial: cells were left out by a filter"] if h.partial else []
        short = not (h.shard or h.partial) and len(run.cells) != h.cells
        if short or not run.complete:
            extent.append(f"unfinished: {len(run.cells)} of {h.cells} cells")
        columns[run.source] = {
            "started": h.started,
            "extent": "; ".join(extent) or "whole",
            "cells": str(len(run.cells)),
            "suite": f"{h.suite_version} {h.commit}{' (modified)' if h.dirty else ''}".strip(),
            "python": h.python,
            **{str(k): str(v) for k, v in h.versions.items()},
            **{str(k): str(v) for k, v in h.machine.items()},
            "options": " ".join(f"{k}={v}" for k, v in h.options.items() if v or v == 0),
        }
    order = dict.fromkeys(name for column in columns.values() for name in column)
    frame = pd.DataFrame(columns, index=pd.Index(list(order), name="field"), dtype=object)
    return frame.fillna("")


def labels(cells: pd.DataFrame) -> pd.Series:
    """The label of the implementation of every cell (see the module's docstring)."""
    name = cells["backend"].astype(str) + ":" + cells["implementation"].astype(str)
    shown = cells[["mode", "device"]].assign(source=cells["source"].map(_short(cells["source"])))
    label = name
    for column in shown:
        varies = shown[column].groupby(name).transform("nunique") > 1
        label = label.where(~varies, label + " [" + shown[column].astype(str) + "]")
    return label.rename("implementation").astype(object)


def listed(loaded: Run | Sequence[Run]) -> list[Run]:
    """One run or several, as a list."""
    return [loaded] if isinstance(loaded, Run) else list(loaded)


def order(names: pd.Series) -> pd.Index:
    """The index of a table of implementations, in the order they occur in."""
    return pd.Index(names.drop_duplicates(), name="implementation", dtype=object)


def groups(frame: pd.DataFrame, by: list[str]) -> Iterable[tuple[tuple[str, str], pd.DataFrame]]:
    """The blocks of rows that agree in two columns, with what they agree in."""
    return cast(Iterable[tuple[tuple[str, str], pd.DataFrame]], frame.groupby(by, sort=False))


def _short(sources: pd.Series) -> dict[str, str]:
    """Sources without folder and suffix, or as they are where that would make two of them alike."""
    full = list(sources.drop_duplicates())
    stems = {s: "+".join(Path(part).stem for part in s.split("+")) for s in full}
    return stems if len(set(stems.values())) == len(full) else {s: s for s in full}

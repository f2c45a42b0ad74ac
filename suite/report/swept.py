"""Folders of sweeps as pandas DataFrames.

swept_cells  a row for every cell: `CELLS` of `suite.report.frames.cells`, and title, release and seed of
             its run
swept_runs   a row for every run: title, release, seed, whole (whether every cell is recorded), cells,
             owed (expected cells), core_hours, versions
searches     a row for every search: `SEARCHED`, seed, died (whether the process died), examples,
             core_hours, statuses (a dict of counts)
found        a row for every found failure: the fields of `FoundRecord`, and seed
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader
from attention_conformance.suite.records.sweeps import Shards, load_searches, runs_below, seed_of
from attention_conformance.suite.report import frames

CELLS = (
    "check", "case", "backend", "label", "dtype", "numerics", "status", "kind", "message",
    "error_ratio", "seconds",
)  # fmt: skip

RUNS = ("title", "release", "seed", "whole", "cells", "owed", "core_hours", "versions")

SEARCHED = ("backends", "implementations", "dtypes", "mode", "gradients", "versions")
"""The columns that distinguish searches, without the seed."""

FOUND = (*(f.name for f in fields(FoundRecord)), "seed")


def read_sweeps(folders: Iterable[Path]) -> dict[str, pd.DataFrame]:
    """Returns the frames of folders of sweeps, by name.

    Raises RecordError if nothing is recorded, a file is invalid, or a run is given twice.
    """
    run_rows: dict[object, tuple[object, ...]] = {}
    cells, searches, failures = [], [], []
    for folder in folders:
        for run in runs_below(folder):
            if run.key in run_rows:
                raise RecordError(
                    f"the run {' '.join(map(str, run.key))} is given twice, or its shards are of "
                    "different versions; remove one"
                )
            run_rows[run.key], run_cells = _run_rows(run)
            cells.append(run_cells)
        for search in load_searches(folder):
            seed = seed_of(search.header)
            searches.append(_search_row(search.header) | {"seed": seed})
            failures += [asdict(record) | {"seed": seed} for record in search.records]
    if not (cells or searches):
        raise RecordError("the folders hold no records; sweep first")
    columns = [*SEARCHED, "seed", "died", "examples", "core_hours", "statuses"]
    empty = frames.cells([])[[*CELLS]].assign(title="", release="", seed=0)
    return {
        "swept_cells": pd.concat(cells, ignore_index=True) if cells else empty,
        "swept_runs": pd.DataFrame([*run_rows.values()], columns=[*RUNS]),
        "searches": pd.DataFrame(searches, columns=columns),
        "found": pd.DataFrame(failures, columns=[*FOUND]),
    }


def _run_rows(run: Shards) -> tuple[tuple[object, ...], pd.DataFrame]:
    """Returns the row of a run, and the rows of its cells."""
    loaded = run.load()
    frame = frames.cells(loaded)
    cells = frame[[*CELLS]].copy()
    for name in cells.select_dtypes(exclude="number"):
        # Runs of a sweep share many texts: interning saves memory.
        cells[name] = pd.Series([*map(sys.intern, cells[name])], cells.index, dtype=object)
    title, release, seed = run.key
    is_whole = loaded.complete and len(cells) == run.header.cells
    hours = cells["seconds"].sum() / 3600
    row = (*run.key, is_whole, len(cells), run.header.cells, hours, run.header.installed)
    return row, cells.assign(title=title, release=release, seed=seed)


def _search_row(header: SearchHeader) -> dict[str, object]:
    """Returns the row of a search; "" for unrestricted options."""
    options = header.options
    return {
        "backends": " ".join(options.get("backend", ())),
        "implementations": " ".join(options.get("implementation", ())),
        "dtypes": " ".join(options.get("dtype", ())),
        "mode": options.get("mode", ""),
        "gradients": "yes" if options.get("gradients", True) else "no",
        "versions": header.installed,
        "died": not header.statuses,
        "examples": header.examples,
        "core_hours": header.seconds / 3600,
        "statuses": header.statuses,
    }

"""Kinds of results: what a path holds, which frames are read of it, and which tables are made of them.

The one place that knows every table by name; the commands, their help, captions and errors ask here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.records import cells
from suite.records import speed as times
from suite.records.cells import IncompleteShards, Run, load, merge
from suite.records.lines import is_of
from suite.records.sweeps import is_sweep
from suite.report import conformance, semantics, speed, sweeps
from suite.report.table import Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Request:
    """How results are read: unfinished runs, too; for speed the baseline that others are held against."""

    partial: bool = False
    baseline: str = ""


Frames = Mapping[str, Any]
"""What tables are made of, by the names that they use (`Table.over`)."""


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of results.

    `accepts` says whether a path holds such results, `read` reads several paths, and raises RecordError
    where one cannot be used. `tables` are its tables by name, in their order.
    """

    name: str
    title: str
    accepts: Callable[[Path], bool]
    read: Callable[[list[Path], Request], Frames]
    tables: Mapping[str, Table]

    def of(self, frames: Frames, names: Collection[str] | None = None) -> dict[str, pd.DataFrame]:
        """The tables of these names in their order, made of what was read; by default all but the rare
        ones."""
        tables = self.tables.values()
        chosen = [t for t in tables if (not t.rare if names is None else t.name in names)]
        return {table.name: table.of(frames[table.over]) for table in chosen}


def _named(*tables: Table) -> dict[str, Table]:
    return {table.name: table for table in tables}


def load_runs(paths: list[Path], partial: bool = False) -> list[Run]:
    """The runs of these files, the shards of one run merged into one.

    Shards belong together where their case lists, commits and versions are the same. Raises
    RecordError where a file cannot be used, or shards are missing; with `partial`, files without a
    footer and incomplete shards stand for themselves.
    """
    groups: dict[str, list[Run]] = {}
    for number, path in enumerate(paths):
        run = load(path, partial)
        h = run.header
        identity = json.dumps([h.digest, h.commit, h.dirty, h.versions, h.python], sort_keys=True)
        groups.setdefault(identity if h.shard else f"whole {number}", []).append(run)
    runs: list[Run] = []
    for group in groups.values():
        try:
            runs += [merge(group)] if group[0].header.shard else group
        except IncompleteShards:
            if not partial:
                raise
            runs += group
    return runs


def frames_of(runs: Run | list[Run]) -> Frames:
    """What the tables of judged cells are made of."""
    from suite.report import frames

    return {"cells": frames.cells(runs), "runs": frames.runs(runs)}


def _conformance(paths: list[Path], request: Request) -> Frames:
    return frames_of(load_runs(paths, request.partial))


CONFORMANCE = Kind(
    name="records of conformance",
    title="Attention conformance",
    accepts=partial(is_of, file_schema=cells.FILE_SCHEMA),
    read=_conformance,
    tables=_named(
        conformance.RUNS, conformance.OF_STATUSES, conformance.OF_UNSUPPORTED, conformance.CONFORMANCE,
        conformance.ACCURACY, conformance.OF_GRADIENTS, conformance.KERNELS,
        semantics.ELECTIONS, semantics.INVARIANCE, semantics.LAYERS,
        conformance.EXPLAINED, conformance.ONLY_HERE, conformance.EVERYWHERE, conformance.FAILURES,
        conformance.SLOWEST, conformance.CELLS,
    ),
)  # fmt: skip


def _speed(paths: list[Path], request: Request) -> Frames:
    from suite.report.frames import measurements

    runs = [times.load(path, request.partial) for path in paths]
    return {"measurements": measurements(runs, request.baseline)}


SPEED = Kind(
    name="records of speed",
    title="Attention speed",
    accepts=partial(is_of, file_schema=times.FILE_SCHEMA),
    read=_speed,
    tables=_named(
        speed.SPEED, speed.SPEEDUP, speed.EXACTNESS, speed.COST_LAW, speed.REFUSED, speed.SAMPLES
    ),
)


def _asv(paths: list[Path], request: Request) -> Frames:
    import pandas as pd

    from suite.report.frames import asv_results

    return {"asv": pd.concat([asv_results(path) for path in paths], ignore_index=True)}


ASV = Kind(
    name="a folder of asv's results",
    title="Attention speed",
    accepts=Path.is_dir,
    read=_asv,
    tables=_named(speed.ASV_HISTORY, speed.ASV),
)


def _sweeps(paths: list[Path], request: Request) -> Frames:
    from suite.report.swept import read

    return read(paths)


SWEEPS = Kind(
    name="a folder of a sweep",
    title="Attention conformance: sweeps",
    accepts=is_sweep,
    read=_sweeps,
    tables=_named(
        sweeps.SWEPT, sweeps.OF_RELEASES, sweeps.OF_SEEDS, sweeps.RATES, sweeps.FALSE_ALARMS,
        sweeps.TIGHTNESS, sweeps.TIGHTNESS_OF_CHECKS, sweeps.FAILING, sweeps.SOME_SEEDS,
        sweeps.SEARCHES, sweeps.FOUND,
    ),
)  # fmt: skip

KINDS = (CONFORMANCE, SPEED, SWEEPS, ASV)
"""Every kind, in the order of a report."""

TABLES = {name: table for kind in KINDS for name, table in kind.tables.items()}
"""Every table of results."""

DIFFERENCES = {
    "summary": "Cells that changed between the two runs.",
    "changes": "Every changed cell, new failures first.",
    "alone": "Runs that only one of the sweeps has; they are not compared.",
    "headers": "What else differs: versions, options, machine, commit.",
}
"""The tables of a comparison (`suite.report.diff`), with the sentences above them."""

CAPTIONS = {name: table.text for name, table in TABLES.items()} | DIFFERENCES
"""The sentences above every table."""


def kind_of(path: Path) -> Kind:
    """What a path holds; conformance, whose loader says what is wrong, where it is nothing known."""
    return next((kind for kind in KINDS if kind.accepts(path)), CONFORMANCE)

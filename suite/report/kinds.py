"""Kinds of results, with their frames and tables. This module has the names of all tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.suite.records import cells, facts
from attention_conformance.suite.records import speed as times
from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.sweeps import is_sweep, shards
from attention_conformance.suite.report import conformance, semantics, speed, sweeps
from attention_conformance.suite.report.table import Table

if TYPE_CHECKING:
    import pandas as pd


Frames = Mapping[str, Any]
"""The inputs of tables by name (`Table.over`)."""


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of results.

    - `accepts`: True for a path with such results
    - `load(paths, partial)`: returns what the paths hold, with `partial` also unfinished runs. Raises
      RecordError for an invalid path.
    - `frames(loaded, baseline)`: returns the frames of what `load` returned. `baseline` is that of
      speedups. Raises RecordError.
    - `tables`: the tables by name, in order
    """

    name: str
    title: str
    accepts: Callable[[Path], bool]
    load: Callable[[list[Path], bool], Any]
    frames: Callable[[Any, str], Frames]
    tables: Mapping[str, Table]

    def make(self, frames: Frames, names: Collection[str] | None = None) -> dict[str, pd.DataFrame]:
        """Makes tables from the frames. Returns them by name, in order. `names` selects tables; by
        default all except the rare ones are made."""
        tables = self.tables.values()
        chosen = [t for t in tables if (not t.rare if names is None else t.name in names)]
        return {table.name: table.make(frames[table.over]) for table in chosen}


def _by_name(*tables: Table) -> dict[str, Table]:
    return {table.name: table for table in tables}


def load_runs(paths: Iterable[Path], partial: bool = False) -> list[Run]:
    """Returns the runs of these files. Shards of one run are merged (`suite.records.sweeps.shards`).

    With `partial`, files without a footer are read, and shards may be missing. Raises RecordError if a
    file is invalid, or if shards are missing without `partial`."""
    return [run.load(partial, partial) for run in shards(paths)]


def conformance_frames(runs: Run | list[Run]) -> Frames:
    """Returns the frames for tables of judged cells by name: "cells", "runs" and "diagnoses". "headers"
    are the headers of the runs by source."""
    from attention_conformance.suite.report import frames

    headers = {run.source: run.header for run in ([runs] if isinstance(runs, Run) else runs)}
    return {
        "cells": frames.cells(runs),
        "runs": frames.runs(runs),
        "diagnoses": frames.diagnoses(runs),
        "headers": headers,
    }


CONFORMANCE = Kind(
    name="records of conformance",
    title="Attention conformance",
    accepts=cells.FILE_SCHEMA.accepts,
    load=load_runs,
    frames=lambda runs, baseline: conformance_frames(runs),
    tables=_by_name(
        conformance.RUNS, conformance.DIAGNOSES, conformance.OF_STATUSES, conformance.OF_OPERATORS,
        conformance.OF_UNSUPPORTED, conformance.CONFORMANCE, semantics.TOGETHER,
        conformance.ACCURACY, conformance.LARGEST, conformance.DISTRIBUTION,
        conformance.OF_GRADIENTS, conformance.KERNELS,
        semantics.ELECTIONS, semantics.INVARIANCE,
        conformance.EXPLAINED, conformance.FAILURES,
        conformance.HISTORY, conformance.CHANGED, conformance.CELLS,
    ),
)  # fmt: skip


def _speed_frames(runs: list[times.SpeedRun], baseline: str) -> Frames:
    from attention_conformance.suite.report.frames import measurements

    return {
        "measurements": measurements(runs, baseline),
        "timed": {run.source: run.header for run in runs},
    }


SPEED = Kind(
    name="records of speed",
    title="Attention speed",
    accepts=times.FILE_SCHEMA.accepts,
    load=lambda paths, partial: [times.load(path, partial) for path in paths],
    frames=_speed_frames,
    tables=_by_name(
        speed.SPEED, speed.SPEEDUP, speed.EXACTNESS, speed.COST_LAW, speed.REFUSED, speed.SAMPLES
    ),
)


def _facts_frames(runs: list[facts.FactsRun], baseline: str) -> Frames:
    from attention_conformance.suite.report.frames import facts_of

    return {"facts": facts_of(runs)}


FACTS = Kind(
    name="records of facts",
    title="What implementations compute",
    accepts=facts.FILE_SCHEMA.accepts,
    load=lambda paths, partial: [facts.load(path, partial) for path in paths],
    frames=_facts_frames,
    tables=_by_name(semantics.IDENTIFICATION),
)


def _asv_frames(paths: list[Path], baseline: str) -> Frames:
    import pandas as pd

    from attention_conformance.suite.report.frames import asv_results

    return {"asv": pd.concat([asv_results(path) for path in paths], ignore_index=True)}


ASV = Kind(
    name="a folder of asv's results",
    title="Attention speed",
    accepts=Path.is_dir,
    load=lambda paths, partial: paths,
    frames=_asv_frames,
    tables=_by_name(speed.ASV_HISTORY, speed.ASV),
)


def _sweep_frames(paths: list[Path], baseline: str) -> Frames:
    from attention_conformance.suite.report.swept import read_sweeps

    return read_sweeps(paths)


SWEEPS = Kind(
    name="a folder of a sweep",
    title="Attention conformance: sweeps",
    accepts=is_sweep,
    load=lambda paths, partial: paths,
    frames=_sweep_frames,
    tables=_by_name(
        sweeps.SWEPT, sweeps.OF_RELEASES, sweeps.OF_SEEDS, sweeps.RATES,
        sweeps.TIGHTNESS, sweeps.TIGHTNESS_OF_CHECKS, sweeps.FAILING, sweeps.SOME_SEEDS,
        sweeps.SEARCHES, sweeps.FOUND,
    ),
)  # fmt: skip

KINDS = (CONFORMANCE, SPEED, FACTS, SWEEPS, ASV)
"""Every kind, in the order of a report."""

TABLES = {name: table for kind in KINDS for name, table in kind.tables.items()}
"""Every table of results by name."""

DIFFERENCES = {
    "summary": "Cells that changed between the two runs.",
    "changes": "Every changed cell, new failures first.",
    "alone": "Runs of only one of the sweeps, which are not compared.",
    "headers": "Other differences: versions, options, machine, commit.",
}
"""The tables of a comparison (`suite.report.diff`), with the sentences above them."""

CAPTIONS = {name: table.text for name, table in TABLES.items()} | DIFFERENCES
"""The sentences above every table."""


def kind_of(path: Path) -> Kind:
    """Returns the kind of a path's results. An unknown path counts as conformance, whose loader explains
    the error."""
    return next((kind for kind in KINDS if kind.accepts(path)), CONFORMANCE)

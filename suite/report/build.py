"""Tables made of result files: what reads each kind of results, and what makes its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suite.records import speed
from suite.records.cells import IncompleteShards, Run, load, merge
from suite.records.lines import RecordError
from suite.report.kinds import ASV, CONFORMANCE, SPEED, SWEEPS, Kind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Request:
    """What the command line says of tables: also read unfinished runs; the baseline of the table
    `speedup`; the new folder for plots of speed."""

    partial: bool = False
    baseline: str = ""
    plots: Path | None = None


def tables_of(
    kind: Kind, paths: list[Path], names: list[str], request: Request
) -> dict[str, pd.DataFrame]:
    """The tables called `names` of results of a kind. Raises RecordError where a file cannot be used."""
    return _TABLES[kind](paths, names, request)


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


def _conformance(paths: list[Path], names: list[str], request: Request) -> dict[str, pd.DataFrame]:
    from suite.report.tables import tables_of_cells

    return tables_of_cells(load_runs(paths, request.partial), names)


def _speed(paths: list[Path], names: list[str], request: Request) -> dict[str, pd.DataFrame]:
    from suite.report.plots import NoPlots, plots
    from suite.report.speed import measurements, tables_of_speed

    runs = [speed.load(path, request.partial) for path in paths]
    try:
        tables = tables_of_speed(runs, names, request.baseline)
        if request.plots:
            plots(measurements(runs), request.plots)
    except (KeyError, NoPlots) as error:
        raise RecordError(str(error.args[0])) from error
    return tables


def _sweeps(paths: list[Path], names: list[str], request: Request) -> dict[str, pd.DataFrame]:
    from suite.report.sweeps import tables_of_sweeps

    return tables_of_sweeps(paths, names)


def _asv(paths: list[Path], names: list[str], request: Request) -> dict[str, pd.DataFrame]:
    from suite.report.asv import tables_of_asv

    return tables_of_asv(paths, names)


_TABLES: dict[Kind, Callable[[list[Path], list[str], Request], dict[str, pd.DataFrame]]] = {
    CONFORMANCE: _conformance,
    SPEED: _speed,
    SWEEPS: _sweeps,
    ASV: _asv,
}

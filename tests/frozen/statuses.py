"""How cells were judged: statuses.parquet holds the status of every cell of four backends at standard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pandas as pd

from attention_conformance.suite.records.cells import Run, load
from attention_conformance.suite.records.findings import manifests
from tests.frozen.part import FOLDER, difference

STATUSES = FOLDER / "statuses.parquet"

ASKED = {"level": "standard", "mode": "eager", "device": "cpu", "seed": 0}
"""The options of the runs whose statuses are frozen."""

CELL = ["backend", "implementation", "check", "case"]
"""The columns of statuses.parquet beside the status."""


def status_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """The columns `CELL` and "status", a row for every cell."""
    columns = [*CELL, "status"]
    rows = [[getattr(cell, name) for name in columns] for run in runs for cell in run.cells]
    return pd.DataFrame(rows, columns=columns)


def by_cell(frame: pd.DataFrame) -> dict[str, str]:
    """The statuses by "BACKEND IMPLEMENTATION CHECK CASE"."""
    return {" ".join(cell): status for *cell, status in frame.itertuples(index=False)}


def compare_statuses(runs: Sequence[Run]) -> list[str]:
    """What differs from the frozen statuses of the backends that were judged.

    Of a partial run only the cells that it judged are compared.
    """
    frame, now = pd.read_parquet(STATUSES), by_cell(status_frame(runs))
    before = by_cell(
        frame[frame["backend"].isin({cell.backend for run in runs for cell in run.cells})]
    )
    if any(run.header.partial or run.header.shard for run in runs):
        before = {key: status for key, status in before.items() if key in now}
    return difference(before, now, settled(runs))


def settled(runs: Sequence[Run]) -> Callable[[str, str, str], bool]:
    """The comparison of two statuses of a cell.

    A cell may pass on one CPU and be `known` on another if an entry of its backend's manifest says so:
    an entry with a condition `cpu`, or with `sometimes`, that holds for the run's versions.
    """
    versions = {name: text for run in runs for name, text in run.header.versions.items()}
    entries = {
        backend: [
            entry
            for entry in own
            if (entry.cpu or entry.sometimes)
            and msgspec.structs.replace(entry, cpu=()).holds_for(versions, ASKED["device"])
        ]
        for backend, (_, own) in manifests().items()
    }

    def same(key: str, before: str, now: str) -> bool:
        backend, *cell = key.split()
        return before == now or (
            {before, now} == {"pass", "known"}
            and any(entry.matches(*cell) for entry in entries.get(backend, ()))
        )

    return same


def loaded(paths: Sequence[str]) -> list[Run]:
    """The runs in result files. Exits unless every run has the options `ASKED`."""
    if not paths:
        sys.exit("statuses: name the files that `pytest suite --backend=NAME --results=FILE` wrote")
    runs = [load(path) for path in paths]
    for run in runs:
        options = {name: run.header.options.get(name) for name in ASKED}
        if options != ASKED:
            sys.exit(f"{run.source}: expected a run with {ASKED}, got {options}; run it with these")
    return runs


def write_statuses(runs: Sequence[Run]) -> None:
    """Write the statuses of the backends that were judged; those of other backends stay. The last run
    of a cell counts."""
    new = status_frame(runs).drop_duplicates(CELL, keep="last")
    if STATUSES.exists():
        old = pd.read_parquet(STATUSES)
        new = pd.concat([old[~old["backend"].isin(new["backend"])].astype(str), new])
    new = new.sort_values(CELL, ignore_index=True).astype("category")
    new.to_parquet(STATUSES, compression="zstd", index=False)


def main(deed: str, paths: Sequence[str]) -> int:
    """Compare the statuses of these files, or write them. Returns 1 if something differs."""
    runs = loaded(paths)
    lines = write_statuses(runs) if deed == "write" else compare_statuses(runs)
    if deed == "compare":
        print("\n".join(lines or ()) or "nothing differs")
    return int(bool(lines))

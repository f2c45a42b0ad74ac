"""Folders of sweeps made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_conformance.suite.records.cells import CellRecord, writer
from attention_conformance.suite.records.sweeps import runs
from tests.records_by_hand import header


def swept(
    folder: Path,
    *cells: CellRecord,
    seed: int = 0,
    release: str = "",
    owed: int | None = None,
    parts: int = 1,
    **options: Any,
) -> Path:
    """The folder of a sweep with one more run, of these cells, in so many shards; `owed` is how many
    cells the run has, where they are not all."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    of_run = replace(of_run, cells=of_run.cells if owed is None else owed)
    for part in range(1, parts + 1):
        shard = f"{part}/{parts}" if parts > 1 else ""
        name = f"run{seed}{release}{options}{shard}".replace(" ", "").replace("/", "of")
        file = writer(folder / f"{name}.jsonl", replace(of_run, shard=shard))
        for cell in cells[part - 1 :: parts]:
            file.write(cell)
        file.close()
    return folder


def recorded(folder: Path) -> list[CellRecord]:
    """All records below a folder, without the time they took."""
    cells = [c for run in runs(folder) for c in run.load().cells]
    return sorted((replace(c, seconds=0.0) for c in cells), key=lambda c: c.key)

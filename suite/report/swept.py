"""Sweeps as they are read: run by run, so that memory does not grow with their number.

What is kept of a run are counts, error ratios (eight bytes each), and one line for every cell that failed
with some seed. A run of ten thousand cells takes some hundredths of a second.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from suite.records import searches
from suite.records.lines import RecordError
from suite.records.searches import Cause, Searched, SearchFinding
from suite.records.sweeps import SweptRun, runs
from suite.spec.vocabulary import BROKEN

_READ = (
    "check", "case", "backend", "implementation", "mode", "dtype", "status", "kind", "message",
    "error_ratio", "seconds", "numerics",
)  # fmt: skip

Where = tuple[str, str, int]
"""A run: its title, its release, its seed."""


@dataclass
class Failing:
    """What is kept of a cell that failed with some `seeds`; with `known` more of them a failure is
    expected."""

    seeds: list[int] = field(default_factory=list)
    known: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    kind: str = ""
    message: str = ""
    ratio: float = -math.inf


class Swept:
    """Sweeps, read once. Raises RecordError where nothing is recorded, or a file cannot be used."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.runs: list[tuple[Where, SweptRun, float]] = []
        self.counts: Counter[tuple[Where, str, str]] = Counter()
        """Cells by run, implementation and status."""
        self.backends: dict[str, str] = {}
        """The backend of each implementation."""
        self.ratios: dict[tuple[str, str, str, str, str], list[np.ndarray]] = defaultdict(list)
        """Error ratios by release, implementation, check, dtype and class."""
        self.failing: dict[tuple[str, str, str, str], Failing] = defaultdict(Failing)
        """By release, check, case and implementation; also cells that are known to fail, and do."""
        self.searched: list[Searched] = []
        self.findings: dict[Cause, SearchFinding] = {}
        for folder in folders:
            for run in runs(folder):
                self._take(run)
            self.searched += searches.searched(folder)
            self.findings |= {finding.cause: finding for finding in searches.findings(folder)}
        if not (self.runs or self.searched):
            raise RecordError("nothing is recorded in what was given; sweep first")
        twice = [w for w, n in Counter(w for w, _, _ in self.runs).items() if n > 1]
        if twice:
            raise RecordError(
                f"the run {' '.join(map(str, twice[0]))} is given twice; name it once"
            )

    def _take(self, run: SweptRun) -> None:
        where: Where = (run.title, run.release, run.seed)
        table = pa.concat_tables(batch.table(_READ) for batch in run.batches)
        label = pc.binary_join_element_wise(table["backend"], table["implementation"], ":")
        table = table.append_column("label", label)
        self.runs.append((where, run, float(pc.sum(table["seconds"]).as_py() or 0.0)))
        by = table.group_by(["backend", "label", "status"]).aggregate([([], "count_all")])
        for row in by.to_pylist():
            self.backends[row["label"]] = row["backend"]
            self.counts[where, row["label"], row["status"]] += row["count_all"]
        self._take_ratios(run.release, table)
        self._take_failing(run, table)

    def _take_ratios(self, release: str, table: pa.Table) -> None:
        judged = table.filter(pc.is_valid(table["error_ratio"]))
        columns = ["label", "check", "dtype", "numerics"]
        frame = judged.select([*columns, "error_ratio"]).to_pandas()
        # A ratio of NaN is beyond every bound.
        frame["error_ratio"] = frame["error_ratio"].fillna(math.inf)
        for key, block in frame.groupby(columns, sort=False)["error_ratio"]:
            label, check, dtype, numerics = map(str, key)
            self.ratios[release, label, check, dtype, numerics].append(block.to_numpy())

    def _take_failing(self, run: SweptRun, table: pa.Table) -> None:
        rows = table.filter(pc.is_in(table["status"], pa.array([*BROKEN, "known"])))
        for row in rows.to_pylist():
            cell = self.failing[run.release, row["check"], row["case"], row["label"]]
            if row["status"] == "known":
                cell.known += 1
                continue
            cell.seeds.append(run.seed)
            cell.statuses[row["status"]] += 1
            ratio = row["error_ratio"]
            ratio = -math.inf if ratio is None else math.inf if math.isnan(ratio) else ratio
            if ratio > cell.ratio or not cell.message:
                cell.kind, cell.message, cell.ratio = row["kind"], row["message"], ratio

    @property
    def seeds(self) -> Counter[tuple[str, str]]:
        """With how many seeds each implementation was asked, by release and implementation."""
        combinations = {(where[1], label, where[2]) for where, label, _ in self.counts}
        return Counter((release, label) for release, label, _ in combinations)


def not_green(folder: Path) -> Iterator[str]:
    """Why the runs of a folder are not green, one by one; nothing where they are."""
    for run in runs(folder):
        counts: Counter[str] = Counter()
        for batch in run.batches:
            for row in pc.value_counts(batch.table(["status"])["status"]).to_pylist():
                counts[row["values"]] += row["counts"]
        broken = {status: counts[status] for status in BROKEN if counts[status]}
        name = " ".join(filter(None, [run.title, run.release, f"seed {run.seed}"]))
        if broken:
            yield f"{name}: {', '.join(f'{n} {status}' for status, n in broken.items())}"
        elif not counts["pass"] and not counts["known"]:
            yield f"{name}: no cell passed"

"""Tables of sweeps: read run by run, so that memory does not grow with their number.

What is kept of a run are counts, error ratios (eight bytes each), and one line for every cell that failed
with some seed. A run of ten thousand cells takes some hundredths of a second.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import binomtest

from suite.records.lines import RecordError
from suite.records.sweeps import SweptRun, runs
from suite.report.conformance import FAILING, UNSUPPORTED
from suite.report.precision import VALUES
from suite.spec.vocabulary import BROKEN, STATUSES

CONFIDENCE = 0.95

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999, "99.99%": 0.9999, "max": 1.0}
"""The quantiles of error ratios, by what their columns are called."""

CONTROLS = ("numpy",)
"""Backends that are right by construction: where one fails, the suite is wrong."""

_READ = (
    "check", "case", "backend", "implementation", "mode", "dtype", "status", "kind", "message",
    "error_ratio", "seconds", "numerics",
)  # fmt: skip

_CELL = ["release", "check", "case", "implementation"]

Where = tuple[str, str, int]
"""A run: its title, its release, its seed."""


@dataclass
class _Failing:
    """What is kept of a cell that did not pass with some seeds."""

    seeds: list[int] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    kind: str = ""
    message: str = ""
    ratio: float = -math.inf


class Swept:
    """Sweeps, read once. Raises RecordError where a folder holds no runs, or a file cannot be used."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.runs: list[tuple[Where, SweptRun, float]] = []
        self.counts: Counter[tuple[Where, str, str]] = Counter()
        """Cells by run, implementation and status."""
        self.ratios: dict[tuple[str, str, str, str, str], list[np.ndarray]] = defaultdict(list)
        """Error ratios by release, implementation, check, dtype and class."""
        self.failing: dict[tuple[str, str, str, str], _Failing] = defaultdict(_Failing)
        """By release, check, case and implementation."""
        for folder in folders:
            for run in runs(folder):
                self._take(run)
        if not self.runs:
            raise RecordError("no run is recorded in what was given; sweep first")
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
        by = table.group_by(["label", "status"]).aggregate([([], "count_all")])
        for row in by.to_pylist():
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
        rows = table.filter(pc.is_in(table["status"], pa.array(FAILING)))
        for row in rows.to_pylist():
            cell = self.failing[run.release, row["check"], row["case"], row["label"]]
            cell.seeds.append(run.seed)
            cell.statuses[row["status"]] += 1
            ratio = row["error_ratio"]
            ratio = -math.inf if ratio is None else math.inf if math.isnan(ratio) else ratio
            if ratio > cell.ratio or not cell.message:
                cell.kind, cell.message, cell.ratio = row["kind"], row["message"], ratio

    @property
    def seeds(self) -> Counter[tuple[str, str]]:
        """With how many seeds each implementation was asked, by release and implementation."""
        asked = {(where[1], label, where[2]) for where, label, _ in self.counts}
        return Counter((release, label) for release, label, _ in asked)


def build(folders: Iterable[Path], names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The tables of `suite.report.kinds.SWEEPS` called `names`. Raises RecordError."""
    swept = Swept(folders)
    return {name: _TABLES[name](swept) for name in names}


def overview(swept: Swept) -> pd.DataFrame:
    """Index (runs, release): seeds, runs that are whole, cells recorded and owed, hours of one core,
    and the versions."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (title, release, _), run, seconds in swept.runs:
        row = rows.setdefault(
            (title, release),
            {"seeds": 0, "whole": 0, "cells": 0, "owed": 0, "core_hours": 0.0, "versions": ""},
        )
        row["seeds"] += 1
        row["whole"] += run.complete
        row["cells"] += run.recorded
        row["owed"] += run.header.cells
        row["core_hours"] += seconds / 3600
        row["versions"] = ", ".join(f"{n} {v}" for n, v in run.header.versions.items())
    return _indexed(rows, ["runs", "release"])


def by_release(swept: Swept) -> pd.DataFrame:
    """Index (implementation, release): score, coverage, cells, and a count per status."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for ((_, release, _), label, status), n in swept.counts.items():
        counts[label, release, status] += n
    return _scored(counts, ["implementation", "release"])


def by_seed(swept: Swept) -> pd.DataFrame:
    """Index (release, seed): score, coverage, cells, and a count per status."""
    counts: Counter[tuple[str, int, str]] = Counter()
    for ((_, release, seed), _, status), n in swept.counts.items():
        counts[release, seed, status] += n
    return _scored(counts, ["release", "seed"]).sort_index(kind="stable")


def _scored(counts: Counter[Any], names: list[str]) -> pd.DataFrame:
    rows: dict[tuple[Any, Any], dict[str, Any]] = {}
    for (*key, status), n in counts.items():
        rows.setdefault((key[0], key[1]), dict.fromkeys(STATUSES, 0))[status] += n
    for row in rows.values():
        total = sum(row[status] for status in STATUSES)
        asked = total - row[UNSUPPORTED]
        score = row["pass"] / asked if asked else math.nan
        row |= {"score": score, "coverage": asked / total, "cells": total}
    return _indexed(rows, names)[["score", "coverage", "cells", *STATUSES]]


def tightness(swept: Swept) -> pd.DataFrame:
    """How near answers come to their bounds: quantiles of max |error| / bound over cells and seeds of the
    check `VALUES`; index (implementation, dtype, release)."""
    groups: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    classes: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for (release, label, check, dtype, numerics), arrays in swept.ratios.items():
        if check == VALUES:
            groups[label, dtype, release] += arrays
            classes[label, dtype, release][numerics] = None
    names = ["implementation", "dtype", "release"]
    rows = {
        key: {"numerics": ", ".join(filter(None, classes[key])), **_quantiles(arrays)}
        for key, arrays in groups.items()
    }
    return _indexed(rows, names)


def tightness_of_checks(swept: Swept) -> pd.DataFrame:
    """The same quantiles of every check that measures; index (check, numerics), over all
    implementations."""
    groups: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    for (_, _, check, _, numerics), arrays in swept.ratios.items():
        groups[check, numerics] += arrays
    rows = {key: _quantiles(arrays) for key, arrays in sorted(groups.items())}
    return _indexed(rows, ["check", "numerics"])


def _quantiles(arrays: Sequence[np.ndarray]) -> dict[str, float]:
    ratios = np.concatenate(arrays)
    # Between two numbers of which one is infinite there is none: the higher one.
    found = np.quantile(ratios, [*QUANTILES.values()], method="higher")
    beyond = int((ratios > 1).sum())
    return {
        "cells": len(ratios),
        "beyond": beyond,
        **dict(zip(QUANTILES, map(float, found), strict=True)),
    }


def rates(swept: Swept) -> pd.DataFrame:
    """How often cells that were asked fail, with exact intervals (Clopper and Pearson 1934); index
    (implementation, release). What is known counts beside it."""
    return _rates(swept, lambda label: True)


def false_alarms(swept: Swept) -> pd.DataFrame:
    """The same of `CONTROLS`, a million cells: what the suite says wrongly of what is right."""
    table = _rates(swept, lambda label: label.partition(":")[0] in CONTROLS)
    asked, failed = int(table["asked"].sum()), int(table["failed"].sum())
    if not asked:
        return table
    total = _indexed({("all", ""): _rate(asked, failed)}, ["implementation", "release"])
    table = pd.concat([table, total])
    millions = table[["rate", "low", "high"]] * 1e6
    return table[["asked", "failed"]].assign(
        a_million=millions["rate"], low=millions["low"], high=millions["high"]
    )


def _rates(swept: Swept, of: Callable[[str], bool]) -> pd.DataFrame:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for ((_, release, _), label, status), n in swept.counts.items():
        if of(label):
            counts[label, release][status] += n
    seeds, rows = swept.seeds, {}
    for (label, release), found in counts.items():
        asked = found.total() - found[UNSUPPORTED]
        failed = sum(found[status] for status in BROKEN)
        if asked:
            more = {"known": found["known"], "seeds": seeds[release, label]}
            rows[label, release] = _rate(asked, failed) | more
    columns = ["asked", "failed", "rate", "low", "high", "known", "seeds"]
    return _indexed(rows, ["implementation", "release"], columns)


def _rate(asked: int, failed: int) -> dict[str, Any]:
    interval = binomtest(failed, asked).proportion_ci(CONFIDENCE, method="exact")
    low, high = float(interval.low), float(interval.high)
    return {"asked": asked, "failed": failed, "rate": failed / asked, "low": low, "high": high}


def failing(swept: Swept) -> pd.DataFrame:
    """Failures by implementation, check and kind, the most frequent first: cells, with how many seeds,
    the largest error ratio, one of the cases, and its message."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, _Failing]]] = defaultdict(list)
    for (release, check, case, label), cell in swept.failing.items():
        if any(cell.statuses[status] for status in BROKEN):
            groups[label, check, cell.kind, release].append((case, cell))
    rows = {}
    for key, cells in sorted(groups.items(), key=lambda entry: -len(entry[1])):
        case, worst = max(cells, key=lambda entry: entry[1].ratio)
        rows[key] = {
            "cells": len(cells),
            "seeds": len({seed for _, cell in cells for seed in cell.seeds}),
            "error_ratio": worst.ratio if worst.ratio >= 0 else math.nan,
            "case": case,
            "message": worst.message,
        }
    columns = ["cells", "seeds", "error_ratio", "case", "message"]
    return _indexed(rows, ["implementation", "check", "kind", "release"], columns)


def some_seeds(swept: Swept) -> pd.DataFrame:
    """Cells that fail with some seeds and pass with others: what hangs on the values. The rarest
    first."""
    asked = swept.seeds
    rows = {}
    for (release, check, case, label), cell in swept.failing.items():
        seeds = asked[release, label]
        if len(cell.seeds) < seeds:
            rows[release, check, case, label] = {
                "failed": len(cell.seeds),
                "of": seeds,
                "status": cell.statuses.most_common(1)[0][0],
                "kind": cell.kind,
                "error_ratio": cell.ratio if cell.ratio >= 0 else math.nan,
                "seed": min(cell.seeds),
                "message": cell.message,
            }
    columns = ["failed", "of", "status", "kind", "error_ratio", "seed", "message"]
    table = _indexed(rows, _CELL, columns)
    return table.sort_values("failed", kind="stable")


def _indexed(
    rows: dict[Any, dict[str, Any]], names: list[str], columns: list[str] | None = None
) -> pd.DataFrame:
    """A table with a row for every entry, whose key is its index."""
    index = pd.MultiIndex.from_tuples(list(rows), names=names) if rows else None
    frame = pd.DataFrame(list(rows.values()), index=index, columns=columns)
    return frame if rows else pd.DataFrame(columns=[*names, *(columns or [])])


_TABLES: dict[str, Callable[[Swept], pd.DataFrame]] = {
    "swept": overview,
    "by_release": by_release,
    "by_seed": by_seed,
    "rates": rates,
    "false_alarms": false_alarms,
    "tightness": tightness,
    "tightness_of_checks": tightness_of_checks,
    "failing": failing,
    "some_seeds": some_seeds,
}


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

"""Changes between two sweeps: common runs are compared pair by pair by `suite.report.diff`.

Runs are paired by title, release and seed. If each sweep has only one release, the releases may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attention_conformance.suite.records.cells import Run, load
from attention_conformance.suite.records.sweeps import Key, SweptRun, is_sweep, runs
from attention_conformance.suite.report.diff import (
    CHANGES,
    COLUMNS,
    NothingInCommon,
    UnknownImplementation,
    compare,
    header_changes,
    mapped,
)


@dataclass(frozen=True)
class Difference:
    """The differences of two sweeps: changes of cells and of headers, and runs of only one sweep."""

    changes: pd.DataFrame
    headers: pd.DataFrame
    alone: pd.DataFrame


def is_of_sweeps(*paths: Path) -> bool:
    """Whether one of the paths is a folder of a sweep."""
    return any(is_sweep(path) for path in paths)


def difference(
    old: Path, new: Path, renames: Mapping[str, str] | None = None, partial: bool = False
) -> Difference:
    """Compare two sweeps, or a sweep with a result file.

    `renames` maps implementations; runs without these are skipped. Raises RecordError if a path cannot be
    read, NothingInCommon if no run is in both.
    """
    before, after = _sides(old, partial), _sides(new, partial)
    releases = [{key[1] for key in sides} for sides in (before, after)]
    if all(len(names) == 1 for names in releases) and releases[0] != releases[1]:
        before, after = ({_but_release(k): side for k, side in s.items()} for s in (before, after))
    both = [key for key in after if key in before]
    if not both:
        raise NothingInCommon(
            f"{old} and {new} have no run in common: compare sweeps of the same backends, level, "
            "mode and seeds"
        )
    changes, headers = [], []
    for key in both:
        pair = _pair(before[key](), after[key](), renames or {})
        if pair is None:
            continue
        changes.append(compare(*pair))
        headers.append(header_changes(*pair).assign(runs=_shown(key)))
    if not changes:
        raise NothingInCommon(f"no run of {old} and {new} has the implementations of --map")
    order = list(CHANGES)
    every = pd.concat(changes, ignore_index=True)[COLUMNS].sort_values(
        "change", key=lambda s: s.map(order.index), kind="stable", ignore_index=True
    )
    return Difference(every, _once(pd.concat(headers)), _alone(before, after))


def _sides(path: Path, partial: bool) -> dict[Key, Callable[[], Run]]:
    """A function that reads the run, for each run of a folder or the run of a file."""
    if is_sweep(path):
        return {run.key: run.load for run in runs(path)}
    run = load(path, partial)
    return {SweptRun(run.header, (path,)).key: lambda: run}


def _but_release(key: Key) -> Key:
    return key[0], "", key[2]


def _shown(key: Key) -> str:
    title, release, seed = key
    return " ".join([title, *filter(None, [release]), f"seed {seed}"])


def _pair(old: Run, new: Run, renames: Mapping[str, str]) -> tuple[Run, Run] | None:
    if not renames:
        return old, new
    try:
        return mapped(old, new, renames)
    except UnknownImplementation:
        return None


def _once(headers: pd.DataFrame) -> pd.DataFrame:
    """Each change of headers once, with the number of runs that have it, and one example."""
    grouped = headers.groupby(["field", "old", "new"], sort=False)["runs"]
    table = grouped.agg(["size", "first"]).reset_index()
    return table.rename(columns={"size": "runs", "first": "one"})


def _alone(before: Collection[Key], after: Collection[Key]) -> pd.DataFrame:
    rows = [{"runs": _shown(key), "in": "old"} for key in before if key not in after]
    rows += [{"runs": _shown(key), "in": "new"} for key in after if key not in before]
    return pd.DataFrame(rows, columns=["runs", "in"])

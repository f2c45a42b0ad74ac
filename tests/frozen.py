"""Frozen answers: what is asked, how it was judged, and how far rounding may move it.

    python -m tests.frozen compare                          ids and bounds, in a few seconds
    python -m tests.frozen compare statuses RESULTS...      files of `pytest suite --results=FILE`
    python -m tests.frozen write [ids|bounds]
    python -m tests.frozen write statuses RESULTS...        the backends that these files judge

`tests/frozen` holds three parts:

    smoke.txt, standard.txt, full.txt   the id of every case of a level, with the checks that ask it;
                                        "compiled:values" is asked of compiled implementations
    bounds.txt                          bounds of 300 cells. A line "CASE CLASS DIRECTION:" adds a cell;
                                        `write bounds` fills in its figures
    statuses.parquet                    the status of every cell of four backends at standard

A change of these files stands in a commit that says why.
"""

from __future__ import annotations

import argparse
import math
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from suite.checks import all_checks
from suite.judge.oracle import Oracle, Rounding
from suite.records.cells import Run, load
from suite.records.findings import manifests
from suite.spec.case import Case
from suite.spec.inputs import draw, draw_cotangent, draw_tangents
from suite.spec.vocabulary import LEVELS, OPERANDS

FOLDER = Path(__file__).with_suffix("")
BOUNDS, STATUSES = FOLDER / "bounds.txt", FOLDER / "statuses.parquet"

ASKED = {"level": "standard", "mode": "eager", "device": "cpu", "seed": 0}
"""The options of the runs whose statuses are frozen."""

CELL = ["backend", "implementation", "check", "case"]
"""The columns of statuses.parquet beside the status."""

LAST_DIGITS = 2.0**-20
"""The relative difference from which on a bound has changed: sixteen unit roundoffs of float32, in which
`references.terms` adds up. NumPy's float32 exponential differs by one or two of them between CPUs with
and without AVX512; the largest difference of a bound seen between CPUs was 1.1e-7."""

SHOWN = 20
"""How many lines of each kind a difference shows."""


def difference(
    before: Mapping[str, str],
    now: Mapping[str, str],
    same: Callable[[str, str, str], bool] = lambda key, before, now: before == now,
) -> list[str]:
    """The lines that were removed, added or changed, the first `SHOWN` of each under their number.

    `same(key, before, now)` is true if two values of a key count as equal.
    """
    kinds = {
        "removed": [f"- {k} {x}".rstrip() for k, x in before.items() if k not in now],
        "added": [f"+ {k} {x}".rstrip() for k, x in now.items() if k not in before],
        "changed": [
            f"~ {k} {x} -> {now[k]}" for k, x in before.items() if k in now and not same(k, x, now[k])
        ],
    }  # fmt: skip
    return [
        line
        for kind, lines in kinds.items()
        if lines
        for line in (f"{len(lines)} {kind}:", *sorted(lines)[:SHOWN])
    ]


def asked(level: str) -> dict[str, str]:
    """Every "CASE CHECK" of a level; the values are empty."""
    sources = [(check.name, check.cases) for check in all_checks().values()]
    sources += [(f"compiled:{c.name}", c.compiled) for c in all_checks().values() if c.compiled]
    return {f"{case.id} {name}": "" for name, cases in sources for case in cases(level)}


def frozen_ids(level: str) -> dict[str, str]:
    """The frozen "CASE CHECK" of a level."""
    lines = (FOLDER / f"{level}.txt").read_text(encoding="utf-8").splitlines()
    return {f"{case} {check}": "" for case, *checks in map(str.split, lines) for check in checks}


def write_ids(level: str) -> None:
    """Write a line for every case of a level: its id and the checks that ask it."""
    pairs = sorted(pair.split() for pair in asked(level))
    cases = groupby(pairs, key=operator.itemgetter(0))
    lines = [" ".join([case, *(check for _, check in group)]) for case, group in cases]
    (FOLDER / f"{level}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def frozen_bounds() -> dict[str, str]:
    """The frozen figures by "CASE CLASS DIRECTION ARRAY"."""
    lines = BOUNDS.read_text(encoding="utf-8").splitlines()
    return {key: text.strip() for key, _, text in (line.partition(":") for line in lines)}


def bounds(keys: Iterable[str]) -> dict[str, str]:
    """The figures of every array of the cells that the keys "CASE CLASS DIRECTION [ARRAY]" name."""
    cells = dict.fromkeys(tuple(key.split()[:3]) for key in keys)
    return {
        f"{' '.join(cell)} {name}": figures(bound)
        for cell in cells
        for name, bound in bounded(*cell).items()
    }


def bounded(case_id: str, numerics: str, direction: str) -> dict[str, np.ndarray]:
    """The bounds of a case's outputs, of its gradients ("vjp") or of its tangent ("jvp"), by array."""
    case, rounding = Case.parse(case_id), Rounding(numerics)
    inputs = draw(case)
    if direction == "vjp":
        oracle = Oracle.vjp(inputs, draw_cotangent(case), rounding)
    elif direction == "jvp":
        moving = inputs.arrays.keys() - {*inputs.operator.array_kinds.constants}
        operands = [name for name in OPERANDS if name in moving]
        oracle = Oracle.jvp(inputs, draw_tangents(case, operands), rounding)
    else:
        oracle = Oracle.forward(inputs, rounding)
    return {name: oracle.bound(name) for name in oracle.expected}


def figures(bound: np.ndarray) -> str:
    """The largest, the mean and the number of the finite bounds."""
    finite = bound[np.isfinite(bound)].astype(np.float64)
    largest, mean = (finite.max(), finite.mean()) if finite.size else (0.0, 0.0)
    return f"{largest:.9g} {mean:.9g} {finite.size}"


def alike(key: str, before: str, now: str) -> bool:
    """True if figures differ in their last digits alone (`LAST_DIGITS`)."""
    pairs = zip(before.split(), now.split(), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=LAST_DIGITS) for a, b in pairs)


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


def compare(part: str, paths: Sequence[str] = ()) -> list[str]:
    """What differs in a part, as lines for people."""
    if part == "ids":
        parts = {level: difference(frozen_ids(level), asked(level)) for level in LEVELS}
        return [f"{level}: {line}" for level, lines in parts.items() for line in lines]
    if part == "bounds":
        before = frozen_bounds()
        return difference(before, bounds(before), alike)
    return compare_statuses(loaded(paths))


def write(part: str, paths: Sequence[str] = ()) -> None:
    """Write a part as it is now."""
    if part == "ids":
        for level in LEVELS:
            write_ids(level)
    elif part == "bounds":
        lines = [f"{key}: {text}\n" for key, text in sorted(bounds(frozen_bounds()).items())]
        BOUNDS.write_text("".join(lines), encoding="utf-8")
    else:
        write_statuses(loaded(paths))


def main(words: Sequence[str] | None = None) -> int:
    """Compare or write. Returns 1 if something differs."""
    parser = argparse.ArgumentParser("python -m tests.frozen")
    parser.add_argument("deed", choices=("compare", "write"))
    parser.add_argument("part", nargs="?", choices=("ids", "bounds", "statuses"))
    parser.add_argument("results", nargs="*")
    arguments = parser.parse_args(words)
    parts = [arguments.part] if arguments.part else ["ids", "bounds"]
    if arguments.deed == "write":
        for part in parts:
            write(part, arguments.results)
        return 0
    lines = [line for part in parts for line in compare(part, arguments.results)]
    print("\n".join(lines) or "nothing differs")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())

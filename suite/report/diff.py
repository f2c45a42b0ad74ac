"""Diff: what changed between two runs, cell by cell, from their records alone.

A cell may change in several ways at once: its status, and what was observed of it. Each is a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from suite.records.cells import CellRecord, Run
from suite.records.lines import RecordError
from suite.spec.vocabulary import BROKEN, GRADES, INVARIANCE_GRADES

CHANGES = {
    "new failure": "passed, was known, unsupported or absent before; fails, breaks or crashes now",
    "fixed": "failed, expected or not, broke or crashed before; passes now",
    "gone": "a cell of the old run that the new run lacks",
    "new cell": "a cell that the old run lacks and that does not fail",
    "status": "any other change of status, or another kind of failure",
    "election": "another answer was observed where the field has no single right one",
    "grade": "the narrowest numerics class whose bound the answer keeps is a wider one",
    "invariance": "answers that were bitwise the same are within bound now, or broken",
    "kernels": "other kernels ran",
    "ratio": "the largest |error| / bound moved by more than a factor of 2; information only",
}
"""Every kind of change, in the order they are listed in."""

FACTOR = 2.0

COLUMNS = [
    "change", "old_status", "new_status", "backend", "implementation", "check", "case", "mode",
    "device", "seed", "old_observed", "new_observed", "old_ratio", "new_ratio", "message",
]  # fmt: skip


class UnknownImplementation(RecordError):
    """A name that is to be mapped is in no cell of the run, or is mapped twice."""


class NothingInCommon(RecordError):
    """The two runs share no cell, so that there is nothing to compare."""


def compare(old: Run, new: Run) -> pd.DataFrame:
    """A row for every change of a cell, in the order of `CHANGES`; columns `COLUMNS`.

    A cell is the same in both runs where its `key` is. `message` is the new run's, or the old run's
    for a cell that is gone. `old_observed` and `new_observed` hold answers, grades or kernels, where the
    change is one of these. Where either run is partial, a single shard, or did not finish, only the
    cells in both are compared.

    Raises NothingInCommon where no cell is in both: an empty diff must not pass for an unchanged
    run.
    """
    before = {cell.key: cell for cell in old.cells}
    after = {cell.key: cell for cell in new.cells}
    if not before.keys() & after.keys():
        raise NothingInCommon(
            f"{old.source or 'the old run'} and {new.source or 'the new run'} have no cell in "
            f"common ({len(before)} and {len(after)} cells): compare runs of the same backend, "
            "device and seed"
        )
    keys = dict.fromkeys([*after, *before])
    if not (_whole(old) and _whole(new)):
        keys = {key: None for key in keys if key in before and key in after}
    rows = []
    for key in keys:
        was, now = before.get(key), after.get(key)
        change = _change(was, now)
        if change:
            rows.append(_row(change, was, now))
        if was and now:
            rows += [_row(name, was, now, *seen) for name, seen in _observed(was, now).items()]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    frame = frame.astype({"old_ratio": "float64", "new_ratio": "float64"})
    order = list(CHANGES)
    return frame.sort_values(
        "change", key=lambda s: s.map(order.index), kind="stable", ignore_index=True
    )


def mapped(old: Run, new: Run, renames: Mapping[str, str]) -> tuple[Run, Run]:
    """The two runs with implementations of the old one called as those of the new one that they are to be
    compared with.

    `renames` maps "backend:name", or a name alone, of the old run to one of the new run. Cells of the old
    run that had the new name before are left out; so are implementations that only one of the runs has.

    Raises UnknownImplementation where a name is in no cell, in those of several backends, or a new name
    is given twice.
    """
    pairs = {_implementation(was, old): _implementation(now, new) for was, now in renames.items()}
    if len(set(pairs.values())) < len(renames) or len(pairs) < len(renames):
        raise UnknownImplementation("an implementation can be mapped once; name each of them once")
    taken = set(pairs.values()) - set(pairs)
    renamed = tuple(
        replace(cell, backend=backend, implementation=name)
        for cell in old.cells
        if _name(cell) not in taken
        for backend, name in [pairs.get(_name(cell), _name(cell))]
    )
    both = set(map(_name, renamed)) & set(map(_name, new.cells))
    return (
        replace(old, cells=tuple(cell for cell in renamed if _name(cell) in both)),
        replace(new, cells=tuple(cell for cell in new.cells if _name(cell) in both)),
    )


def _name(cell: CellRecord) -> tuple[str, str]:
    return cell.backend, cell.implementation


def _implementation(text: str, run: Run) -> tuple[str, str]:
    """The backend and the name of the implementation that is called `text` in a run."""
    names = list(dict.fromkeys(map(_name, run.cells)))
    matches = [name for name in names if text in (name[1], ":".join(name))]
    if len(matches) != 1:
        what = "is called so in several backends" if matches else "is not in it"
        valid = ", ".join(":".join(name) for name in names)
        raise UnknownImplementation(f"{run.source}: {text!r} {what}; valid: {valid or 'none'}")
    return matches[0]


def new_failures(frame: pd.DataFrame) -> bool:
    """Whether a comparison holds a new failure."""
    return bool((frame["change"] == "new failure").any())


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Index change, in the order of `CHANGES`; columns cells (how many) and meaning."""
    counts = frame["change"].value_counts()
    index = pd.Index(list(CHANGES), name="change")
    cells = [int(counts.get(change, 0)) for change in CHANGES]
    return pd.DataFrame({"cells": cells, "meaning": list(CHANGES.values())}, index=index)


def header_changes(old: Run, new: Run) -> pd.DataFrame:
    """Columns field, old, new: every header field that differs, but for when the run started.

    Fields of versions, machine and options are named "versions.torch" and so on; "" stands for a
    field that is absent.
    """
    before, after = dict(_flat(asdict(old.header))), dict(_flat(asdict(new.header)))
    rows = [
        {"field": name, "old": before.get(name, ""), "new": after.get(name, "")}
        for name in dict.fromkeys([*before, *after])
        if name != "started" and before.get(name, "") != after.get(name, "")
    ]
    return pd.DataFrame(rows, columns=["field", "old", "new"])


def _whole(run: Run) -> bool:
    return run.complete and not run.header.partial and not run.header.shard


def _change(was: CellRecord | None, now: CellRecord | None) -> str:
    """One of `CHANGES`, or "" for none."""
    if now is None:
        return "gone"
    if now.status in BROKEN and (was is None or was.status not in BROKEN):
        return "new failure"
    if was is None:
        return "new cell"
    if was.status in (*BROKEN, "known") and now.status == "pass":
        return "fixed"
    if (was.status, was.kind) != (now.status, now.kind):
        return "status"
    return "ratio" if _moved(was.error_ratio, now.error_ratio) else ""


def _observed(was: CellRecord, now: CellRecord) -> dict[str, tuple[str, str]]:
    """What was observed of a cell then and now, by the change that it is; only where both runs saw it."""
    answers, grades = (was.observed, now.observed), (was.grade, now.grade)
    kernels = (was.kernels, now.kernels)
    changes = {}
    if now.question and all(answers) and was.observed != now.observed:
        changes["election"] = answers
    if was.status == now.status and _fell(grades, GRADES):
        changes["grade"] = grades
    if not now.question and _fell(answers, INVARIANCE_GRADES):
        changes["invariance"] = answers
    if all(kernels) and was.kernels != now.kernels:
        changes["kernels"] = kernels
    return changes


def _fell(grades: tuple[str, str], order: Sequence[str]) -> bool:
    """Whether the second grade stands behind the first in an order, which knows both."""
    was, now = grades
    return was in order and now in order and order.index(now) > order.index(was)


def _moved(was: float | None, now: float | None) -> bool:
    """Whether one ratio is more than `FACTOR` times the other; NaN counts as infinite."""
    if was is None or now is None:
        return False
    small, large = sorted(math.inf if math.isnan(ratio) else ratio for ratio in (was, now))
    return large != small and large > FACTOR * small


def _row(
    change: str,
    was: CellRecord | None,
    now: CellRecord | None,
    old_observed: str = "",
    new_observed: str = "",
) -> dict[str, Any]:
    cell = now or was
    assert cell is not None
    return {
        "change": change,
        **{name: getattr(cell, name) for name in COLUMNS if name in cell.__dataclass_fields__},
        "old_status": was.status if was else "",
        "new_status": now.status if now else "",
        "old_observed": old_observed,
        "new_observed": new_observed,
        "old_ratio": was.error_ratio if was else None,
        "new_ratio": now.error_ratio if now else None,
    }


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)

"""Changes between two runs or two sweeps, cell by cell, from their records.

A cell can have several changes, of its status and of observed values. Each change is a row. The runs of
sweeps are paired by title, release and seed; if each sweep has only one release, the releases may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd

from attention_conformance.suite.records.cells import KEY, CellRecord, Run, load
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.sweeps import Key, Shards, is_sweep, runs_below
from attention_conformance.suite.report.frames import cells
from attention_conformance.suite.spec.vocabulary import BROKEN, GRADES, INVARIANCE_GRADES

FACTOR = 2.0
"""An error ratio that changes by less than this factor is no change."""

Condition = Callable[[pd.DataFrame], "pd.Series[bool]"]


@dataclass(frozen=True)
class Change:
    """One kind of change: its meaning, and a condition on pairs of cells (`_pairs`).

    `observed` is the changed field, or "" for the status. A pair has at most one change of the status
    (the first whose condition holds), and any number of changes of fields."""

    meaning: str
    condition: Condition
    observed: str = ""


def _field_differs(field: str) -> Condition:
    """Returns a condition: True if both cells have a value of the field, and the values differ."""

    def differ(pairs: pd.DataFrame) -> pd.Series[bool]:
        old, new = pairs[f"old_{field}"], pairs[f"new_{field}"]
        return (old != "") & (new != "") & (old != new)

    return differ


def _field_worsened(field: str, order: tuple[str, ...]) -> Condition:
    """Returns a condition: True if the new value of the field is later in `order` than the old value. The
    last entry of `order` is the worst."""
    positions = {entry: float(position) for position, entry in enumerate(order)}
    return lambda pairs: pairs[f"new_{field}"].map(positions) > pairs[f"old_{field}"].map(positions)


CHANGES = {
    "new failure": Change(
        "pass, known, unsupported or absent before; fail, error or crash now",
        lambda p: p["new_status"].isin(BROKEN) & ~p["old_status"].isin(BROKEN),
    ),
    "fixed": Change(
        "fail, known, error or crash before; pass now",
        lambda p: (p["new_status"] == "pass") & p["old_status"].isin([*BROKEN, "known"]),
    ),
    "gone": Change("a cell of the old run that the new run lacks", lambda p: p["new_status"] == ""),
    "new cell": Change(
        "a cell that the old run lacks and that does not fail", lambda p: p["old_status"] == ""
    ),
    "status": Change(
        "any other change of status, or another kind of failure",
        lambda p: (p["old_status"] != p["new_status"]) | (p["old_kind"] != p["new_kind"]),
    ),
    "election": Change(
        "another answer was observed where the field has no single right one",
        lambda p: _field_differs("observed")(p) & (p["new_question"] != ""),
        "observed",
    ),
    "grade": Change(
        "the narrowest numerics class whose bound the answer keeps is a wider one",
        lambda p: _field_worsened("grade", GRADES)(p) & (p["old_status"] == p["new_status"]),
        "grade",
    ),
    "invariance": Change(
        "answers that were bitwise the same are within bound now, or broken",
        lambda p: _field_worsened("observed", INVARIANCE_GRADES)(p) & (p["new_question"] == ""),
        "observed",
    ),
    "kernels": Change("other kernels ran", _field_differs("kernels"), "kernels"),
    "ratio": Change(
        "the largest |error| / bound moved by more than a factor of 2; information only",
        lambda p: (
            (p["new_ratio"] > FACTOR * p["old_ratio"]) | (p["old_ratio"] > FACTOR * p["new_ratio"])
        ),
    ),
}
"""Every kind of change, in the order of tables."""

COLUMNS = [
    "change", "old_status", "new_status", "backend", "implementation", "check", "case", "mode",
    "device", "seed", "old_observed", "new_observed", "old_ratio", "new_ratio", "message",
]  # fmt: skip


class UnknownImplementation(RecordError):
    """An implementation that --map names has no cell in the run, or is named twice."""


class NothingInCommon(RecordError):
    """The two runs have no common cell, or the two sweeps no common run."""


def compare_paths(
    old: Path, new: Path, renames: Mapping[str, str], partial: bool = False
) -> dict[str, pd.DataFrame]:
    """Returns the tables of a comparison: `summary`, `changes`, `headers`, and `alone` if a sweep has
    runs that the other one lacks.

    `renames` as in `with_renamed_implementations`; runs of sweeps without these implementations are
    skipped. Raises RecordError if a path cannot be read, UnknownImplementation and NothingInCommon.
    """
    before, after = _with_common_keys(_runs_by_key(old, partial), _runs_by_key(new, partial))
    common_keys = [key for key in after if key in before]
    if not common_keys:
        raise NothingInCommon(
            f"{old} and {new} have no run in common: compare sweeps of the same backends, level, "
            "mode and seeds"
        )
    changes, headers = [], []
    for key in common_keys:
        pair = before[key](), after[key]()
        try:
            changes.append(
                compare_runs(*(with_renamed_implementations(*pair, renames) if renames else pair))
            )
        except UnknownImplementation:
            if key == common_keys[-1] and not changes:
                raise
        else:
            headers.append(header_changes(*pair).assign(runs=_key_text(key)))
    table = pd.concat(changes, ignore_index=True).sort_values(
        "change", key=lambda names: names.map([*CHANGES].index), kind="stable", ignore_index=True
    )
    unpaired = [(_key_text(key), "old") for key in before if key not in after]
    unpaired += [(_key_text(key), "new") for key in after if key not in before]
    extra = {"alone": pd.DataFrame(unpaired, columns=["runs", "in"])} if unpaired else {}
    fields = pd.concat(headers).groupby(["field", "old", "new"], sort=False)["runs"]
    headers_once = fields.agg(["size", "first"]).rename(columns={"size": "runs", "first": "one"})
    several = len(common_keys) > 1
    header_table = (headers_once if several else headers_once[[]]).reset_index()
    return {"summary": summary(table), "changes": table, "headers": header_table, **extra}


RunsByKey = dict[Key, Callable[[], Run]]
"""A function that reads the run, by title, release and seed."""


def _runs_by_key(path: Path, partial: bool) -> RunsByKey:
    """Returns the runs of a sweep, or the one run of a file, by key, as functions that read them."""
    if is_sweep(path):
        return {run.key: run.load for run in runs_below(path)}
    run = load(path, partial)
    return {Shards(run.header, (path,)).key: lambda: run}


def _with_common_keys(before: RunsByKey, after: RunsByKey) -> tuple[RunsByKey, RunsByKey]:
    """Returns the old and the new runs with keys made equal: of two single runs, and of runs of sweeps
    that have one release each and so may be compared across releases."""
    if len(before) == len(after) == 1:
        return dict(zip(after, before.values(), strict=True)), after
    release_names = [{release for _, release, _ in runs} for runs in (before, after)]
    if all(len(names) == 1 for names in release_names) and release_names[0] != release_names[1]:
        before, after = (
            {(title, "", seed): run for (title, _, seed), run in runs.items()}
            for runs in (before, after)
        )
    return before, after


def _key_text(key: Key) -> str:
    title, release, seed = key
    return " ".join([title, *filter(None, [release]), f"seed {seed}"])


def compare_runs(old: Run, new: Run) -> pd.DataFrame:
    """Returns a row for every change of a cell, in the order of `CHANGES`; columns `COLUMNS`.

    Cells are matched by `key`. `message` is that of the new run, or of the old run if the cell is gone.
    `old_observed` and `new_observed` hold the answers, grades or kernels that changed. If a run is
    partial, a single shard, or unfinished, only cells in both runs are compared.

    Raises NothingInCommon if no cell is in both runs.
    """
    pairs = _pairs(old, new)
    pairs["message"] = pairs["new_message"].where(pairs["new_status"] != "", pairs["old_message"])
    unchanged = pd.Series(True, pairs.index)
    changed = []
    for name, change in CHANGES.items():
        holds = change.condition(pairs)
        if not change.observed:
            holds &= unchanged
            unchanged &= ~holds
        rows = pairs[holds].assign(change=name)
        for side in ("old", "new"):
            observed = rows[f"{side}_{change.observed}"] if change.observed else ""
            rows[f"{side}_observed"] = observed
        changed.append(rows)
    return pd.concat(changed, ignore_index=True)[COLUMNS]


def _pairs(old: Run, new: Run) -> pd.DataFrame:
    """Returns a row for every cell of the new run, then for cells of only the old run. If a run is not
    whole, only cells in both runs have rows. Raises NothingInCommon.

    Columns are `KEY`, and those of `suite.report.frames.cells` for both runs ("old_status", "new_status";
    the error ratio is "old_ratio"). Missing values are "" or NaN.
    """
    before, after = (
        cells(run).set_index([*KEY]).rename(columns={"error_ratio": "ratio"}) for run in (old, new)
    )
    in_both, gone = after.index.isin(before.index), ~before.index.isin(after.index)
    if not in_both.any():
        raise NothingInCommon(
            f"{old.source or 'the old run'} and {new.source or 'the new run'} have no cell in "
            f"common ({len(before)} and {len(after)} cells): compare runs of the same backend, "
            "device and seed"
        )
    are_whole = all(r.complete and not r.header.partial and not r.header.shard for r in (old, new))
    keys = after.index.append(before.index[gone]) if are_whole else after.index[in_both]
    sides = [run.reindex(keys).add_prefix(p) for run, p in ((before, "old_"), (after, "new_"))]
    pairs = sides[0].join(sides[1]).reset_index()
    texts = pairs.select_dtypes(exclude="number")
    return pairs.fillna(dict.fromkeys(texts, ""))


def with_renamed_implementations(old: Run, new: Run, renames: Mapping[str, str]) -> tuple[Run, Run]:
    """Returns the two runs, with implementations of the old run renamed to those of the new run.

    `renames` maps names of the old run to names of the new run, each "name" or "backend:name". Cells of
    the old run that have a new name already are left out, and so are implementations of only one run.

    Raises UnknownImplementation if a name is in no cell or in several backends, or if a new name is given
    twice.
    """
    renamed_to = {_implementation(a, old): _implementation(b, new) for a, b in renames.items()}
    if len(set(renamed_to.values())) < len(renames) or len(renamed_to) < len(renames):
        raise UnknownImplementation("an implementation can be mapped once; name each of them once")

    def renamed_cell(cell: CellRecord) -> CellRecord:
        identity = _backend_and_name(cell)
        backend, name = renamed_to.get(identity, identity)
        return replace(cell, backend=backend, implementation=name)

    replaced = set(renamed_to.values()) - set(renamed_to)
    renamed = tuple(
        renamed_cell(cell) for cell in old.cells if _backend_and_name(cell) not in replaced
    )
    common = set(map(_backend_and_name, renamed)) & set(map(_backend_and_name, new.cells))
    return (
        replace(old, cells=tuple(cell for cell in renamed if _backend_and_name(cell) in common)),
        replace(new, cells=tuple(cell for cell in new.cells if _backend_and_name(cell) in common)),
    )


def _backend_and_name(cell: CellRecord) -> tuple[str, str]:
    return cell.backend, cell.implementation


def _implementation(text: str, run: Run) -> tuple[str, str]:
    """Returns backend and name of the implementation that `text` names ("backend:name" or "name") in a
    run. Raises UnknownImplementation unless exactly one matches."""
    names = list(dict.fromkeys(map(_backend_and_name, run.cells)))
    matches = [name for name in names if text in (name[1], ":".join(name))]
    if len(matches) != 1:
        what = "is called so in several backends" if matches else "is not in it"
        valid = ", ".join(":".join(name) for name in names)
        raise UnknownImplementation(f"{run.source}: {text!r} {what}; valid: {valid or 'none'}")
    return matches[0]


def new_failures(frame: pd.DataFrame) -> bool:
    """True if a comparison contains a new failure."""
    return bool((frame["change"] == "new failure").any())


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per kind of change, in the order of `CHANGES`: the number of cells, and the
    meaning."""
    counts = frame["change"].value_counts().reindex([*CHANGES], fill_value=0).rename("cells")
    return counts.to_frame().assign(meaning=[change.meaning for change in CHANGES.values()])


def header_changes(old: Run, new: Run) -> pd.DataFrame:
    """Returns a row per header field that differs, without the start time. Columns: field, old, new, all
    text.

    Fields of versions, machine and options have names such as "versions.torch". The text of an absent
    field is ""."""
    headers = [pd.json_normalize(asdict(run.header)).iloc[0].map(str) for run in (old, new)]
    table = pd.DataFrame(dict(zip(("old", "new"), headers, strict=True))).fillna("")
    order = dict.fromkeys(name for header in headers for name in header.index if name != "started")
    table = table.reindex([*order]).rename_axis("field").reset_index()
    return table[table["old"] != table["new"]].reset_index(drop=True)

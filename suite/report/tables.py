"""Tables: pure functions from runs to pandas DataFrames.

`cells` flattens runs into one frame, a row per cell; every other table is a function of that frame.
An implementation is labelled "backend:name", with its mode, device or source added in brackets
where the frame holds the same name in more than one of them; no cell counts under two labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from suite.judge.records import GRADES, CellRecord, Run
from suite.judge.verdict import STATUSES
from suite.report import TABLES

FAILING = ("crash", "error", "fail", "known")
"""The statuses of cells that did not do what was asked, the gravest first."""

VALUES = ("values", "layer_values")
"""The checks that hold answers against the reference, each on cases of its own."""

INVARIANT = {
    "invariant_rerun": "a second call",
    "invariant_batch": "batch",
    "invariant_rows": "rows",
    "invariant_threads": "threads",
    "invariant_decode": "prefill and decode",
    "invariant_split": "split keys",
}
"""The checks of `suite.test_invariance`, with what they are called in the table."""

GRADIENTS = ("gradients", "gradient_of_bias")
"""The checks that hold gradients against their reference."""

_WHERE = ["check", "case"]


def build(
    loaded: Run | Sequence[Run], names: Iterable[str] | None = None
) -> dict[str, pd.DataFrame]:
    """The tables called `names`, in the order of `TABLES`; without names all but `cells`.

    Raises KeyError with the valid names.
    """
    wanted = set(TABLES) - {"cells"} if names is None else set(names)
    if unknown := wanted - set(TABLES):
        raise KeyError(f"unknown table {sorted(unknown)[0]!r}; valid: {', '.join(TABLES)}")
    frame = cells(loaded)
    made = {"runs": runs(loaded), "cells": frame} if wanted & {"runs", "cells"} else {}
    made |= {name: function(frame) for name, function in _OF_CELLS.items() if name in wanted}
    return {name: made[name] for name in TABLES if name in wanted}


def cells(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """One row per cell with every field of `CellRecord` and the run's `source`.

    Figures are float64, NaN where nothing was measured. A measured error ratio of NaN is beyond
    every bound and becomes infinite.
    """
    columns = [f.name for f in fields(CellRecord)] + ["source"]
    rows = [asdict(cell) | {"source": run.source} for run in _listed(loaded) for cell in run.cells]
    for row in rows:
        if row["error_ratio"] is not None and math.isnan(row["error_ratio"]):
            row["error_ratio"] = math.inf
    frame = pd.DataFrame(rows, columns=columns)
    figures = ["error_ratio", "rms", "max_abs_error", "seconds"]
    return frame.astype(dict.fromkeys(figures, "float64"))


def runs(loaded: Run | Sequence[Run]) -> pd.DataFrame:
    """What the runs were: a row per header field, a column per run, all text."""
    columns = {}
    for run in _listed(loaded):
        h = run.header
        extent = [f"shard {h.shard}"] if h.shard else []
        extent += ["partial: cells were left out by a filter"] if h.partial else []
        short = not (h.shard or h.partial) and len(run.cells) != h.cells
        if short or not run.complete:
            extent.append(f"unfinished: {len(run.cells)} of {h.cells} cells")
        columns[run.source] = {
            "started": h.started,
            "extent": "; ".join(extent) or "whole",
            "cells": str(len(run.cells)),
            "suite": f"{h.suite_version} {h.commit}{' (modified)' if h.dirty else ''}".strip(),
            "python": h.python,
            **{str(k): str(v) for k, v in h.versions.items()},
            **{str(k): str(v) for k, v in h.machine.items()},
            "options": " ".join(f"{k}={v}" for k, v in h.options.items() if v or v == 0),
        }
    order = dict.fromkeys(name for column in columns.values() for name in column)
    frame = pd.DataFrame(columns, index=pd.Index(list(order), name="field"), dtype=object)
    return frame.fillna("")


def labels(cells: pd.DataFrame) -> pd.Series:
    """The label of the implementation of every cell (see the module's docstring)."""
    name = cells["backend"].astype(str) + ":" + cells["implementation"].astype(str)
    shown = cells[["mode", "device"]].assign(source=cells["source"].map(_short(cells["source"])))
    label = name
    for column in shown:
        varies = shown[column].groupby(name).transform("nunique") > 1
        label = label.where(~varies, label + " [" + shown[column].astype(str) + "]")
    return label.rename("implementation").astype(object)


def statuses(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation; columns the number of cells, the score, and a count per status.

    The score is pass / all cells, so that a cell declared unsupported cannot raise it.
    """
    label = labels(cells)
    counts = pd.crosstab(label, cells["status"]) if len(cells) else pd.DataFrame()
    counts = counts.reindex(index=_order(label), columns=list(STATUSES), fill_value=0).astype(int)
    total = counts.sum(axis=1)
    return pd.concat(
        {"score": counts["pass"] / total, "cells": total, **dict(counts.items())}, axis=1
    )


def conformance_long(cells: pd.DataFrame) -> pd.DataFrame:
    """Columns implementation, group, status, cells: the counts, one row each, none of them 0."""
    keys = [labels(cells), cells["group"].replace("", "other"), cells["status"]]
    return cells.groupby(keys, sort=False).size().rename("cells").reset_index()


def conformance(cells: pd.DataFrame) -> pd.DataFrame:
    """`conformance_long` for people: index implementation, the columns of `statuses`, then groups.

    An entry is "passed/asked", followed in brackets by the cells that crashed, broke or failed;
    what is then left is unsupported. Empty where the group was not asked.
    """
    long = conformance_long(cells)
    totals = statuses(cells)
    groups = long["group"].drop_duplicates()
    entries = pd.DataFrame("", index=totals.index, columns=list(groups), dtype=object)
    for (label, group), block in long.groupby(["implementation", "group"], sort=False):
        count = dict(zip(block["status"], block["cells"], strict=True))
        bad = ", ".join(f"{count[status]} {status}" for status in FAILING if status in count)
        entry = f"{count.get('pass', 0)}/{sum(count.values())}"
        entries.loc[label, group] = f"{entry} ({bad})" if bad else entry
    return pd.concat([totals, entries], axis=1)


def accuracy(cells: pd.DataFrame) -> pd.DataFrame:
    """How precise the answers of the checks `VALUES` are; index (implementation, dtype).

    Columns: numerics (the class declared); cells (judged on numbers); beyond (outside their bound);
    unmeasured (failed before any number could be compared); median, max (of the error ratio), case
    (of the max), rms (the largest), grade: the widest over the cells, "none" where no class holds,
    "" where nothing was graded. NaN or infinity where a number was due is an infinite error ratio
    and the grade "none". Cells that fail as expected count like any other.
    """
    judged = cells[cells["check"].isin(VALUES) & (cells["status"] != "unsupported")]
    failed = judged["status"] != "pass"
    ratio = judged["error_ratio"].where(judged["kind"] != "non-finite", math.inf)
    ungraded = failed & judged["kind"].isin(("non-finite", "value")) & (judged["grade"] == "")
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[judged.index],
            "dtype": judged["dtype"],
            "numerics": judged["numerics"],
            "case": judged["case"],
            "ratio": ratio,
            "rms": judged["rms"],
            "grade": judged["grade"].mask(ungraded, "none"),
        }
    )
    rows = [_accuracy_of(key, block) for key, block in _groups(frame, ["implementation", "dtype"])]
    columns = ["implementation", "dtype", "numerics", "grade", "cells", "beyond", "unmeasured"]
    columns += ["median", "max", "rms", "case"]
    return pd.DataFrame(rows, columns=columns).set_index(["implementation", "dtype"])


def _accuracy_of(key: tuple[str, str], block: pd.DataFrame) -> dict[str, object]:
    ratio = block["ratio"].dropna()
    grades = [grade for grade in block["grade"] if grade]
    return {
        "implementation": key[0],
        "dtype": key[1],
        "numerics": ", ".join(dict.fromkeys(n for n in block["numerics"] if n)),
        "grade": max(grades, key=_width, default=""),
        "cells": len(ratio),
        "beyond": int((ratio > 1).sum()),
        "unmeasured": len(block) - len(ratio),
        "median": ratio.median(),
        "max": ratio.max(),
        "rms": block["rms"].max(),
        "case": block["case"].to_numpy()[block.index.get_loc(ratio.idxmax())] if len(ratio) else "",
    }


def _width(grade: str) -> float:
    """Where a grade stands; one that another version of the suite gave is widest but none."""
    return GRADES.index(grade) if grade in GRADES else GRADES.index("none") - 0.5


def gradients(cells: pd.DataFrame) -> pd.DataFrame:
    """How precise gradients are; index (implementation, dtype).

    Columns: numerics, grade (the widest), cells (differentiated), beyond (outside their bound), and the
    largest error ratio of the gradients of query, key, value and bias; NaN where none was asked.
    """
    judged = cells[cells["check"].isin(GRADIENTS) & (cells["status"] != "unsupported")]
    operands = ["query", "key", "value", "bias"]
    figures = judged["observed"].str.extractall(r"(?P<name>\w+) (?P<ratio>[\d.e+-]+|inf|nan)")
    ratios = pd.DataFrame(index=judged.index, columns=operands, dtype="float64")
    for name, block in figures.groupby("name"):
        if name in operands:
            ratios[name] = pd.to_numeric(block["ratio"]).groupby(level=0).max()
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[judged.index],
            "dtype": judged["dtype"],
            "numerics": judged["numerics"],
            "grade": judged["grade"],
            "beyond": judged["status"] != "pass",
        }
    ).join(ratios)
    rows = []
    for key, block in _groups(frame, ["implementation", "dtype"]):
        grades = [grade for grade in block["grade"] if grade]
        rows.append(
            {
                "implementation": key[0],
                "dtype": key[1],
                "numerics": ", ".join(dict.fromkeys(n for n in block["numerics"] if n)),
                "grade": max(grades, key=_width, default=""),
                "cells": len(block),
                "beyond": int(block["beyond"].sum()),
                **block[operands].max().to_dict(),
            }
        )
    columns = ["implementation", "dtype", "numerics", "grade", "cells", "beyond", *operands]
    return pd.DataFrame(rows, columns=columns).set_index(["implementation", "dtype"])


def kernels(cells: pd.DataFrame) -> pd.DataFrame:
    """Index (implementation, kernels): the cells of values and layer_values in which those ran."""
    judged = cells["check"].isin(["values", "layer_values"])
    seen = cells[(cells["mode"] == "compiled") & judged]
    seen = seen[seen["observed"] != ""]
    keys = [labels(cells).loc[seen.index], seen["observed"].rename("kernels")]
    return seen.groupby(keys, sort=False).size().rename("cells").to_frame()


def elections(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation, columns questions: the observed answer.

    Where dtypes differ: "zeros (f16: unmasked)", the answer of most first. "-" where the question
    is not put to the implementation in any dtype; a dtype in which it is not put is left out. A
    probe that gave no answer shows its status. Empty where the records hold no such cell.
    """
    probes = cells[cells["check"] == "election"]
    answer = probes["observed"].where(probes["observed"] != "", probes["status"])
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[probes.index],
            "question": probes["case"].str.split("/").str[-2],
            "dtype": probes["dtype"],
            "answer": answer.mask(probes["status"] == "unsupported", "unsupported"),
        }
    )
    table = pd.DataFrame(
        "",
        index=_order(frame["implementation"]),
        columns=list(frame["question"].drop_duplicates()),
        dtype=object,
    )
    for (label, question), block in _groups(frame, ["implementation", "question"]):
        answers = dict(zip(block["dtype"], block["answer"], strict=True))
        table.loc[label, question] = _answer(answers)
    return table


def invariance(cells: pd.DataFrame) -> pd.DataFrame:
    """Index implementation, columns what is asked beside what; the worst grade of the checks `INVARIANT`.

    Where dtypes differ: "bitwise (bf16: within bound)", the grade of most first. "-" where nothing was
    asked in any dtype. A cell that observed no grade counts as its status, worse than every grade.
    Empty where the records hold no such cell.
    """
    asked = cells[cells["check"].isin(INVARIANT)]
    grade = asked["observed"].where(asked["observed"] != "", asked["status"])
    frame = pd.DataFrame(
        {
            "implementation": labels(cells).loc[asked.index],
            "kind": asked["check"].map(INVARIANT),
            "dtype": asked["dtype"],
            "grade": grade.mask(asked["status"] == "unsupported", "unsupported"),
        }
    )
    kinds = [kind for kind in INVARIANT.values() if (frame["kind"] == kind).any()]
    table = pd.DataFrame("", index=_order(frame["implementation"]), columns=kinds, dtype=object)
    for (label, kind), block in _groups(frame, ["implementation", "kind"]):
        worst = {
            str(dtype): max(grades, key=_severity)
            for dtype, grades in block.groupby("dtype", sort=False)["grade"]
        }
        table.loc[label, kind] = _answer(worst)
    return table


def _severity(grade: str) -> int:
    """How bad a grade of invariance is: what was not asked is best, what is no grade worst."""
    order = ("unsupported", "bitwise", "within bound", "broken")
    return order.index(grade) if grade in order else len(order)


def operators(cells: pd.DataFrame) -> pd.Series:
    """The operator of every cell: "sdpa", or the layer that the case's id starts with.

    Elections and bad problems of layers name it in the second place of three or more.
    """
    case = cells["case"]
    first, second = case.str.split("/").str[0], case.str.split("/").str[1]
    shared = first.isin(["elect", "bad"])
    return first.mask(shared, second.where(case.str.count("/") > 2, "sdpa"))


def _answer(by_dtype: dict[str, str]) -> str:
    put = {dtype: answer for dtype, answer in by_dtype.items() if answer != "unsupported"}
    if not put:
        return "-"
    given = list(put.values())
    most = max(given, key=given.count)
    others = ", ".join(f"{dtype}: {answer}" for dtype, answer in put.items() if answer != most)
    return f"{most} ({others})" if others else most


_LAYER_QUESTIONS = (
    "fully-masked-row", "padded-sample", "fully-masked-row-gradient", "padded-sample-gradient",
    "mask-polarity", "causal-alignment", "causal-with-mask", "returned-weights",
)  # fmt: skip


def layers(cells: pd.DataFrame) -> pd.DataFrame:
    """What each layer does where layers differ; index implementation, empty without layers.

    Columns: operator; the elections of layers; and what becomes of values of another size than keys
    (Dv != D), of averaged weights and of those of every head, and of a batch axis left out: "yes" where
    an answer of the check `layer_values` was right, "no" where it is not asked, else its status.
    """
    kinds = operators(cells)
    found = cells.assign(operator=kinds)[kinds != "sdpa"]
    if found.empty:
        return pd.DataFrame(index=pd.Index([], name="implementation"))
    found = found.assign(label=labels(found))
    table = elections(found).reindex(columns=list(_LAYER_QUESTIONS))
    judged = found[found["check"] == "layer_values"]
    rows = list(judged["label"].drop_duplicates())
    table = table.reindex(rows).astype(object).fillna("")
    table.insert(0, "operator", judged.groupby("label", sort=False)["operator"].first())
    case = judged["case"]
    for name, asks in (
        ("Dv != D", case.str.contains(r"/b\d+h\d+q\d+k\d+d\d+v\d+/", regex=True)),
        ("averaged weights", case.str.contains("/average", regex=False)),
        ("weights", case.str.contains("/head", regex=False)),
        ("no batch axis", case.str.contains("/single", regex=False)),
    ):
        block = judged[asks]
        table[name] = {
            label: _capability(rows) for label, rows in block.groupby("label", sort=False)
        }  # type: ignore[assignment]
    table = table.fillna("")
    said = (table.drop(columns="operator") != "").any(axis=1)
    return table[said].rename_axis("implementation")


def _capability(rows: pd.DataFrame) -> str:
    if (rows["status"] == "pass").any():
        return "yes"
    others = rows["status"][rows["status"] != "unsupported"]
    return "no" if others.empty else str(others.mode().iloc[0])


def failures(cells: pd.DataFrame) -> pd.DataFrame:
    """Every cell whose status is one of `FAILING`, the gravest first."""
    found = cells.assign(implementation=labels(cells))[cells["status"].isin(FAILING)]
    found = found.sort_values("status", key=lambda s: s.map(FAILING.index), kind="stable")
    columns = ["status", "implementation", *_WHERE, "kind", "error_ratio", "message"]
    return found[columns].reset_index(drop=True)


def only_here(cells: pd.DataFrame) -> pd.DataFrame:
    """Failures that occur in exactly one implementation while at least one other passes.

    The columns of `failures`, with `passed`, the number of implementations that pass.
    """
    per_cell = _outcomes(cells)
    alone = per_cell[(per_cell["failing"] == 1) & (per_cell["passed"] > 0)]
    found = failures(cells).merge(alone["passed"].reset_index(), on=_WHERE)
    return found[[*found.columns.drop(["passed", "message"]), "passed", "message"]]


def everywhere(cells: pd.DataFrame) -> pd.DataFrame:
    """Check and case that fail in every implementation that supports them, at least two.

    Columns check, case, implementations (how many), kinds, and the message of one of them.
    """
    per_cell = _outcomes(cells)
    all_fail = per_cell[(per_cell["failing"] == per_cell["supported"]) & (per_cell["failing"] > 1)]
    found = failures(cells).merge(all_fail["failing"].reset_index(), on=_WHERE)
    grouped = found.groupby(_WHERE, sort=False)
    kinds = grouped["kind"].agg(lambda kind: ", ".join(dict.fromkeys(k for k in kind if k)))
    parts = {"implementations": grouped["failing"].first(), "kinds": kinds}
    parts["message"] = grouped["message"].first()
    return pd.concat(parts, axis=1).reset_index()


def _outcomes(cells: pd.DataFrame) -> pd.DataFrame:
    """By check and case: in how many implementations it is supported, fails, and passes throughout.

    An implementation that was asked with several seeds fails where any of them does.
    """
    frame = cells.assign(
        implementation=labels(cells),
        supported=cells["status"] != "unsupported",
        failing=cells["status"].isin(FAILING),
    )
    each = frame.groupby([*_WHERE, "implementation"], sort=False)[["supported", "failing"]].any()
    each["passed"] = each["supported"] & ~each["failing"]
    return each.groupby(_WHERE, sort=False).sum().astype(int)


def slowest(cells: pd.DataFrame, count: int = 20) -> pd.DataFrame:
    """The `count` cells that took longest to judge, conversion and oracle included."""
    found = cells.assign(implementation=labels(cells)).nlargest(count, "seconds")
    return found[["seconds", "implementation", *_WHERE, "status"]].reset_index(drop=True)


_OF_CELLS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "statuses": statuses,
    "conformance": conformance,
    "accuracy": accuracy,
    "gradients": gradients,
    "kernels": kernels,
    "elections": elections,
    "invariance": invariance,
    "layers": layers,
    "only_here": only_here,
    "everywhere": everywhere,
    "failures": failures,
    "slowest": slowest,
}


def _listed(loaded: Run | Sequence[Run]) -> list[Run]:
    return [loaded] if isinstance(loaded, Run) else list(loaded)


def _order(names: pd.Series) -> pd.Index:
    return pd.Index(names.drop_duplicates(), name="implementation", dtype=object)


def _groups(frame: pd.DataFrame, by: list[str]) -> Iterable[tuple[tuple[str, str], pd.DataFrame]]:
    return frame.groupby(by, sort=False)  # type: ignore[return-value]


def _short(sources: pd.Series) -> dict[str, str]:
    """Sources without folder and suffix, or as they are where that would make two of them alike."""
    full = list(sources.drop_duplicates())
    stems = {s: "+".join(Path(part).stem for part in s.split("+")) for s in full}
    return stems if len(set(stems.values())) == len(full) else {s: s for s in full}

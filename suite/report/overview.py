"""The first screen of a page: implementations beside what people ask for, and what each entry opens.

`overview` makes plain data of the frames (`suite.report.kinds.Frames`), and `page.js` draws them. Counts
stand for passing cells; failing cells, the reasons of refusals and findings stand there one by one.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.records.cells import Header
from attention_conformance.suite.records.expectations import Expectation, ExpectationError
from attention_conformance.suite.records.findings import Finding, manifests
from attention_conformance.suite.records.speed import TIMED
from attention_conformance.suite.report.conformance import (
    ACCURACY,
    BY_DTYPE,
    OF_GRADIENTS,
    UNSUPPORTED,
    failing_cells,
)
from attention_conformance.suite.report.frames import asked_again, latest, provenance
from attention_conformance.suite.report.semantics import ELECTIONS
from attention_conformance.suite.report.table import counted, distinct, extreme, grouped
from attention_conformance.suite.report.topics import TOPICS
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import BROKEN

REASONS = 5
"""The number of reasons for unsupported cells in one entry."""

SENTENCES = 3
"""The number of wrong implementations that the page names at its top."""


def overview(
    frames: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    newest: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """What the page draws, as plain data for JSON; {} if there are no judged cells. `tables` are those
    of the frames that are made already, `newest` are the cells that `latest` takes from the runs.

    - topics       name and text of the topics that some cell belongs to, "all" first
    - rows         an implementation each: label, name, backend, whether it is a control, precision and
                   gradients by dtype, median time by workload, answers to election questions, what it
                   computes
    - commands     the beginnings of commands that ask cells again
    - counts       [row, topic, dtype, pass, fail, known, unsupported, the worst passing cell], where a
                   cell is [command, check, case, error ratio, absolute error], or null
    - failures     a failing cell each, with its row, topics, cell and cause
    - reasons      {"row topic": [[reason, cells, one of the cells], ...]}, the most frequent reasons of
                   refusals
    - findings     {name: title, text, severity, issue, its state, reproduction} of the findings that
                   failures cite
    - sentences    what is right, what is wrong, and what changed
    - provenance   versions, machines and date
    """
    cells = frames.get("cells") if newest is None else newest
    if cells is None or cells.empty:
        return {}
    places = {name: place for place, name in enumerate(OPERATORS)}
    of = cells.assign(
        # Records of another version may have other operators: last.
        at=cells["operator"].map(places).fillna(len(places)),
        framework=pd.factorize(cells["backend"])[0],
    )
    of = of.drop_duplicates("label").sort_values(["at", "framework"], kind="stable")
    labels = [*of["label"]]
    columns = ("features", "check", "operator", "group", "mode")
    factors = {name: pd.factorize(cells[name]) for name in columns}
    topics = {"all": np.full(len(cells), True)} | {t.name: t.of(factors) for t in TOPICS}
    topics = {name: rows for name, rows in topics.items() if rows.any()}
    texts = {t.name: t.text for t in TOPICS} | {"all": "every question"}
    numbers, commands = pd.factorize(_commands(cells, frames.get("headers", {})))
    cells = cells.assign(command=numbers)
    every = np.column_stack([*topics.values()])
    members = _members(cells, labels, every)
    failures, findings = _failures(cells, labels, every)
    return {
        "topics": [{"name": name, "text": texts[name]} for name in topics],
        "dtypes": [name for name in DTYPES if (cells["dtype"] == name).any()],
        "rows": _rows(cells, labels, frames, tables),
        "commands": [*commands],
        "counts": _counts(cells, members),
        "failures": failures,
        "reasons": _reasons(cells, members),
        "findings": findings,
        "sentences": sentences(
            latest(frames["cells"]) if newest is None else newest,
            frames["cells"],
            frames["diagnoses"],
        ),
        "provenance": provenance(frames.get("headers", {}).values()),
    }


def _rows(
    cells: pd.DataFrame, labels: Sequence[str], frames: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
) -> list[Any]:  # fmt: skip
    first = cells.drop_duplicates("label").set_index("label")
    controls = {name for h in frames.get("headers", {}).values() for name in h.controls}
    precise, derived, answered = (
        tables[t.name] if t.name in tables else t.of(cells)
        for t in (ACCURACY, OF_GRADIENTS, ELECTIONS)
    )
    precision: dict[str, dict[str, list[Any]]] = {}
    for row in precise.reset_index().to_dict("records"):
        numbers = [_figure(row[name]) for name in ("median", "max", "rms")]
        precision.setdefault(row["implementation"], {})[row["dtype"]] = [row["grade"], *numbers]
    gradients: dict[str, dict[str, Any]] = {}
    for row in derived.reset_index().to_dict("records"):
        label, dtype = (row.pop(name) for name in BY_DTYPE)
        ratios = {
            f"{name} {dtype}": _figure(ratio)
            for name, ratio in row.items()
            if name not in ("numerics", "grade", "cells", "beyond") and ratio == ratio
        }
        gradients.setdefault(label, {}).update(ratios)
    answers = answered.to_dict("index")
    times = _times(frames.get("measurements"))
    computed: dict[str, dict[str, str]] = {}
    if "facts" in frames:
        told = frames["facts"][["label", "fact", "answer"]].itertuples(index=False, name=None)
        for name, fact, answer in told:
            computed.setdefault(name, {})[fact] = answer
    operators = distinct("operator")(grouped(cells, ["label"]))
    rows = []
    for label in labels:
        name = f"{first['backend'][label]}:{first['implementation'][label]}"
        elected = {q: a for q, a in answers.get(label, {}).items() if a not in ("", "-")}
        its = computed.get(name, {})
        rows.append(
            {
                "label": label,
                "name": name,
                "backend": first["backend"][label],
                "operator": operators[label],
                "control": name in controls,
                "precision": precision.get(label, {}),
                "gradients": gradients.get(label, {}),
                "times": times.get(label, {}),
                "elections": elected,
                "computes": {fact: a for fact, a in its.items() if fact not in elected},
            }
        )
    return rows


def _times(measurements: pd.DataFrame | None) -> dict[str, dict[str, list[float]]]:
    """Quartiles of the time of a call in ms, [low, median, high], by label and workload."""
    times: dict[str, dict[str, list[float]]] = {}
    if measurements is not None:
        rows = measurements[
            measurements["status"].isin(TIMED) & ~measurements["swept"].astype(bool)
        ]
        what = rows["workload"] + " " + rows["direction"] + " " + rows["dtype"]
        quartiles = (1e3 * rows[["low", "seconds", "high"]]).round(4).to_numpy().tolist()
        for label, named, its in zip(rows["label"], what, quartiles, strict=True):
            times.setdefault(label, {})[named] = its
    return times


def _members(cells: pd.DataFrame, labels: Sequence[str], topics: np.ndarray) -> pd.DataFrame:
    """A row for every cell in every topic, by topic: the numbers of topic and implementation (`row`), the
    dtype, message and error ratio, the place of the status in an entry of counts, the place `at` of the
    cell."""
    topic, at = np.nonzero(topics.T)
    places = dict.fromkeys(BROKEN, 1) | {"pass": 0, "known": 2, UNSUPPORTED: 3}
    columns = {
        "row": cells["label"].map({label: number for number, label in enumerate(labels)}),
        "dtype": cells["dtype"],
        "place": cells["status"].map(places),
        "message": cells["message"],
        "ratio": cells["error_ratio"].fillna(-1.0),
    }
    return pd.DataFrame({name: column.to_numpy()[at] for name, column in columns.items()}).assign(
        topic=topic, at=at
    )


def _counts(cells: pd.DataFrame, members: pd.DataFrame) -> list[list[Any]]:
    one = ["row", "topic", "dtype"]
    groups = grouped(members, one)
    counts = counted("place", range(4))(groups)
    passing = members.assign(ratio=members["ratio"].where(members["place"] == 0))
    worst = extreme("at", "ratio", absent=-1)(grouped(passing, one))
    places = sorted({*worst} - {-1})
    shown = dict(zip(places, _cells(cells.iloc[places]), strict=True))
    return [
        [*key, *numbers, shown.get(at)]
        for key, numbers, at in zip(counts.index, counts.to_numpy().tolist(), worst, strict=True)
    ]


def _cells(cells: pd.DataFrame) -> list[list[Any]]:
    """Each cell as [command, check, case, error ratio, absolute error]."""
    plain, figures = ["command", "check", "case"], ["error_ratio", "max_abs_error"]
    return [
        [*named, *map(_figure, numbers)]
        for named, numbers in zip(
            cells[plain].to_numpy().tolist(), cells[figures].to_numpy().tolist(), strict=True
        )
    ]


def _figure(number: float | None) -> float | str | None:
    """A number for JSON, which knows neither NaN nor infinity."""
    if number is None or math.isnan(number):
        return None
    return "inf" if math.isinf(number) else float(f"{number:.3g}")


def _failures(
    cells: pd.DataFrame, labels: Sequence[str], topics: np.ndarray
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Failing cells, the gravest first, and the findings that they cite by name."""
    failing = failing_cells(cells.assign(at=np.arange(len(cells))))
    entries, findings = _manifest_entries()
    found, cited = [], {}
    for cell, its in zip(failing.to_dict("records"), _cells(failing), strict=True):
        entry = _entry(cell, entries) if cell["status"] == "known" else None
        name = cell["inherited"] or (entry.finding if entry else "")
        if name in findings:
            cited[name] = {
                field: getattr(findings[name], field)
                for field in ("title", "text", "issue", "reproduction", "severity", "state")
            }
        found.append(
            {
                "row": labels.index(cell["label"]),
                "topics": np.flatnonzero(topics[cell["at"]]).tolist(),
                **{k: cell[k] for k in ("status", "kind", "dtype", "message")},
                "cell": its,
                "cause": entry.cause if entry else "",
                "issue": entry.issue if entry else "",
                "finding": name if name in cited else "",
            }
        )
    return found, cited


def _manifest_entries() -> tuple[list[Expectation], dict[str, Finding]]:
    """The expectations and the findings of all manifests; none where the manifests are not readable."""
    try:
        contents = manifests().values()
    except (ExpectationError, OSError):
        return [], {}
    entries = [entry for _, known in contents for entry in known]
    return entries, {finding.name: finding for findings, _ in contents for finding in findings}


def _entry(cell: Mapping[Any, Any], entries: Sequence[Expectation]) -> Expectation | None:
    """The entry that a known failure fulfils: the one whose cause the message of the cell quotes."""
    names = cell["implementation"], cell["check"], cell["case"]
    matching = (e for e in entries if e.cause in cell["message"] and e.matches(*names))
    return next(matching, None)


def _commands(cells: pd.DataFrame, headers: Mapping[str, Header]) -> pd.Series:
    """The beginning of the command that asks each cell again; `-k TEST` follows."""

    def words(source: str, backend: str, mode: str) -> str:
        again = headers[source].again if source in headers else ()
        modes = () if mode == "eager" else (f"--mode={mode}",)
        return shlex.join(["pytest", "suite", f"--backend={backend}", *again, *modes])

    named = cells[["source", "backend", "mode"]]
    known = {key: words(*key) for key in named.drop_duplicates().itertuples(index=False, name=None)}
    return pd.Series(
        [known[key] for key in named.itertuples(index=False, name=None)], cells.index, dtype=object
    )


def _reasons(cells: pd.DataFrame, members: pd.DataFrame) -> dict[str, list[list[Any]]]:
    refused = grouped(members[members["place"] == 3], ["row", "topic", "message"])
    reasons = refused["at"].agg(["size", "first"]).reset_index()
    reasons = reasons.sort_values("size", ascending=False, kind="stable")
    most = reasons.groupby(["row", "topic"]).head(REASONS).sort_values("topic", kind="stable")
    found: dict[str, list[list[Any]]] = {}
    rows = most[["row", "topic", "message", "size"]].itertuples(index=False, name=None)
    for (row, topic, reason, n), cell in zip(rows, _cells(cells.iloc[most["first"]]), strict=True):
        found.setdefault(f"{row} {topic}", []).append([reason, n, cell])
    return found


def sentences(cells: pd.DataFrame, every: pd.DataFrame, diagnoses: pd.DataFrame) -> list[str]:
    """What is right, what is wrong and why, and what changed since the records given first. `cells` are
    the newest of `every` run."""
    broken, known = cells["status"].isin(BROKEN), cells["label"][cells["status"] == "known"]
    labels, wrong = list(dict.fromkeys(cells["label"])), list(dict.fromkeys(cells["label"][broken]))
    right = len(labels) - len({*wrong, *known})
    tally = cells["status"].value_counts()
    refused = int(tally.get(UNSUPPORTED, 0))
    sentences = [
        f"{tally.get('pass', 0)} of {len(cells) - refused} judged cells pass, "
        f"{len(known)} are known failures; {refused} cells were refused."
        if len(labels) == 1
        else f"{right} of {len(labels)} implementations are right in all that they were asked."
    ]
    if not known.empty and len(labels) > 1:
        most = known.value_counts()
        first = f"{most.index[0]}, {most.iloc[0]} of {len(known)} cells"
        sentences.append(f"{len(most)} have known failures, most of all {first}.")
    told = diagnoses.drop_duplicates("label").set_index("label")["sentence"]
    for label in wrong[:SENTENCES]:
        rows = cells[broken & (cells["label"] == label)]
        count = f"{len(rows)} {'cell fails' if len(rows) == 1 else 'cells fail'}."
        name = f"{rows['backend'].iloc[0]}:{rows['implementation'].iloc[0]}"
        sentences.append(f"{label} is wrong: {told.get(name, count)}")
    if len(wrong) > SENTENCES:
        sentences.append(f"{len(wrong) - SENTENCES} more implementations are wrong.")
    return [*sentences, *_changes(every)]


def _changes(cells: pd.DataFrame) -> list[str]:
    """What the latest records say of cells that earlier records have, too."""
    both = asked_again(cells)
    if both.empty:
        return []
    before, now = both["before"].isin(BROKEN), both["status"].isin(BROKEN)
    return [
        f"Since the first of the records: {int((now & ~before).sum())} new failures, "
        f"{int((before & ~now).sum())} fixed, of {len(both)} cells that were asked again."
    ]

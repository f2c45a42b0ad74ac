"""The first screen of a page: implementations beside topics, and what is known of each implementation.

`overview` makes plain values of the frames (`suite.report.kinds.Frames`), which page.html.jinja shows.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.records.cells import Header
from attention_conformance.suite.records.expectations import ExpectationError
from attention_conformance.suite.records.findings import Contents, find_fulfilled, manifests
from attention_conformance.suite.records.speed import TIMED
from attention_conformance.suite.report.conformance import (
    ACCURACY,
    BY_DTYPE,
    OF_GRADIENTS,
    UNSUPPORTED,
    failing_cells,
)
from attention_conformance.suite.report.frames import asked_again, latest, provenance
from attention_conformance.suite.report.semantics import ELECTIONS, NOT_ASKED
from attention_conformance.suite.report.table import counted, distinct, grouped
from attention_conformance.suite.report.topics import ALL, TOPICS, members
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import BROKEN, STATUSES

SENTENCES = 3
"""The number of wrong implementations that the page names at its top."""

ByLabel = dict[Any, dict[Any, Any]]
"""Entries by the label of an implementation, and by what they are of."""


def overview(
    frames: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    newest: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """The first screen as plain values; {} if there are no judged cells. `tables` are those of
    the frames that are made already, `newest` are the cells that `latest` takes from the runs.

    - topics       names of topics
    - columns      the text of each column of the matrix by its name: topics, dtypes, speed
    - choices      menus: name, text beside it, text of no choice, values
    - answers      answers that can be searched for
    - rows         an implementation each: label, name ("backend:implementation"), operator, grades by
                   dtype, `shown` for the script, `tables` of texts by caption, and `items` by heading
    - sentences    what is right, what is wrong, and what changed
    - provenance   versions, machines and date
    """
    cells = frames.get("cells") if newest is None else newest
    if cells is None or cells.empty:
        return {}
    headers, cells = frames.get("headers", {}), cells.reset_index(drop=True)
    topics, times = members(cells), _times(frames.get("measurements"))
    dtypes = [name for name in DTYPES if (cells["dtype"] == name).any()]
    best: dict[str, float] = {}
    for workload, (_, middle, _) in (one for its in times.values() for one in its.items()):
        best[workload] = min(best.get(workload, middle), middle)
    verdicts, items = _verdicts(cells, topics), _items(cells, topics, headers)
    accuracy, gradients, elected = (
        tables[t.name] if t.name in tables else t.of(cells)
        for t in (ACCURACY, OF_GRADIENTS, ELECTIONS)
    )
    tables_of = _small_tables(accuracy, gradients, elected, frames.get("facts")) | {TIMES: times}
    controls = {name for header in headers.values() for name in header.controls}
    operators = distinct("operator")(grouped(cells, ["label"]))
    rows = []
    for first in _in_order(cells).to_dict("records"):
        label, name = first["label"], f"{first['backend']}:{first['implementation']}"
        its = {caption: of.get(label, {}) for caption, of in tables_of.items()}
        answers = [f"{question}={answer}" for question, (answer,) in its[ANSWERS].items()]
        middles = {workload: quartiles[1] for workload, quartiles in its[TIMES].items()}
        ratios = [middle / best[workload] for workload, middle in middles.items()]
        shown = {
            "label": label,
            "text": " ".join([label, operators[label], *answers]).lower(),
            "backend": first["backend"],
            "control": name in controls,
            "verdicts": verdicts[label],
            "keys": {dtype: of[1] for dtype, of in its[PRECISION].items() if of[1]},
            "times": middles,
            "slowness": statistics.median(ratios) if ratios else None,
        }
        of_topics = {
            topic: [texts[""].partition(":")[0]] for topic, texts in verdicts[label].items()
        }
        rows.append(
            {
                "label": label, "name": name, "operator": operators[label], "page": "",
                "grades": {dtype: figures[0] for dtype, figures in its[PRECISION].items()},
                "shown": shown,
                "tables": {c: of for c, of in ({VERDICTS: of_topics} | its).items() if of},
                "items": {heading: of[label] for heading, of in items.items() if label in of},
            }
        )  # fmt: skip
    labels = [row["label"] for row in rows]
    of_topic = {t.name: t.text for t in (ALL, *TOPICS) if t.name in topics}
    columns = of_topic | {dtype: f"precision grade in {dtype}" for dtype in dtypes}
    columns |= {"speed": "time of a call, or the median of time / best time"} if best else {}
    return {
        "topics": [*of_topic],
        "columns": columns,
        "choices": [
            ("framework", "framework", "every framework", [*cells["backend"].unique()]),
            ("dtype", "dtype", "every dtype", dtypes),
            ("workload", "speed in", "every workload", [*best]),
            ("a", "compare", "none", labels),
            ("b", "with", "none", labels),
        ],
        "answers": sorted(
            {f"{name}={text}" for of in tables_of[ANSWERS].values() for name, (text,) in of.items()}
        ),
        "rows": rows,
        "sentences": sentences(
            latest(frames["cells"]) if newest is None else newest,
            frames["cells"],
            frames["diagnoses"],
        ),
        "provenance": provenance(headers.values()),
    }


def _in_order(cells: pd.DataFrame) -> pd.DataFrame:
    """A cell of each implementation, by operator and backend. Operators of another version are last."""
    places = {name: place for place, name in enumerate(OPERATORS)}
    return (
        cells.assign(
            at=cells["operator"].map(places).fillna(len(places)),
            framework=pd.factorize(cells["backend"])[0],
        )
        .drop_duplicates("label")
        .sort_values(["at", "framework"], kind="stable")
    )


def _verdicts(cells: pd.DataFrame, topics: pd.DataFrame) -> ByLabel:
    """The verdict in words, by label, topic and dtype; "" for every dtype."""
    topic, at = np.nonzero(topics.to_numpy().T)
    rows = cells[["label", "dtype", "status"]].iloc[at].assign(topic=topics.columns[topic])
    counts = counted("status", STATUSES)(grouped(rows, ["label", "topic", "dtype"]))
    every = counts.groupby(["label", "topic"], sort=False).sum().assign(dtype="")
    every = every.set_index("dtype", append=True)
    verdicts: ByLabel = {}
    for (label, name, dtype), numbers in (every.T.to_dict() | counts.T.to_dict()).items():
        verdicts.setdefault(label, {}).setdefault(name, {})[dtype] = verdict(numbers)
    return verdicts


def verdict(counts: Mapping[Any, int]) -> str:
    """The verdict of cells by status: wrong, known wrong, right or refused, with numbers."""
    refused = counts[UNSUPPORTED]
    judged = sum(counts[status] for status in STATUSES) - refused
    if not judged:
        return f"refused: {refused} cells"
    wrong = any(counts[status] for status in BROKEN)
    word = "wrong" if wrong else "known wrong" if counts["known"] else "right"
    return f"{word}: {counts['pass']} of {judged} judged cells pass"


VERDICTS = "verdicts"
ANSWERS = "what it computes, and chooses where there is no single answer"
PRECISION = "precision of outputs: grade; median, largest and rms error ratio"
GRADIENTS = "error ratios of gradients: the largest of each operand"
TIMES = "time of a call, ms: first quartile, median, third quartile"


def _small_tables(
    accuracy: pd.DataFrame, derived: pd.DataFrame, elected: pd.DataFrame, facts: pd.DataFrame | None
) -> dict[str, ByLabel]:
    """Tables of implementations by caption: texts by label and name."""
    answers: ByLabel = {}
    for question in [] if facts is None else facts.to_dict("records"):
        answers.setdefault(question["label"], {})[question["fact"]] = (question["answer"],)
    for label, its in elected.to_dict("index").items():
        answers.setdefault(label, {}).update(
            {question: (text,) for question, text in its.items() if text not in ("", NOT_ASKED)}
        )
    precision: ByLabel = {}
    for row in accuracy.reset_index().to_dict("records"):
        texts = [row["grade"], *(_figure(row[name]) for name in ("median", "max", "rms"))]
        if any(texts):
            precision.setdefault(row["implementation"], {})[row["dtype"]] = texts
    gradients: ByLabel = {}
    others = {*BY_DTYPE, "numerics", "grade", "cells", "beyond"}
    for row in derived.reset_index().to_dict("records"):
        figures = {name: _figure(row[name]) for name in row if name not in others}
        its = {f"{name} {row['dtype']}": [text] for name, text in figures.items() if text}
        gradients.setdefault(row["implementation"], {}).update(its)
    return {ANSWERS: answers, PRECISION: precision, GRADIENTS: gradients}


def _figure(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:.3g}"


def _times(measurements: pd.DataFrame | None) -> ByLabel:
    """Quartiles of the time of a call in ms, [low, median, high], by label and workload."""
    times: ByLabel = {}
    if measurements is not None:
        rows = measurements[
            measurements["status"].isin(TIMED) & ~measurements["swept"].astype(bool)
        ]
        what = rows["workload"] + " " + rows["direction"] + " " + rows["dtype"]
        quartiles = (1e3 * rows[["low", "seconds", "high"]]).round(4).to_numpy().tolist()
        for label, named, its in zip(rows["label"], what, quartiles, strict=True):
            times.setdefault(label, {})[named] = its
    return times


FAILING_CELLS, FINDINGS = "failing cells", "findings behind them"
LARGEST, REFUSED = "the largest error of a right cell, by dtype", "refused, by reason"


def _items(
    cells: pd.DataFrame, topics: pd.DataFrame, headers: Mapping[str, Header]
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Cells and findings by heading and label: the text of a mark and its `status`, a summary, further
    texts, a script or command, and the topics and the dtype that show the item ("": every dtype)."""
    items: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def add(heading: str, at: int, shown: Iterable[str], **fields: Any) -> None:
        cell = every[at]
        item = {
            "status": cell["status"], "mark": cell["status"], "summary": _described(cell),
            "texts": [], "script": _command(cell, headers.get(cell["source"])),
            "topics": ",".join(shown), "dtype": cell["dtype"], **fields,
        }  # fmt: skip
        items.setdefault(heading, {}).setdefault(cell["label"], []).append(item)

    failing, worst, refused = failing_cells(cells), _worst(cells, topics), _refused(cells, topics)
    places = sorted({*failing.index, *worst, *(at for at, _, _ in refused)})
    every = dict(zip(places, cells.loc[places].to_dict("records"), strict=True))
    contents: Contents = {}
    with suppress(ExpectationError, OSError):  # manifests may be unreadable
        contents = manifests()
    findings = {finding.name: finding for listed, _ in contents.values() for finding in listed}
    cited: dict[tuple[str, str], tuple[int, dict[str, None]]] = {}
    for at, cell in ((at, every[at]) for at in failing.index):
        shown = topics.columns[topics.to_numpy()[at]]
        names = (cell[name] for name in ("backend", "implementation", "check", "case", "message"))
        entry = find_fulfilled(contents, *names) if cell["status"] == "known" else None
        finding = findings.get(cell["inherited"] or (entry.finding if entry else ""))
        texts = [cell["message"], *([f"Cause: {entry.cause}. {entry.issue}"] if entry else [])]
        if finding:
            texts.append(f"Finding: {finding.name}")
            _, its = cited.setdefault((cell["label"], finding.name), (at, {}))
            its |= dict.fromkeys(shown)
        add(FAILING_CELLS, at, shown, texts=texts)
    for (_, name), (at, its) in cited.items():
        one = findings[name]
        add(
            FINDINGS, at, its, mark=one.severity, summary=f"{name}: {one.title}", dtype="",
            texts=[one.text, f"Upstream: {one.state}. {one.issue}"], script=one.reproduction,
        )  # fmt: skip
    for at, shown in worst.items():
        add(LARGEST, at, shown, mark=every[at]["dtype"])
    for at, size, shown in refused:
        reason, mark = every[at]["message"], f"{size} cells"
        texts = [_described(every[at])]
        add(REFUSED, at, shown, mark=mark, summary=reason, texts=texts, dtype="")
    return items


def _worst(cells: pd.DataFrame, topics: pd.DataFrame) -> dict[int, list[str]]:
    """Passing cells with the largest error of an implementation and dtype in a topic, with these
    topics."""
    topic, at = np.nonzero(topics.to_numpy().T)
    rows = cells[["label", "dtype", "status", "error_ratio"]].iloc[at]
    rows = rows.assign(topic=topics.columns[topic], at=at)[rows["status"].to_numpy() == "pass"]
    rows = rows.sort_values("error_ratio", ascending=False, kind="stable")
    worst: dict[int, list[str]] = {}
    for place, name in (
        rows.drop_duplicates(["label", "topic", "dtype"])[["at", "topic"]].to_numpy().tolist()
    ):
        worst.setdefault(place, []).append(name)
    return worst


def _refused(cells: pd.DataFrame, topics: pd.DataFrame) -> list[tuple[int, int, list[str]]]:
    """A refused cell of every implementation and reason, the most frequent first, with the number of such
    cells and the topics that have any."""
    refused = cells[cells["status"] == UNSUPPORTED]
    groups = refused.groupby(["label", "message"], sort=False).indices.values()
    rows, names = refused.index.to_numpy(), topics.columns
    of = topics.to_numpy()[rows]
    found = [(int(rows[g[0]]), len(g), [*names[of[g].any(axis=0)]]) for g in groups]
    return sorted(found, key=lambda one: -one[1])


def _described(cell: Mapping[Any, Any]) -> str:
    """Check and case of a cell, and how near the bound its largest error comes."""
    ratio, error = (_figure(cell[name]) for name in ("error_ratio", "max_abs_error"))
    errors = (f" {ratio} times its bound" if ratio else "") + (
        f", |error| {error}" if error else ""
    )
    return f"{cell['check']} {cell['case']}{errors}"


def _command(cell: Mapping[Any, Any], header: Header | None) -> str:
    """The command that judges a cell again."""
    again = () if header is None else header.again
    modes = () if cell["mode"] == "eager" else (f"--mode={cell['mode']}",)
    test = f"{cell['check']}[{cell['name']}/{cell['case']}]"
    return shlex.join(
        ["pytest", "suite", f"--backend={cell['backend']}", *again, *modes, "-k", test]
    )


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
    sentence_of = diagnoses.drop_duplicates("label").set_index("label")["sentence"]
    for label in wrong[:SENTENCES]:
        rows = cells[broken & (cells["label"] == label)]
        count = f"{len(rows)} {'cell fails' if len(rows) == 1 else 'cells fail'}."
        name = f"{rows['backend'].iloc[0]}:{rows['implementation'].iloc[0]}"
        sentences.append(f"{label} is wrong: {sentence_of.get(name, count)}")
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

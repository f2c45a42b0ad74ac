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
from attention_conformance.suite.report.frames import newest_cells, provenance, repeated_cells
from attention_conformance.suite.report.semantics import ELECTIONS, NOT_ASKED
from attention_conformance.suite.report.table import distinct_texts, group_rows, value_counts
from attention_conformance.suite.report.topics import ALL, TOPICS, topic_members
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import BROKEN, STATUSES

SENTENCES = 3
"""The number of wrong implementations that the page names at its top."""

ByLabel = dict[Any, dict[Any, Any]]
"""Entries by the label of an implementation, and then by a second key: a name, a topic or a dtype."""


def overview(
    frames: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    newest: pd.DataFrame | None = None,
) -> dict[str, Any]:
    """Returns the first screen as plain values by name; {} without judged cells. `tables`: tables of the
    frames that are made already, by name. `newest`: the cells to show, by default all cells of the
    frames.

    - topics       names of topics
    - columns      the text of each column of the matrix by its name: topics, dtypes, speed
    - choices      menus: name, text beside it, text of no choice, values
    - answers      answers that can be searched for
    - rows         an implementation each: label, name ("backend:implementation"), operator, precision
                   by dtype, `shown` for the script, `tables` of texts by caption, and `items` by heading
    - sentences    what is right, what is wrong, and what changed
    - provenance   versions, machines and date
    """
    cells = frames.get("cells") if newest is None else newest
    if cells is None or cells.empty:
        return {}
    headers, cells = frames.get("headers", {}), cells.reset_index(drop=True)
    topics, times = topic_members(cells), _call_times(frames.get("measurements"))
    dtypes = [name for name in DTYPES if (cells["dtype"] == name).any()]
    best: dict[str, float] = {}
    for times_of_label in times.values():
        for workload, (_, median, _) in times_of_label.items():
            best[workload] = min(best.get(workload, median), median)
    verdicts = _verdicts_by_label(cells, topics)
    items = _items_by_heading(cells, topics, headers)
    accuracy, gradients, elections = (
        tables[t.name] if t.name in tables else t.make(cells)
        for t in (ACCURACY, OF_GRADIENTS, ELECTIONS)
    )
    tables_of = _small_tables(accuracy, gradients, elections, frames.get("facts")) | {TIMES: times}
    controls = {name for header in headers.values() for name in header.controls}
    operators = distinct_texts("operator")(group_rows(cells, ["label"]))
    rows = []
    for first_cell in _first_cells(cells).to_dict("records"):
        label, name = first_cell["label"], f"{first_cell['backend']}:{first_cell['implementation']}"
        its_tables = {caption: texts.get(label, {}) for caption, texts in tables_of.items()}
        answers = [f"{question}={answer}" for question, (answer,) in its_tables[ANSWERS].items()]
        medians = {workload: quartiles[1] for workload, quartiles in its_tables[TIMES].items()}
        ratios = [median / best[workload] for workload, median in medians.items()]
        script_values = {
            "label": label,
            "text": " ".join([label, operators[label], *answers]).lower(),
            "backend": first_cell["backend"],
            "control": name in controls,
            "verdicts": verdicts[label],
            "times": medians | ({"": statistics.median(ratios)} if ratios else {}),
        }
        words = {topic: [texts[""].partition(":")[0]] for topic, texts in verdicts[label].items()}
        all_tables = {VERDICTS: words} | its_tables
        rows.append(
            {
                "label": label, "name": name, "operator": operators[label], "page": "",
                "precision": its_tables[PRECISION],
                "shown": script_values,
                "tables": {caption: texts for caption, texts in all_tables.items() if texts},
                "items": {heading: by[label] for heading, by in items.items() if label in by},
            }
        )  # fmt: skip
    topic_texts = {t.name: t.text for t in (ALL, *TOPICS) if t.name in topics}
    columns = topic_texts | {dtype: f"precision grade in {dtype}" for dtype in dtypes}
    columns |= {"speed": "time of a call, or the median of time / best time"} if best else {}
    return {
        "topics": [*topic_texts],
        "columns": columns,
        "choices": [
            ("framework", "framework", "every framework", [*cells["backend"].unique()]),
            ("dtype", "dtype", "every dtype", dtypes),
            ("workload", "speed in", "every workload", [*best]),
        ],
        "answers": sorted(
            {f"{name}={text}" for by in tables_of[ANSWERS].values() for name, (text,) in by.items()}
        ),
        "rows": rows,
        "sentences": sentences(
            newest_cells(frames["cells"]) if newest is None else newest,
            frames["cells"],
            frames["diagnoses"],
        ),
        "provenance": provenance(headers.values()),
    }


def _first_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the first cell of each implementation, sorted by operator and backend. Unknown operators
    come last."""
    order = {name: position for position, name in enumerate(OPERATORS)}
    return (
        cells.assign(
            at=cells["operator"].map(order).fillna(len(order)),
            framework=pd.factorize(cells["backend"])[0],
        )
        .drop_duplicates("label")
        .sort_values(["at", "framework"], kind="stable")
    )


def _verdicts_by_label(cells: pd.DataFrame, topics: pd.DataFrame) -> ByLabel:
    """Returns the verdicts as texts by label, topic and dtype. The dtype "" means all dtypes together.
    `topics`: see `topic_members`."""
    topic, row = np.nonzero(topics.to_numpy().T)
    rows = cells[["label", "dtype", "status"]].iloc[row].assign(topic=topics.columns[topic])
    counts = value_counts("status", STATUSES)(group_rows(rows, ["label", "topic", "dtype"]))
    all_dtypes = counts.groupby(["label", "topic"], sort=False).sum().assign(dtype="")
    all_dtypes = all_dtypes.set_index("dtype", append=True)
    verdicts: ByLabel = {}
    for (label, name, dtype), numbers in pd.concat([all_dtypes, counts]).to_dict("index").items():
        verdicts.setdefault(label, {}).setdefault(name, {})[dtype] = verdict(numbers)
    return verdicts


def verdict(counts: Mapping[Any, int]) -> str:
    """Returns the verdict for numbers of cells by status, as text: "right: 12 of 12 judged cells
    pass"."""
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
    accuracy: pd.DataFrame,
    derived: pd.DataFrame,
    elections: pd.DataFrame,
    facts: pd.DataFrame | None,
) -> dict[str, ByLabel]:
    """Returns the small tables of implementations by caption. Each maps label and name to a list of
    texts. `derived` is the table of gradients."""
    answers: ByLabel = {}
    for question in [] if facts is None else facts.to_dict("records"):
        answers.setdefault(question["label"], {})[question["fact"]] = (question["answer"],)
    for label, entries in elections.to_dict("index").items():
        answers.setdefault(label, {}).update(
            {question: (text,) for question, text in entries.items() if text not in ("", NOT_ASKED)}
        )
    precision: ByLabel = {}
    for row in accuracy.reset_index().to_dict("records"):
        texts = [row["grade"], *(_three_digits(row[name]) for name in ("median", "max", "rms"))]
        if any(texts):
            precision.setdefault(row["implementation"], {})[row["dtype"]] = texts
    gradients: ByLabel = {}
    other_columns = {*BY_DTYPE, "numerics", "grade", "cells", "beyond"}
    for row in derived.reset_index().to_dict("records"):
        figures = {name: _three_digits(row[name]) for name in row if name not in other_columns}
        entries = {f"{name} {row['dtype']}": [text] for name, text in figures.items() if text}
        gradients.setdefault(row["implementation"], {}).update(entries)
    return {ANSWERS: answers, PRECISION: precision, GRADIENTS: gradients}


def _three_digits(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else f"{number:.3g}"


def _call_times(measurements: pd.DataFrame | None) -> ByLabel:
    """Returns quartiles of the time of a call in ms, [low, median, high], by label and workload."""
    times: ByLabel = {}
    if measurements is not None:
        rows = measurements[
            measurements["status"].isin(TIMED) & ~measurements["swept"].astype(bool)
        ]
        workloads = rows["workload"] + " " + rows["direction"] + " " + rows["dtype"]
        quartiles = (1e3 * rows[["low", "seconds", "high"]]).round(4).to_numpy().tolist()
        for label, workload, row_quartiles in zip(rows["label"], workloads, quartiles, strict=True):
            times.setdefault(label, {})[workload] = row_quartiles
    return times


FAILING_CELLS, FINDINGS = "failing cells", "findings behind them"
LARGEST, REFUSED = "the largest error of a right cell, by dtype", "refused, by reason"


def _items_by_heading(
    cells: pd.DataFrame, topics: pd.DataFrame, headers: Mapping[str, Header]
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns items by heading and label: cells, and findings behind them. An item has a `mark` (text)
    and its `status`, a `summary`, further `texts`, a `script` or command, and the `topics` and `dtype`
    for which the page shows it ("": every dtype)."""
    items: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def add(heading: str, row: int, topics_shown: Iterable[str], **fields: Any) -> None:
        """Add an item for the cell in this row; `fields` replace the fields of the item."""
        cell = cells_by_row[row]
        item = {
            "status": cell["status"], "mark": cell["status"], "summary": _cell_text(cell),
            "texts": [], "script": _rerun_command(cell, headers.get(cell["source"])),
            "topics": ",".join(topics_shown), "dtype": cell["dtype"], **fields,
        }  # fmt: skip
        items.setdefault(heading, {}).setdefault(cell["label"], []).append(item)

    failing, refused = failing_cells(cells), _refused_cells(cells, topics)
    worst = _largest_errors(cells, topics)
    rows = sorted({*failing.index, *worst, *(row for row, _, _ in refused)})
    cells_by_row = dict(zip(rows, cells.loc[rows].to_dict("records"), strict=True))
    contents: Contents = {}
    with suppress(ExpectationError, OSError):  # manifests may be unreadable
        contents = manifests()
    findings = {finding.name: finding for listed, _ in contents.values() for finding in listed}
    cited: dict[tuple[str, str], tuple[int, dict[str, None]]] = {}
    for row, cell in ((row, cells_by_row[row]) for row in failing.index):
        topics_shown = topics.columns[topics.to_numpy()[row]]
        names = (cell[name] for name in ("backend", "implementation", "check", "case", "message"))
        entry = find_fulfilled(contents, *names) if cell["status"] == "known" else None
        finding = findings.get(cell["inherited"] or (entry.finding if entry else ""))
        texts = [cell["message"], *([f"Cause: {entry.cause}. {entry.issue}"] if entry else [])]
        if finding:
            texts.append(f"Finding: {finding.name}")
            _, cited_topics = cited.setdefault((cell["label"], finding.name), (row, {}))
            cited_topics |= dict.fromkeys(topics_shown)
        add(FAILING_CELLS, row, topics_shown, texts=texts)
    for (_, name), (row, cited_topics) in cited.items():
        finding = findings[name]
        add(
            FINDINGS, row, cited_topics, mark=finding.severity, summary=f"{name}: {finding.title}",
            texts=[finding.text, f"Upstream: {finding.state}. {finding.issue}"], dtype="",
            script=finding.reproduction,
        )  # fmt: skip
    for row, topics_shown in worst.items():
        add(LARGEST, row, topics_shown, mark=cells_by_row[row]["dtype"])
    for row, size, topics_shown in refused:
        reason, mark = cells_by_row[row]["message"], f"{size} cells"
        texts = [_cell_text(cells_by_row[row])]
        add(REFUSED, row, topics_shown, mark=mark, summary=reason, texts=texts, dtype="")
    return items


def _largest_errors(cells: pd.DataFrame, topics: pd.DataFrame) -> dict[int, list[str]]:
    """Returns, by row number, the topics in which a passing cell has the largest error of its
    implementation and dtype. Cells without such a topic are left out."""
    topic, row = np.nonzero(topics.to_numpy().T)
    rows = cells[["label", "dtype", "status", "error_ratio"]].iloc[row]
    rows = rows.assign(topic=topics.columns[topic], row=row)[rows["status"].to_numpy() == "pass"]
    rows = rows.sort_values("error_ratio", ascending=False, kind="stable")
    largest = rows.drop_duplicates(["label", "topic", "dtype"])[["row", "topic"]]
    topics_by_row: dict[int, list[str]] = {}
    for number, name in largest.to_numpy().tolist():
        topics_by_row.setdefault(number, []).append(name)
    return topics_by_row


def _refused_cells(cells: pd.DataFrame, topics: pd.DataFrame) -> list[tuple[int, int, list[str]]]:
    """Returns an entry for every implementation and reason of refusal, the most frequent first: the row
    number of one refused cell, the number of such cells, and their topics."""
    refused = cells[cells["status"] == UNSUPPORTED]
    groups = refused.groupby(["label", "message"], sort=False).indices.values()
    rows, names = refused.index.to_numpy(), topics.columns
    belongs = topics.to_numpy()[rows]
    entries = [(int(rows[g[0]]), len(g), [*names[belongs[g].any(axis=0)]]) for g in groups]
    return sorted(entries, key=lambda entry: -entry[1])


def _cell_text(cell: Mapping[Any, Any]) -> str:
    """Returns check and case of a cell, and its largest error, as a multiple of the bound and absolute,
    as one text."""
    ratio, error = (_three_digits(cell[name]) for name in ("error_ratio", "max_abs_error"))
    errors = (f" {ratio} times its bound" if ratio else "") + (
        f", |error| {error}" if error else ""
    )
    return f"{cell['check']} {cell['case']}{errors}"


def _rerun_command(cell: Mapping[Any, Any], header: Header | None) -> str:
    """Returns the command that judges a cell again."""
    options = () if header is None else header.again
    modes = () if cell["mode"] == "eager" else (f"--mode={cell['mode']}",)
    test = f"{cell['check']}[{cell['name']}/{cell['case']}]"
    return shlex.join(
        ["pytest", "suite", f"--backend={cell['backend']}", *options, *modes, "-k", test]
    )


def sentences(cells: pd.DataFrame, all_cells: pd.DataFrame, diagnoses: pd.DataFrame) -> list[str]:
    """Returns sentences on what is right, what is wrong and why, and what changed since the oldest
    record. `cells` are the newest of `all_cells`, the cells of all runs."""
    broken, known_labels = cells["status"].isin(BROKEN), cells["label"][cells["status"] == "known"]
    labels, wrong = list(dict.fromkeys(cells["label"])), list(dict.fromkeys(cells["label"][broken]))
    right = len(labels) - len({*wrong, *known_labels})
    tally = cells["status"].value_counts()
    refused = int(tally.get(UNSUPPORTED, 0))
    texts = [
        f"{tally.get('pass', 0)} of {len(cells) - refused} judged cells pass, "
        f"{len(known_labels)} are known failures; {refused} cells were refused."
        if len(labels) == 1
        else f"{right} of {len(labels)} implementations are right in all that they were tested in."
    ]
    if not known_labels.empty and len(labels) > 1:
        counts = known_labels.value_counts()
        most_frequent = f"{counts.index[0]}, {counts.iloc[0]} of {len(known_labels)} cells"
        texts.append(f"{len(counts)} have known failures, most of all {most_frequent}.")
    sentence_of = diagnoses.drop_duplicates("label").set_index("label")["sentence"]
    for label in wrong[:SENTENCES]:
        rows = cells[broken & (cells["label"] == label)]
        count = f"{len(rows)} {'cell fails' if len(rows) == 1 else 'cells fail'}."
        name = f"{rows['backend'].iloc[0]}:{rows['implementation'].iloc[0]}"
        texts.append(f"{label} is wrong: {sentence_of.get(name, count)}")
    if len(wrong) > SENTENCES:
        texts.append(f"{len(wrong) - SENTENCES} more implementations are wrong.")
    return [*texts, *_changes_sentence(all_cells)]


def _changes_sentence(cells: pd.DataFrame) -> list[str]:
    """Returns a list of one sentence on cells that changed since their oldest record; [] if no cell was
    judged twice."""
    cells_again = repeated_cells(cells)
    if cells_again.empty:
        return []
    failed, fails = cells_again["before"].isin(BROKEN), cells_again["status"].isin(BROKEN)
    return [
        f"Since the first of the records: {int((fails & ~failed).sum())} new failures, "
        f"{int((failed & ~fails).sum())} fixed, of {len(cells_again)} cells that were judged again."
    ]

"""A folder of pages: the matrix as index.html, and a page for every implementation.

The pages are those of `suite.report.render`. The matrix has the newest run of each implementation, and
its entries are links. The page of an implementation has its entries in full, and its earlier runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from attention_conformance.suite.records.files import new_folder, remove_on_error
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.frames import newest_cells, newest_times
from attention_conformance.suite.report.kinds import TABLES
from attention_conformance.suite.report.overview import overview, sentences
from attention_conformance.suite.report.render import as_html

FOLDER = "implementations"
"""The folder of the pages of implementations."""

INDEX_TABLES = ("changed", "runs", "diagnoses", "statuses", "elections")
"""The tables below the matrix."""

PAGE_TABLES = ("diagnoses", "distribution", "invariance", "kernels", "history", "changed")
"""The tables of an implementation, below its entries."""

TABLES_OF_ALL_RUNS = ("history", "changed")
"""The tables of all runs; other tables are of the newest run of each implementation."""


def write_site(frames: Mapping[str, Any], title: str, folder: Path) -> None:
    """Write the pages of the frames (`suite.report.kinds`) into a new or empty folder.

    Raises FileExistsError if the folder is not empty, RecordError if no cell was judged.
    """
    if frames["cells"].empty:
        raise RecordError("a site needs judged cells, and the records hold none")
    with remove_on_error(new_folder(folder)):
        (folder / FOLDER).mkdir()
        for name, text in site_pages(frames, title):
            (folder / name).write_text(text, encoding="utf-8")


def site_pages(frames: Mapping[str, Any], title: str) -> Iterator[tuple[str, str]]:
    """Yields pairs of a page's path in the folder and its HTML text."""
    newest = {**frames, "cells": newest_cells(frames["cells"])}
    if "measurements" in frames:
        newest["measurements"] = newest_times(frames["measurements"])
    tables = {
        name: TABLES[name].make(
            (frames if name in TABLES_OF_ALL_RUNS else newest)[TABLES[name].over]
        )
        for name in dict.fromkeys((*INDEX_TABLES, *PAGE_TABLES))
    }
    matrix = overview({**newest, "cells": frames["cells"]}, newest=newest["cells"])
    paths = _paths(row["label"] for row in matrix["rows"])
    rows = [{**row, "page": paths[row["label"]], "items": {}} for row in matrix["rows"]]
    index_tables = {name: tables[name] for name in INDEX_TABLES}
    yield "index.html", as_html(index_tables, title, {**matrix, "rows": rows})
    newest_by_label = dict(iter(newest["cells"].groupby("label", sort=False)))
    cells_of_all_runs = dict(iter(frames["cells"].groupby("name", sort=False)))
    for row in matrix["rows"]:
        label, name = row["label"], row["name"]
        page_tables = {table: _rows_of(tables[table], {label, name}) for table in PAGE_TABLES}
        nonempty_tables = {table: rows for table, rows in page_tables.items() if not rows.empty}
        lead = sentences(newest_by_label[label], cells_of_all_runs[name], frames["diagnoses"])
        first_screen = {**matrix, "rows": [row], "sentences": lead, "choices": [], "answers": []}
        yield paths[label], as_html(nonempty_tables, label, first_screen, "../index.html")


def _rows_of(table: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """Returns the rows of a table whose implementation is in `names`, without the column `implementation`
    and without empty columns."""
    flat = table.reset_index() if "implementation" in table.index.names else table
    rows = flat[flat["implementation"].isin(names)].drop(columns="implementation")
    return rows.loc[:, ~(rows.isna() | (rows == "")).all()]


def _paths(labels: Iterable[str]) -> dict[str, str]:
    """Returns a path of a page for each label. Paths differ, and have only characters that are valid in
    every file system and address."""
    paths: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", label).strip("-.")[:80]
        used = {path.lower() for path in paths.values()}
        number, path = 1, f"{FOLDER}/{stem}.html"
        while path.lower() in used:
            number, path = number + 1, f"{FOLDER}/{stem}-{number}.html"
        paths[label] = path
    return paths

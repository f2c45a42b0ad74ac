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

from attention_conformance.suite.records.files import new_folder, or_nothing
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.conformance import OF_UNSUPPORTED
from attention_conformance.suite.report.frames import latest, newest_times
from attention_conformance.suite.report.kinds import TABLES
from attention_conformance.suite.report.overview import overview, sentences
from attention_conformance.suite.report.render import as_html
from attention_conformance.suite.report.speed import SPEED

FOLDER = "implementations"
"""The folder of the pages of implementations."""

OF_INDEX = ("changed", "runs", "diagnoses", "statuses", "elections", "everywhere")
"""The tables below the matrix."""

OF_PAGE = (
    "diagnoses", "distribution", "accuracy", "gradients", "invariance", "kernels", "speed",
    "history", "changed",
)  # fmt: skip
"""The tables of an implementation, below what it computes, its answers to election questions and its
refusals."""


OF_RUNS = ("history", "changed")
"""The tables of all runs; the others are of the newest run of each implementation."""


def write(frames: Mapping[str, Any], title: str, folder: Path) -> None:
    """Write the pages of the frames (`suite.report.kinds`) into a new or empty folder.

    Raises FileExistsError if the folder is not empty, RecordError if no cell was judged.
    """
    if frames["cells"].empty:
        raise RecordError("a site needs judged cells, and the records hold none")
    with or_nothing(new_folder(folder)):
        (folder / FOLDER).mkdir()
        for name, text in pages(frames, title):
            (folder / name).write_text(text, encoding="utf-8")


def pages(frames: Mapping[str, Any], title: str) -> Iterator[tuple[str, str]]:
    """The pages, each with its path in the folder."""
    newest = {**frames, "cells": latest(frames["cells"])}
    if "measurements" in frames:
        times = frames["measurements"].sort_values(["workload", "started"], kind="stable")
        times = times.assign(label=times["backend"] + ":" + times["implementation"])
        newest["measurements"] = newest_times(times)
    tables = {
        name: TABLES[name].of((frames if name in OF_RUNS else newest)[TABLES[name].over])
        for name in (*OF_INDEX, *OF_PAGE)
        if TABLES[name].over in newest
    }
    if "measurements" in frames:
        tables["speed"] = SPEED.of(times).assign(started=times["started"])
    times_of = {"measurements": newest.get("measurements")}
    matrix = overview({**frames, **times_of}, tables, newest["cells"])
    paths = _paths(row["label"] for row in matrix["rows"])
    rows = [{**row, "page": paths[row["label"]]} for row in matrix["rows"]]
    below = {name: tables[name] for name in OF_INDEX}
    # What entries open stands on the pages of implementations alone.
    counts = [[*numbers, None] for *numbers, _ in matrix["counts"]]
    opened = {"counts": counts, "failures": [], "reasons": {}, "findings": {}, "commands": []}
    yield (
        "index.html",
        as_html(below, title, {**matrix, "rows": rows, **opened}),
    )
    cells = dict(iter(newest["cells"].groupby("label", sort=False)))
    every = dict(iter(frames["cells"].groupby("name", sort=False)))
    for number, (label, path) in enumerate(paths.items()):
        its = cells[label]
        name = str(its["name"].iloc[0])
        row = matrix["rows"][number]
        answers = row["elections"].items()
        shown = {
            "identification": pd.DataFrame(row["computes"].items(), columns=["what", "measured"]),
            "elections": pd.DataFrame(answers, columns=["question", "answer"]),
            "unsupported": OF_UNSUPPORTED.of(its).drop(columns="implementations"),
            **{n: _of(tables[n], {label, name}) for n in OF_PAGE if n in tables},
        }
        filled = {n: table for n, table in shown.items() if not table.empty}
        told = sentences(its, every[name], frames["diagnoses"])
        yield (
            path,
            as_html(filled, label, {**_part(matrix, number), "sentences": told}, "../index.html"),
        )


def _of(table: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The rows of a table that are of the implementation with one of these names, without the name, and
    without columns that are empty."""
    flat = table.reset_index() if "implementation" in table.index.names else table
    rows = flat[flat["implementation"].isin(names)].drop(columns="implementation")
    return rows.loc[:, ~(rows.isna() | (rows == "")).all()]


def _part(matrix: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What `overview` says of one of its implementations."""
    failures = [{**one, "row": 0} for one in matrix["failures"] if one["row"] == number]
    cited = {one["finding"] for one in failures}
    reasons = (key.split() for key in matrix["reasons"])
    return {
        **matrix,
        "rows": [matrix["rows"][number]],
        "counts": [[0, *rest] for row, *rest in matrix["counts"] if row == number],
        "failures": failures,
        "reasons": {
            f"0 {topic}": matrix["reasons"][f"{row} {topic}"]
            for row, topic in reasons
            if row == str(number)
        },
        "findings": {name: text for name, text in matrix["findings"].items() if name in cited},
    }


def _paths(labels: Iterable[str]) -> dict[str, str]:
    """A path for each label, of letters that every file system and address can have."""
    paths: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", label).strip("-.")[:80]
        taken = {path.lower() for path in paths.values()}
        number, path = 1, f"{FOLDER}/{stem}.html"
        while path.lower() in taken:
            number, path = number + 1, f"{FOLDER}/{stem}-{number}.html"
        paths[label] = path
    return paths

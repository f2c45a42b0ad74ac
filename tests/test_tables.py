"""Tables of judged cells say what the records say; refusing never helps the score."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.records import speed
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.report import frames, semantics
from attention_conformance.suite.report.kinds import CONFORMANCE, SWEEPS, conformance_frames
from tests.rows import cell, frame, run, timed, timings

A, B = (f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 3))

BLOCKS = Path(__file__).with_name("tables.txt").read_text(encoding="utf-8").split("## ")[1:]
"""Files of records and tables made of them. A line "run NAME" begins a file, with fields of its header;
its seed is that of its cells, too. A cell is its case, implementation and status, then its other fields.
A line "times NAME" begins a file of times; a time is an implementation, seconds, and other fields. A line
"-> NAME" begins the rows of a table, with further words of the command."""


def fields_of(words: Iterable[str]) -> dict[str, Any]:
    """Fields as "name=value", a value in JSON or a text."""
    fields: dict[str, Any] = {}
    for name, text in (word.split("=", 1) for word in words):
        try:
            fields[name] = json.loads(text)
        except ValueError:
            fields[name] = text
    return fields


def save(text: str, folder: Path) -> list[str]:
    """Write the files of a block; returns their paths."""
    paths = []
    for name, *lines in (
        x.splitlines() for x in re.split("^(?=run |times )", text, flags=re.M)[1:]
    ):
        kind, source, *words = shlex.split(name)
        path, header = folder / f"{source}.jsonl", fields_of(words)
        paths.append(str(path))
        if kind == "times":
            given = [shlex.split(line) for line in lines if line]
            times = (timed(one, float(seconds), **fields_of(more)) for one, seconds, *more in given)
            speed.save(path, timings(*times))
            continue
        seed = header.pop("seed", 0)
        options = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed}
        options |= {"release": header.pop("release")} if "release" in header else {}
        cells = []
        for case, implementation, status, *more in map(shlex.split, filter(None, lines)):
            own = fields_of(more)
            own |= {"features": tuple(own["features"])} if "features" in own else {}
            cells.append(cell(case, implementation, status, **{"seed": seed, **own}))
        run(*cells, **{"options": options, **header}).save(path)
    return paths


def rows_of(table: str, paths: list[str], folder: Path, *more: str) -> list[str]:
    """The rows of a table that the command prints, in Markdown; those of sweeps from the folder."""
    out = folder / f"{len([*folder.iterdir()])}.md"
    words = ["--table", table, "--format=markdown", f"--output={out}", "--partial", *more]
    assert main(["report", *([str(folder)] if table in SWEEPS.tables else paths), *words]) == 0
    text = out.read_text("utf-8").replace("\\", "").replace(f"{folder}/", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ") for line in lines if "---" not in line]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_tables_say_what_the_records_say(block: str, tmp_path: Path) -> None:
    records, *tables = block.strip().partition("\n")[2].split("-> ")
    paths = save(records, tmp_path)
    for command, *rows in (text.rstrip().split("\n") for text in tables):
        table, *words = command.split(" ", 1)
        assert rows_of(table, paths, tmp_path, *words) == rows


def test_every_check_of_invariance_is_in_the_table() -> None:
    named = {name for name in all_checks() if name.startswith("invariant_")}
    assert set(semantics.CHECKS_OF_INVARIANCE) == named


def test_the_columns_of_the_frame_are_those_that_it_documents() -> None:
    """A row of the page is what the columns hold, two blanks, and their names."""
    documented: dict[str, str] = {}
    table = str(frames.__doc__).split("\n\n")[2]
    for line in re.sub(r"\n {16}", " ", table).splitlines():
        holds, names = re.split(r" {2,}", line, maxsplit=1)
        documented |= dict.fromkeys(re.findall(r"\w+", re.sub(r"\(.*?\)|;.*", "", names)), holds)
    cells = frame(cell(error_ratio=0.5, rms=0.5, max_abs_error=0.5, features=("mask",)))
    kinds = {"str": "text", "tuple": "tuple of text"}
    held = {name: type(cells[name].tolist()[0]).__name__ for name in cells}
    held = {name: kinds.get(kind, kind) for name, kind in held.items()}
    held |= {n: str(cells[n].dtype) for n in cells.select_dtypes("number")}
    assert held == documented


def test_cells_as_recorded_have_a_column_for_every_ratio_and_fact(tmp_path: Path) -> None:
    facts = {"Lk": 33, "bias": "inf", "scale": None}
    one = cell(A, ratios={"key": 0.5}, facts=facts, features=("mask", "bias"))
    path, out = run(one, cell(B)).save(tmp_path / "run.jsonl"), tmp_path / "out"
    assert main(["report", str(path), "--format=csv", f"--output={out}"]) == 0
    assert {file.stem for file in out.iterdir()} == {*CONFORMANCE.tables}
    with (out / "cells.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    columns = ("ratio_of_key", "fact_Lk", "fact_bias", "fact_scale", "features")
    assert [[row[name] for name in columns] for row in rows] == [
        ["0.5", "33", "inf", "", "mask bias"], ["", "", "", "", ""]
    ]  # fmt: skip
    assert not {"ratios", "facts"} & rows[0].keys()


@pytest.mark.parametrize("cells", [[], [cell(status="unsupported")], [cell()]])
def test_every_table_of_almost_nothing(cells: list[CellRecord]) -> None:
    report = CONFORMANCE.make(conformance_frames(run(*cells)), CONFORMANCE.tables)
    assert list(report) == list(CONFORMANCE.tables)
    assert (len(report["statuses"]), len(report["failures"])) == (len(cells), 0)


def test_tables_are_chosen_by_name() -> None:
    of = conformance_frames(run(cell()))
    rare = {"cells", "changed", "distribution", "history", "largest", "operators", "together"}
    assert list(CONFORMANCE.make(of)) == [name for name in CONFORMANCE.tables if name not in rare]
    assert list(CONFORMANCE.make(of, ["failures", "statuses"])) == ["statuses", "failures"]

"""Tables of judged cells say what the records say; refusing never helps the score."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.report import conformance, frames, semantics
from attention_conformance.suite.report.kinds import CONFORMANCE, frames_of
from attention_conformance.suite.spec.vocabulary import STATUSES
from tests.rows import cell, frame, run

A, B, C = (f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 4))

BLOCKS = dict(
    block.strip().split("\n", 1)
    for block in Path(__file__).with_name("tables.txt").read_text(encoding="utf-8").split("## ")[1:]
)
"""By "table: what it shows" the cells, an arrow, and the rows of the table. A cell is its case,
implementation and status, then its other fields; a line "run NAME" begins a result file."""


def value(text: str) -> Any:
    """A value in JSON, or a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read(text: str) -> list[Run]:
    """The runs of a block."""
    runs: list[tuple[str, dict[str, Any], list[CellRecord]]] = []
    for first, second, *words in map(shlex.split, text.splitlines()):
        named = second if first == "run" else "run"
        if first == "run" or not runs:
            runs.append((named, {}, []))
        fields = {name: value(x) for name, x in (w.split("=", 1) for w in words if "=" in w)}
        if first == "run":
            runs[-1][1].update(fields)
        else:
            fields |= {"features": tuple(fields["features"])} if "features" in fields else {}
            runs[-1][2].append(cell(first, second, words[0], **fields))
    return [run(*cells, source=name, **fields) for name, fields, cells in runs]


def rows_of(table: str, runs: Iterable[Run], folder: Path) -> list[str]:
    """The rows of a table that the command prints, in Markdown."""
    paths = [str(one.save(folder / Path(one.source).with_suffix(".jsonl"))) for one in runs]
    out = folder / "out.md"
    words = ["--table", table, "--format=markdown", f"--output={out}", "--partial"]
    assert main(["report", *paths, *words]) == 0
    text = out.read_text("utf-8").replace("\\", "").replace(f"{folder}/", "")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ") for line in lines if "---" not in line]


@pytest.mark.parametrize("name", BLOCKS)
def test_a_table_says_what_the_records_say(name: str, tmp_path: Path) -> None:
    given, expected = BLOCKS[name].split("\n->\n")
    assert rows_of(name.partition(":")[0], read(given), tmp_path) == expected.split("\n")


@pytest.mark.parametrize("status", STATUSES)
def test_what_is_unsupported_counts_in_the_coverage_alone(status: str, tmp_path: Path) -> None:
    """The score is of what was asked; refusing shows beside it, whatever judging would have given."""
    judged = run(cell(A), cell(B, status="fail"), cell(C, status=status))
    score, coverage = rows_of("statuses", [judged], tmp_path)[1].split(" | ")[1:3]
    passed = {"pass": "66.66% of 3 of 3", "unsupported": "50.00% of 2 of 3"}
    assert score == passed.get(status, "33.33% of 3 of 3")
    assert coverage == ("66.66%" if status == "unsupported" else "100.00%")


@pytest.mark.parametrize(
    ("broken", "shown"),
    [
        ({"status": "fail", "kind": "value", "error_ratio": 3.0, "grade": "none"}, "none 1 0 3"),
        (
            {"status": "fail", "kind": "value", "error_ratio": 3.0, "grade": "working"},
            "working 1 0 3",
        ),
        ({"status": "known", "kind": "value", "error_ratio": 3.0, "grade": "none"}, "none 1 0 3"),
        ({"status": "fail", "kind": "value", "error_ratio": 3.0}, "none 1 0 3"),
        ({"status": "fail", "kind": "value", "error_ratio": math.nan}, "none 1 0 inf"),
        ({"status": "fail", "kind": "non-finite"}, "none 1 0 inf"),
        ({"status": "fail", "kind": "raised"}, "exact 0 1 0.25"),
        ({"status": "crash", "kind": "crash"}, "exact 0 1 0.25"),
        ({"error_ratio": 0.5}, "exact 0 0 0.5"),
    ],
)
def test_the_accuracy_of_failures(broken: dict[str, Any], shown: str, tmp_path: Path) -> None:
    judged = run(cell(A, error_ratio=0.25, grade="exact"), cell(B, **broken))
    row = rows_of("accuracy", [judged], tmp_path)[1].split(" | ")
    assert " ".join([row[3], row[5], row[6], row[8]]) == shown


@pytest.mark.parametrize(
    ("grades", "widest"),
    [
        (("exact", "fused"), "fused"), (("single", "eager"), "single"), (("none", "single"), "none"),
        (("of-tomorrow", "single"), "of-tomorrow"), (("of-tomorrow", "none"), "none"),
        (("", "exact"), "exact"), (("", ""), ""),
    ],
)  # fmt: skip
def test_the_grade_is_the_widest(grades: tuple[str, str], widest: str) -> None:
    assert {conformance.widest(order) for order in (grades, grades[::-1])} == {widest}


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
    report = CONFORMANCE.of(frames_of(run(*cells)), CONFORMANCE.tables)
    assert list(report) == list(CONFORMANCE.tables)
    assert (len(report["statuses"]), len(report["failures"])) == (len(cells), 0)


def test_tables_are_chosen_by_name() -> None:
    of = frames_of(run(cell()))
    rare = {"cells", "changed", "distribution", "history", "largest", "operators", "together"}
    assert list(CONFORMANCE.of(of)) == [name for name in CONFORMANCE.tables if name not in rare]
    assert list(CONFORMANCE.of(of, ["failures", "statuses"])) == ["statuses", "failures"]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reports_load_no_framework_and_the_command_line_no_pandas() -> None:
    frameworks = {"torch", "tensorflow", "jax", "keras", "pytest"}
    modules = loaded_by("from attention_conformance.suite.report import frames, diff, render, laws")
    assert "pandas" in modules
    assert not modules & frameworks
    commands = loaded_by("import attention_conformance.suite.report.commands")
    assert not commands & (frameworks | {"pandas", "numpy"})

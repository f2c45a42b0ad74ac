"""Reports as files: nothing is lost, cut short or overwritten, in any format; the command line."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.report import DATA_FORMATS, FORMATS, SITE
from attention_conformance.suite.report.kinds import CONFORMANCE, conformance_frames, load_runs
from attention_conformance.suite.report.render import render
from attention_conformance.suite.spec.vocabulary import STATUSES
from tests.rows import cell, elect, header, run

CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 7)]
NASTY = "a | pipe, <b>tag</b>, *star*, \x1b[1mcolour\x1b[0m\nsecond line " + "long " * 60


@pytest.fixture(scope="module")
def report() -> dict[str, pd.DataFrame]:
    cells = [
        cell(c, status=s, message=NASTY, seconds=0.1) for c, s in zip(CASES, STATUSES, strict=True)
    ]
    cells += elect("no-keys", {"f32": "zeros", "f16": "nan"})
    cells += [cell(CASES[0], "jax:jax-nn", error_ratio=1.00001, numerics="fused", grade="none")]
    for name, answer in (("jax:jax-nn", "zeros"), ("tf:eager", "nan"), ("np:x", "zeros")):
        cells += elect("value-size", {"f32": "zeros"}, name) + elect(
            "no-keys", {"f32": answer}, name
        )
    for group, status in (
        ("win", "fail"),
        ("seg", "unsupported"),
        ("pad", "pass"),
        ("pad", "pass"),
    ):
        cells.append(cell(f"sdpa/{len(cells)}", "tf:eager", status, group=group, message=NASTY))
    return CONFORMANCE.make(conformance_frames(run(*cells)), CONFORMANCE.tables)


def test_a_page_stands_alone_and_colours_what_matters(
    report: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    render(report, "html", tmp_path / "r.html", "Title <1>")
    text = (tmp_path / "r.html").read_text()
    assert [*report] == re.findall('<details class="table" id="([^"]*)" open>', text)
    assert not re.findall("<(?:a|script|link|img|iframe|b)[ >]|url\\(|@import|http", text)
    for shown in ("Title &lt;1&gt;", "2.13.0", "abc1234", "level=smoke seed=0"):
        assert shown in text
    entries = {
        (text, classes) for classes, text in re.findall('<td class="([^"]*)">([^<]*)</td>', text)
    }
    assert entries >= {
        ("crash", "crash"), ("error", "error"), ("fail", "fail"), ("known", "known"),
        ("3/7 (1 crash, 1 error, 1 fail, 1 known, 1 unsupported)", "crash"), ("0/1 (1 fail)", "fail"),
        ("0/0 (1 unsupported)", "unsupported"), ("2/2", "pass"), ("&gt;1", "number beyond"),
        ("none", "beyond"), ("nan", " differs"),
    }  # fmt: skip
    assert ("zeros", " differs") not in entries


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"max": [1.00001, 1.0, 0.99999999, math.inf]}, [">1", "1", "1", "inf"]),
        ({"score": [0.999999, 1.0, 0.0]}, ["99.99%", "100.00%", "0.00%"]),
        ({"score": [math.nan], "coverage": [0.0]}, ["-", "0.00%"]),
        ({"other": [None, math.nan, True]}, ["yes"]),
    ],
)
def test_figures_do_not_flatter(
    columns: dict[str, list[object]], shown: list[str], tmp_path: Path
) -> None:
    render({"t": pd.DataFrame(columns)}, "text", tmp_path / "r.txt")
    assert (tmp_path / "r.txt").read_text().split()[-len(shown) :] == shown


@pytest.mark.parametrize("fmt", DATA_FORMATS)
def test_data_formats_hold_the_figures_as_they_are(
    report: dict[str, pd.DataFrame], tmp_path: Path, fmt: str
) -> None:
    render(report, fmt, tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {f"{name}.{fmt}" for name in report}
    read = pd.read_csv if fmt == "csv" else pd.read_parquet
    back = read(tmp_path / "out" / f"cells.{fmt}")
    assert back["error_ratio"].max() == 1.00001
    assert back["message"].iloc[0] == NASTY
    scores = read(tmp_path / "out" / f"statuses.{fmt}").set_index("implementation")["score"]
    assert scores["torch:sdpa"] == 3 / 7
    assert read(tmp_path / "out" / f"accuracy.{fmt}").columns[:2].tolist() == [
        "implementation",
        "dtype",
    ]


def test_no_text_in_csv_is_taken_for_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+cmd", "-2+3", "@sum", "\tx", "-", "-0.5", "plain", ""]
    shown = pd.DataFrame({"text": texts, "=figure": [-0.5, *[math.nan] * 8]})
    render({"t": shown}, "csv", tmp_path / "out")
    back = pd.read_csv(tmp_path / "out" / "t.csv", dtype=str, keep_default_na=False)
    assert back["text"].tolist() == [
        "'=1+1", "'+cmd", "'-2+3", "'@sum", "'\tx", "-", "-0.5", "plain", ""
    ]  # fmt: skip
    assert back["'=figure"].tolist() == ["-0.5", *[""] * 8]


@pytest.mark.parametrize("operator", ["sdpa", "of another version"])
@pytest.mark.parametrize("fmt", [*FORMATS, SITE])
def test_every_format_is_written_and_nothing_overwritten(
    tmp_path: Path, fmt: str, operator: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run(cell(), cell(CASES[0], operator=operator)).save(tmp_path / "r.jsonl")
    words = ["report", str(path), "--format", fmt]
    folder = fmt in (*DATA_FORMATS, SITE)
    assert main([*words, f"--output={tmp_path / 'out'}"]) == 0
    assert (tmp_path / "out").is_dir() == folder
    (tmp_path / "file").write_text("precious")
    for taken in ("out", "file"):
        assert main([*words, f"--output={tmp_path / taken}"]) == 2
        assert ("absent or empty" if folder else "not overwritten") in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "precious"
    assert main(words) == (2 if folder else 0)
    assert ("torch:sdpa" in capsys.readouterr().out) != folder
    (tmp_path / "empty").mkdir()
    if folder:
        assert main([*words, f"--output={tmp_path / 'empty'}"]) == 0


def test_report_refuses_what_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(run(cell()).save(tmp_path / "good.jsonl"))
    cut = str(run(cell(), complete=False).save(tmp_path / "cut.jsonl"))
    for words, says in (
        ((str(tmp_path / "absent.jsonl"),), "NotARecordFile"),
        ((cut,), "TruncatedRun"),
        ((good, good), "given twice"),
        ((good, "--table", "speedup"), "these tables need records of speed"),
    ):
        assert main(["report", *words]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.out == ""
    with pytest.raises(SystemExit) as stopped:
        main(["report", good, "--table", "nosuch"])
    assert stopped.value.code == 2


def test_report_merges_shards_and_needs_all_of_them(tmp_path: Path) -> None:
    one, two, other = cell(CASES[0]), cell(CASES[1]), cell(CASES[2], "jax:jax-nn")
    whole = {"digest": header(one, two).digest, "cells": 2}
    second = run(two, shard="2/2", **whole)
    newer = run(two, shard="2/2", versions={"torch": "2.14.0"}, **whole)
    made = {"1": run(one, shard="1/2", **whole), "2": second, "3": run(other), "4": newer}
    paths = {name: one.save(tmp_path / f"{name}.jsonl") for name, one in made.items()}
    merged, third = load_runs([paths[name] for name in "132"])
    assert set(merged.cells) == {one, two}
    assert (third.cells, third.source) == ((other,), str(paths["3"]))
    for names in ("13", "14"):
        assert main(["report", *(str(paths[name]) for name in names)]) == 2
    assert [r.cells for r in load_runs([paths["1"], paths["3"]], partial=True)] == [
        (one,),
        (other,),
    ]

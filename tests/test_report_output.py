"""Reports as files: nothing is lost, cut short or overwritten, in any format; the command line."""

from __future__ import annotations

import argparse
import io
import math
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from attention_conformance.suite.report import FORMATS, SITE
from attention_conformance.suite.report.commands import add_diff_parser, add_report_parser
from attention_conformance.suite.report.kinds import (
    CONFORMANCE,
    KINDS,
    TABLES,
    frames_of,
    load_runs,
)
from attention_conformance.suite.report.render import render
from attention_conformance.suite.spec.vocabulary import STATUSES
from tests.rows import cell, elect, header, run

CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 7)]


NASTY = "a | pipe, <b>tag</b>, *star*, \x1b[1mcolour\x1b[0m\nsecond line " + "long " * 60


@pytest.fixture
def report() -> dict[str, pd.DataFrame]:
    cells = [
        cell(c, status=s, message=NASTY, seconds=0.1) for c, s in zip(CASES, STATUSES, strict=True)
    ]
    cells += elect("no-keys", {"f32": "zeros", "f16": "nan"})
    cells += [cell(CASES[0], "jax:jax-nn", error_ratio=1.00001, numerics="fused", grade="none")]
    for group, status in (
        ("win", "fail"),
        ("seg", "unsupported"),
        ("pad", "pass"),
        ("pad", "pass"),
    ):
        cells.append(cell(f"sdpa/{len(cells)}", "tf:eager", status, group=group, message=NASTY))
    return CONFORMANCE.of(frames_of(run(*cells)), CONFORMANCE.tables)


def test_text_is_complete_and_aligned(report: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    render(report, "text", tmp_path / "r.txt")
    text = (tmp_path / "r.txt").read_text()
    assert "long " * 59 + "long" in text
    assert "..." not in text
    assert "*star*, colour second line" in text
    title, rule, first, second = text[text.index("\nStatuses\n") :].splitlines()[5:9]
    assert title.split() == ["implementation", "score", "coverage", "cells", *STATUSES]
    assert " 42.85% of 7 of 8    87.50%      8     3 " in first
    assert first.split()[-5:] == ["1", "1", "1", "1", "1"]
    assert second.split()[:7] == ["jax:jax-nn", "100.00%", "of", "1", "of", "1", "100.00%"]
    assert second.split()[8:] == ["1", "0", "0", "0", "0", "0"]
    assert len(title) == len(rule) == len(first) == len(second)
    assert title.index("score") + 5 == first.index("42.85% of 7 of 8") + 16


def test_markdown_tables_keep_their_columns(
    report: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    render(report, "markdown", tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    failures = text[text.index("## Failures") :].split("\n\n")[2].splitlines()
    assert failures[1] == "| --- | --- | --- | --- | --- | ---: | --- |"
    assert len(failures) == 2 + 5
    for line in failures:
        assert line.replace("\\|", "").count("|") == 8
    assert "\\<b\\>tag" in failures[2]


class _Page(HTMLParser):
    """Collects ids, links, tags and the entries of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.entries: list[tuple[str, str]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        values = dict(attributes)
        self.tags.append(tag)
        self.ids.add(values.get("id", ""))
        self.links += [values[n] for n in ("href", "src") if n in values]
        self._open = tag == "td"
        if self._open:
            self.entries.append(("", values.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.entries[-1] = (self.entries[-1][0] + data, self.entries[-1][1])


def test_the_page_stands_alone(report: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    render(report, "html", tmp_path / "r.html", "Title <1>")
    text = (tmp_path / "r.html").read_text()
    page = _Page(text)
    assert page.links == [f"#{name}" for name in report]
    assert set(report) <= page.ids
    assert not {"script", "link", "img", "iframe", "b"} & set(page.tags)
    assert not [word for word in ("url(", "@import", "http") if word in text]
    assert "Title &lt;1&gt;" in text
    for shown in ("2.13.0", "abc1234", "level=smoke seed=0"):
        assert shown in text


def test_the_page_colours_what_matters(report: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    render(report, "html", tmp_path / "r.html")
    entries = _Page((tmp_path / "r.html").read_text()).entries
    for status in ("crash", "error", "fail", "known"):
        assert (status, f"is-{status}") in entries
    assert ("3/7 (1 crash, 1 error, 1 fail, 1 known, 1 unsupported)", "is-crash") in entries
    assert ("0/1 (1 fail)", "is-fail") in entries
    assert ("0/0 (1 unsupported)", "is-unsupported") in entries
    assert ("2/2", "is-pass") in entries
    assert (">1", "number beyond") in entries
    assert ("none", "beyond") in entries


def test_the_page_marks_elections_that_differ_from_the_usual_one(tmp_path: Path) -> None:
    names = ("torch:sdpa", "tf:eager", "jax:jax-nn", "numpy:definition")
    answers = ("zeros", "nan", "zeros", "unsupported")
    cells = [
        record
        for name, answer in zip(names, answers, strict=True)
        for record in elect("no-keys", {"f32": answer}, name)
    ]
    render(CONFORMANCE.of(frames_of(run(*cells)), ["elections"]), "html", tmp_path / "r.html")
    entries = _Page((tmp_path / "r.html").read_text()).entries
    assert [text for text, classes in entries if "differs" in classes] == ["nan"]


def test_a_ratio_just_beyond_its_bound_does_not_read_one(tmp_path: Path) -> None:
    shown = {"t": pd.DataFrame({"max": [1.00001, 1.0, 0.99999999, math.inf]})}
    render(shown, "text", tmp_path / "r.txt")
    assert (tmp_path / "r.txt").read_text().split()[-4:] == [">1", "1", "1", "inf"]


def test_only_a_perfect_score_reads_100_percent(tmp_path: Path) -> None:
    render({"t": pd.DataFrame({"score": [0.999999, 1.0, 0.0]})}, "text", tmp_path / "r.txt")
    assert (tmp_path / "r.txt").read_text().split()[-3:] == ["99.99%", "100.00%", "0.00%"]


def test_no_score_is_a_dash_and_not_0_percent(tmp_path: Path) -> None:
    shares = {"score": [math.nan, 0.0], "coverage": [0.0, 1.0]}
    render({"t": pd.DataFrame(shares)}, "text", tmp_path / "r.txt")
    assert (tmp_path / "r.txt").read_text().split()[-4:] == ["-", "0.00%", "0.00%", "100.00%"]


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
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
    assert scores.to_dict() == {"torch:sdpa": 3 / 7, "jax:jax-nn": 1.0, "tf:eager": 2 / 3}
    accuracy = read(tmp_path / "out" / f"accuracy.{fmt}")
    assert accuracy.columns[:2].tolist() == ["implementation", "dtype"]


def test_no_text_in_csv_is_taken_for_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+cmd", "-2+3", "@sum", "\tx", "-", "-0.5", "plain", ""]
    shown = pd.DataFrame({"text": texts, "=figure": [-0.5, *[math.nan] * 8]})
    render({"t": shown}, "csv", tmp_path / "out")
    back = pd.read_csv(tmp_path / "out" / "t.csv", dtype=str, keep_default_na=False)
    assert back["text"].tolist() == [
        "'=1+1", "'+cmd", "'-2+3", "'@sum", "'\tx", "-", "-0.5", "plain", ""
    ]  # fmt: skip
    assert back["'=figure"].tolist() == ["-0.5", *[""] * 8]


def test_every_table_belongs_to_one_kind_of_results() -> None:
    assert len(TABLES) == sum(len(kind.tables) for kind in KINDS)
    for kind in KINDS:
        assert all(table.name == name for name, table in kind.tables.items())


@pytest.mark.parametrize("fmt", ["text", "markdown", "html"])
def test_files_are_never_overwritten(
    report: dict[str, pd.DataFrame], tmp_path: Path, fmt: str
) -> None:
    (tmp_path / "r").write_text("precious")
    with pytest.raises(FileExistsError, match="not overwritten"):
        render(report, fmt, tmp_path / "r")
    assert (tmp_path / "r").read_text() == "precious"


@pytest.mark.parametrize("fmt", ["csv", "parquet"])
def test_folders_must_be_absent_or_empty(
    report: dict[str, pd.DataFrame], tmp_path: Path, fmt: str
) -> None:
    render(report, fmt, tmp_path / "absent" / "deep")
    (tmp_path / "empty").mkdir()
    render(report, fmt, tmp_path / "empty")
    (tmp_path / "file").write_text("precious")
    for taken in ("empty", "file"):
        with pytest.raises(FileExistsError, match="absent or empty"):
            render(report, fmt, tmp_path / taken)
    assert (tmp_path / "file").read_text() == "precious"


def test_formats_that_cannot_be_written(report: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'pdf'; valid: text"):
        render(report, "pdf", tmp_path / "r")
    with pytest.raises(ValueError, match="folder"):
        render(report, "csv")


def test_stdout_is_where_text_goes(report: dict[str, pd.DataFrame], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    render({"statuses": report["statuses"]}, "text")
    assert "torch:sdpa" in out.getvalue()


# --- command line


def command(*words: object) -> int:
    parser = argparse.ArgumentParser(prog="suite")
    subparsers = parser.add_subparsers(required=True)
    add_report_parser(subparsers)
    add_diff_parser(subparsers)
    args = parser.parse_args([str(w) for w in words])
    return args.run(args)


def test_report_prints_the_chosen_tables(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = run(cell(), cell(CASES[1], status="fail")).save(tmp_path / "r.jsonl")
    assert command("report", path, "--table", "statuses", "--format", "markdown") == 0
    out = capsys.readouterr().out
    assert "| torch:sdpa | 50.00% of 2 of 2 | 100.00% | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in out
    assert "## Failures" not in out


@pytest.mark.parametrize("operator", ["sdpa", "of another version"])
@pytest.mark.parametrize("fmt", [*FORMATS, SITE])
def test_report_writes_every_format(tmp_path: Path, fmt: str, operator: str) -> None:
    path = run(cell(), cell(CASES[0], operator=operator)).save(tmp_path / "r.jsonl")
    out = tmp_path / "out"
    assert command("report", path, "--format", fmt, "--output", out) == 0
    assert out.is_dir() == (fmt in ("csv", "parquet", SITE))
    assert command("report", path, "--format", fmt, "--output", out) == 2


def test_report_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good = run(cell()).save(tmp_path / "good.jsonl")
    cut = run(cell(), complete=False).save(tmp_path / "cut.jsonl")
    for words, says in (
        ((tmp_path / "absent.jsonl",), "NotARecordFile"),
        ((cut,), "TruncatedRun"),
        ((good, good), "given twice"),
        ((good, "--format", "csv"), "--output"),
        ((good, "--table", "speedup"), "these tables need records of speed"),
    ):
        assert command("report", *words) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert captured.out == ""
    assert command("report", cut, "--partial") == 0
    assert "unfinished: 1 of 1 cells" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        command("report", good, "--table", "nosuch")
    assert stopped.value.code == 2


def test_report_merges_shards_and_needs_all_of_them(tmp_path: Path) -> None:
    one, two, other = cell(CASES[0]), cell(CASES[1]), cell(CASES[2], "jax:jax-nn")
    whole = {"digest": header(one, two).digest, "cells": 2}
    first = run(one, shard="1/2", **whole).save(tmp_path / "1.jsonl")
    second = run(two, shard="2/2", **whole).save(tmp_path / "2.jsonl")
    beside = run(other).save(tmp_path / "3.jsonl")
    merged, third = load_runs([first, beside, second])
    assert set(merged.cells) == {one, two}
    assert (third.cells, third.source) == ((other,), str(beside))
    assert command("report", first, beside) == 2
    assert [r.cells for r in load_runs([first, beside], partial=True)] == [(one,), (other,)]
    elsewhere = run(two, shard="2/2", versions={"torch": "2.14.0"}, **whole).save(
        tmp_path / "4.jsonl"
    )
    assert command("report", first, elsewhere) == 2


def test_diff_exits_with_one_on_new_failures_only(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    good = run(cell(), cell(CASES[1])).save(tmp_path / "good.jsonl")
    bad = run(cell(), cell(CASES[1], status="fail", message="far off"), commit="def5678").save(
        tmp_path / "bad.jsonl"
    )
    assert command("diff", good, bad) == 1
    out = capsys.readouterr().out
    for shown in ("new failure", CASES[1], "far off", "abc1234", "def5678"):
        assert shown in out
    assert command("diff", bad, good) == 0
    assert command("diff", good, good) == 0
    stranger = run(cell(device="cuda", status="fail")).save(tmp_path / "gpu.jsonl")
    for words in ((good, tmp_path / "absent"), (good, stranger), (good, bad, "--format", "csv")):
        assert command("diff", *words) == 2
    assert command("diff", good, bad, "--format", "html", "--output", tmp_path / "d.html") == 1
    assert "new failure" in (tmp_path / "d.html").read_text()


def test_diff_maps_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    old = run(cell(), cell(implementation="torch:math")).save(tmp_path / "old.jsonl")
    new = run(cell(implementation="torch:flash", status="fail")).save(tmp_path / "new.jsonl")
    assert command("diff", old, new) == 2
    assert command("diff", old, new, "--map", "torch:sdpa=flash") == 1
    assert "flash" in capsys.readouterr().out
    assert command("diff", old, new, "--map", "fast=flash") == 2
    assert "'fast' is not in it; valid: torch:sdpa, torch:math" in capsys.readouterr().err
    assert command("diff", old, new, "--map", "sdpa=flash", "--map", "sdpa=flash") == 2
    with pytest.raises(SystemExit):
        command("diff", old, new, "--map", "flash")
    assert "expected OLD=NEW, got 'flash'" in capsys.readouterr().err

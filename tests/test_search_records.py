"""The result file of a search: what was found, also if the process that searched died."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.suite.records import searches
from tests.processes import Done, python

pytest.importorskip("hypothesis")

SMALLEST = "sdpa/none/mha/f32/b1h1q1k1d1"
DEADLY = "sdpa/none/mha/f32/b2h3q5k17d8"


def search(results: Path, *words: str) -> Done:
    asked = ("--dtype=f32", "--no-gradients", *words, f"--results={results}")
    return python("-m", "suite", "search", *asked)


def test_what_is_found_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    words = ("--backend=tests.miniatures:always_wrong", "--examples=5", "--seed=3")
    assert search(path, *words).returncode == 1
    run = searches.load(path)
    (found,) = run.records
    assert (found.implementation, found.check, found.status) == (
        "mini:alwayswrong",
        "values",
        "fail",
    )
    assert (found.case, found.dtype) == (SMALLEST, "f32")
    assert found.times == run.header.statuses["fail"] > 1
    assert run.header.examples == 5
    assert (run.header.options["seed"], run.header.options["gradients"]) == (3, False)
    again = search(path, *words)
    assert (again.returncode, f"--results={path} exists; name a new file" in again.stderr) == (
        2,
        True,
    )


def test_a_case_that_ends_the_process_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    done = search(path, "--backend=tests.unruly:aborts", f"--case={DEADLY}")
    assert (done.returncode, "died of SIGABRT" in done.stderr) == (1, True)
    run = searches.load(path)
    (found,) = run.records
    assert (found.implementation, found.status, found.kind) == ("mini:unruly", "crash", "crash")
    assert found.case == DEADLY

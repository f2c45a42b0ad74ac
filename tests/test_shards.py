"""A part of a run: its exit code, and what it says where it holds nothing."""

from __future__ import annotations

from pathlib import Path

from attention_conformance.suite.records import cells as records
from tests.processes import run
from tests.test_front_door import ONE_FILE


def test_a_part_of_a_run_without_cells_is_green_and_says_so(tmp_path: Path) -> None:
    results = tmp_path / "part.jsonl"
    words = ("--backend=numpy", "--level=smoke", "--shard=3/100000", f"--results={results}")
    out = run(ONE_FILE, *words, "-n", "1")
    assert out.returncode == 0, out.stdout
    loaded = records.load(results)
    assert loaded.complete
    assert not loaded.cells
    assert f"part 3/100000 of the {loaded.header.cells} cells holds none" in out.stdout


def test_a_part_of_a_run_in_which_everything_is_refused_does_not_pass() -> None:
    words = ("--backend=tests.miniatures:refuses", "--level=smoke", "--shard=1/2")
    out = run(ONE_FILE, *words)
    assert out.returncode == 1
    assert "no cell passed: the run fails" in out.stdout

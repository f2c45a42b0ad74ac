"""Enough: a run in which little was judged is no green one, and a score stands beside its coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.coverage import (
    MIN_JUDGED_SHARE,
    NOT_JUDGED_ENOUGH,
    score_text,
    shortfalls,
)
from attention_conformance.suite.report.summary import summary_lines
from attention_conformance.suite.spec.vocabulary import REFUSED
from tests.processes import Done, run
from tests.rows import cell
from tests.rows import run as made

torch = pytest.importorskip("torch")


def function(name: str, *words: str, files: str = "suite/test_values.py") -> Done:
    """`pytest suite`, or one of its files, on a function at smoke in float32 and float64."""
    return run(
        files, "--level=smoke", "--dtype=f32", "--dtype=f64", "--backend=torch",
        f"--function=tests/functions/partly.py:{name}", *words,
    )  # fmt: skip


def test_a_run_that_judged_too_little_is_red() -> None:
    out = function("merges_without_weights", "-n", "1")
    assert out.returncode == pytest.ExitCode.TESTS_FAILED, out.stdout[-3000:]
    assert "not judged enough: torch:merges_without_weights: " in out.stdout


def test_what_a_run_says_that_judged_too_little(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    out = function("decodes", f"--results={path}", files="suite")
    assert out.returncode == NOT_JUDGED_ENOUGH
    loaded = records.load(path)
    judged = len(loaded.cells) - loaded.totals["unsupported"]
    refused = sum(c.kind == REFUSED for c in loaded.cells)
    (text,) = (x for x in out.stdout.splitlines() if x.startswith("not judged enough"))
    score = score_text(judged, judged, len(loaded.cells))
    assert score == f"100.00% of the {judged} of {len(loaded.cells)} cells that were judged"
    assert text.startswith(f"not judged enough: torch:decodes: {score}. None of its ")
    assert f"It refused {refused} of the {judged + refused} cells that its signature" in text
    assert "It refused every case of more than one query: claim queries=1 to be judged" in text


def cells(judged: int, refused: int, lacking: int = 0, **fields: Any) -> list[CellRecord]:
    """Cells of a function `f`: passes, refusals, and what its signature lets nobody ask."""
    statuses = ["pass"] * judged + ["unsupported"] * (refused + lacking)
    kinds = [""] * judged + [REFUSED] * refused + [""] * lacking
    return [
        cell(f"sdpa/none/mha/f32/b2h3q5k{k}d8", "torch:f", status, kind=kind, **fields)
        for k, (status, kind) in enumerate(zip(statuses, kinds, strict=True))
    ]


def test_half_of_what_could_be_asked_is_enough() -> None:
    assert MIN_JUDGED_SHARE == 0.5
    assert shortfalls(cells(2, 2, lacking=9), ["f"]) == []
    (text,) = shortfalls(cells(2, 3, lacking=9), ["f"])
    assert text.startswith(
        "torch:f: 100.00% of the 2 of 14 cells that were judged. It refused 3 of the 5 "
    )
    assert "Claim what the function supports" in text
    assert shortfalls(cells(2, 3), ["f"], allow_refusals=True) == []


def test_a_function_is_judged_by_values() -> None:
    none = cells(0, 0, lacking=2, message="no parameters") + cells(5, 0, check="contract")
    (text,) = shortfalls(none, ["f"], allow_refusals=True)
    sentence = (
        "None of its 2 cells of the check values was judged; most frequent reason: no parameters."
    )
    assert sentence in text
    assert shortfalls(none, ["f"], filtered=True)
    assert shortfalls(none, ["f"], part=True) == []  # another part may have some
    assert shortfalls(cells(0, 2) + cells(5, 0, check="contract"), ["f"], part=True)
    assert shortfalls(cells(5, 0, check="contract"), ["f"]) == []  # none is owed


def test_a_whole_backend_is_judged_by_values() -> None:
    none = cells(0, 0, lacking=2) + cells(5, 0, check="contract")
    assert shortfalls(none, [])
    assert shortfalls(none, [], filtered=True) == []
    assert shortfalls([*none, cell("sdpa/none/mha/f32/b1h1q1k1d1", "torch:other")], []) == []
    compiled = cells(0, 0, lacking=2, mode="compiled") + cells(5, 0, check="contract")
    assert shortfalls(compiled, []) == []


def test_a_run_says_what_share_was_refused() -> None:
    text = summary_lines(made(*cells(1, 3, lacking=9)).cells, {})
    assert "torch:f: judged on 25.00% of its cells: it refused 3 of 4 cells" in text
    assert not any(
        "refused" in line for line in summary_lines(made(*cells(4, 0, lacking=9)).cells, {})
    )

"""Enough: a run in which little was judged is no green one, and a score stands beside its coverage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance import check_attention
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.coverage import (
    MIN_JUDGED_SHARE,
    NOT_JUDGED_ENOUGH,
    score_text,
    shortfalls,
)
from attention_conformance.suite.report import frames
from attention_conformance.suite.report.conformance import OF_STATUSES
from attention_conformance.suite.report.render import as_html, as_markdown, as_text
from attention_conformance.suite.report.summary import statuses, summary_lines, tables, verdict
from attention_conformance.suite.spec.vocabulary import REFUSED
from tests.functions import partly
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


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("merges_without_weights", ("-n", "1"), pytest.ExitCode.TESTS_FAILED),
        ("of_float64", ("--allow-refusals",), pytest.ExitCode.OK),
    ],
)
def test_runs_are_green_where_enough_was_judged(
    name: str, words: tuple[str, ...], code: int
) -> None:
    out = function(name, *words)
    assert out.returncode == code, out.stdout[-3000:]
    too_little = code != pytest.ExitCode.OK
    assert (f"not judged enough: torch:{name}: " in out.stdout) == too_little


@pytest.mark.parametrize(
    ("name", "said", "status", "enough"),
    [
        ("merges_without_weights", {}, "fail", False),
        ("merges_without_weights_and_says_so", {}, "fail", True),
        ("of_float64", {"dtypes": ("f64",)}, "pass", True),
    ],
)
def test_functions_are_green_where_enough_was_judged(
    name: str, said: dict[str, Any], status: str, enough: bool
) -> None:
    said = {"dtypes": ("f32", "f64")} | said
    report = check_attention(getattr(partly, name), raises=False, **said)
    assert bool(report.run.totals["fail"]) == (status == "fail")
    assert report.passed == (status == "pass")
    assert bool(report.shortfalls) != enough


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
    assert "torch:f: judged on 25.00% of what it could be asked: it refused 3 of 4 cells" in text
    assert not any(
        "refused" in line for line in summary_lines(made(*cells(4, 0, lacking=9)).cells, {})
    )


def test_scores_stand_beside_their_coverage() -> None:
    few = made(*cells(3, 5, lacking=2))
    assert verdict(few).endswith("100.00% of the 3 of 10 cells that were judged (7 unsupported)")
    assert statuses(few) == []
    shown = {"statuses": OF_STATUSES.of(frames.cells(few))}
    for text in ("\n".join(tables(few)), as_text(shown, ""), as_markdown(shown, "")):
        assert "100.00% of 3 of 10" in text
    page = as_html(shown, "")
    assert "100.00% of 3 of 10" in page
    assert score_text(0, 0, 4) == "none of the 4 cells was judged"

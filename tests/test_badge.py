"""Badges of runs: the verdict, its colour, and refusals of runs that are not whole."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.report.badge import COLOURS
from tests.rows import cell, run

CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 5)]


def cells_of(statuses: list[str], names: str = "") -> list[CellRecord]:
    """A case for each status; "refused" is a cell that a function refused."""
    return [
        cell(
            case, f"torch:{name}", "unsupported" if status == "refused" else status,
            kind="refused" if status == "refused" else "",
        )
        for case, status, name in zip(CASES, statuses, names.ljust(len(statuses), "a"), strict=False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "names", "functions", "said"),
    [
        (["pass", "known", "unsupported"], "", [], "right, 2 of 3 judged"),
        (["pass", "fail", "unsupported"], "", [], "wrong, 2 of 3 judged"),
        (["pass", "crash"], "", [], "wrong, 2 of 2 judged"),
        (["pass", "error"], "", [], "broken, 2 of 2 judged"),
        (["unsupported"], "", [], "not judged enough, 0 of 1 judged"),
        (["unsupported"] * 2, "", ["k.py:a"], "not judged enough, 0 of 2 judged"),
        (["pass", *["refused"] * 3], "", ["k.py:a"], "not judged enough, 1 of 4 judged"),
        ([*["pass"] * 3, "refused"], "aaab", ["k.py:a", "k.py:b"], "not judged enough, 3 of 4 judged"),
    ],
)  # fmt: skip
def test_a_badge_says_the_verdict(
    statuses: list[str], names: str, functions: list[str], said: str, tmp_path: Path
) -> None:
    judged = run(*cells_of(statuses, names), options={"function": functions})
    path, badge = judged.save(tmp_path / "run.jsonl"), tmp_path / "badge.svg"
    assert main(["report", str(path), f"--badge={badge}"]) == 0
    picture = badge.read_text("utf-8")
    ElementTree.fromstring(picture)
    assert f"<title>attention: {said}</title>" in picture
    assert re.findall(r"<text[^>]*>([^<]*)</text>", picture) == ["attention", said]
    assert set(re.findall('fill="(#.{6})"', picture)) == {COLOURS[said.partition(",")[0]]}


def test_three_badges_say_verdict_precision_and_coverage(tmp_path: Path) -> None:
    judged = [
        cell(CASES[0], grade="exact"),
        cell(CASES[1], grade="fused"),
        cell(CASES[2], grade="eager", check="contract"),
        cell(CASES[3], status="known", kind="value", grade="none"),
        cell(CASES[0], status="unsupported", implementation="torch:other"),
        cell(CASES[0].replace("f32", "bf16"), dtype="bf16", grade="eager"),
    ]
    run(*judged).save(tmp_path / "run.jsonl")
    folder = tmp_path / "badges"
    assert main(["report", str(tmp_path / "run.jsonl"), f"--badges={folder}"]) == 0
    said = {
        path.stem: re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text("utf-8"))
        for path in folder.iterdir()
    }
    assert said == {
        "right": ["attention", "right"],
        "precision": ["precision", "f32 fused, bf16 eager"],
        "coverage": ["coverage", "83.33% of 6 cells"],
    }
    assert main(["report", str(tmp_path / "run.jsonl"), f"--badges={folder}"]) == 2


@pytest.mark.parametrize("part", [{"partial": True}, {"complete": False}])
def test_a_badge_needs_a_whole_run(
    part: dict[str, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, badge = run(cell(CASES[0]), **part).save(tmp_path / "run.jsonl"), tmp_path / "badge.svg"
    assert main(["report", str(path), "--partial", f"--badge={badge}"]) == 2
    assert "a badge needs a whole run" in capsys.readouterr().err
    assert not badge.exists()

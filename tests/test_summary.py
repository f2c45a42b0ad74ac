"""A run ends with a verdict and facts that the records say, and has a badge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.findings import manifests
from attention_conformance.suite.report.badge import COLOURS
from attention_conformance.suite.report.summary import statuses, summary_lines, tables, verdict
from tests.rows import cell, run

CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 4)]


def test_textbook_code_is_one_line_unless_it_fails() -> None:
    names = ("torch:eager", "torch:sdpa", "torch:paged")
    cells = [cell(case, name) for case in CASES for name in names]
    textbook = {"controls": ("torch:eager", "torch:paged")}

    def rows(*cells: CellRecord, **fields: Any) -> list[str]:
        return [line.split()[0] for line in statuses(run(*cells, **fields)) if "%" in line]

    assert rows(*cells) == [*names]
    assert rows(*cells, **textbook) == ["torch:sdpa", "2"]
    assert statuses(run(*cells, **textbook))[-1] == (
        "2 of 2 textbook implementations are right; score 100.00% of the 6 of 6 cells that were judged; "
        "-v shows each"
    )
    known = cell(CASES[0], "torch:eager", "known", seed=1)
    assert rows(*cells, known, **textbook) == ["torch:sdpa", "torch:eager", "1"]
    assert rows(*cells[::3], *cells[2::3], **textbook) == ["torch:eager", "torch:paged"]
    every = [line.split()[0] for line in tables(run(*cells, **textbook)) if "100.00%" in line]
    assert every == ["torch:sdpa", "torch:eager", "torch:paged"]


def test_known_failures_are_summed_up_by_finding() -> None:
    (name, entry), *_ = [
        (name, entry)
        for name, (_, entries) in manifests().items()
        for entry in entries
        if entry.finding and "*" not in entry.implementation[0] + entry.check[0]
    ]
    case = entry.case[0].replace("*", "x").replace("?", "x")
    who, cited = (
        f"{name}:{entry.implementation[0]}",
        {"check": entry.check[0], "message": f"[{entry.cause}; x]"},
    )
    known = [cell(case, who, "known", **cited), cell(case, who, "known", seed=1, **cited)]
    other = cell(case, "mine:sdpa", "known", message="far [my own cause; none found]")
    head, first, second, _ = [*summary_lines(run(*known, other).cells, {}), ""]
    assert head == "known failures: 3 cells, by finding (docs/findings):"
    assert first.startswith(f"     2  {entry.finding}: ")
    assert first.endswith(f" ({who})")
    assert second == "     1  my own cause (mine:sdpa)"


FOUR_CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 5)]


def cells_of(statuses: list[str], names: str = "") -> list[CellRecord]:
    """A case for each status; "refused" is a cell that a function refused."""
    return [
        cell(
            case, f"torch:{name}", "unsupported" if status == "refused" else status,
            kind="refused" if status == "refused" else "",
        )
        for case, status, name in zip(FOUR_CASES, statuses, names.ljust(len(statuses), "a"), strict=False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "names", "functions", "line", "said"),
    [
        (["pass", "known", "unsupported"], "", [],
         "RIGHT: 1 of 2 judged cells of torch:a pass; score 50.00%", "right, 2 of 3 judged"),
        (["pass", "fail", "unsupported"], "", [],
         "WRONG: 1 of 2 judged cells of torch:a fails; score 50.00%", "wrong, 2 of 3 judged"),
        (["pass", "error"], "", [],
         "BROKEN: 1 of 2 judged cells of torch:a fails; score 50.00%", "broken, 2 of 2 judged"),
        (["unsupported"], "", [],
         "NOT JUDGED ENOUGH: 0 of 0 judged cells of torch:a pass", "not judged enough, 0 of 1 judged"),
        (["pass", *["refused"] * 3], "", ["k.py:a"],
         "NOT JUDGED ENOUGH: 1 of 1 judged cells of torch:a pass", "not judged enough, 1 of 4 judged"),
        ([*["pass"] * 3, "refused"], "aaab", ["k.py:a", "k.py:b"], "NOT JUDGED ENOUGH: ",
         "not judged enough, 3 of 4 judged"),
    ],
)  # fmt: skip
def test_a_line_and_a_badge_say_the_verdict(
    statuses: list[str], names: str, functions: list[str], line: str, said: str, tmp_path: Path
) -> None:
    judged = run(*cells_of(statuses, names), options={"function": functions})
    shortfalls = ["too little"] if functions else []
    assert verdict(judged, shortfalls).startswith(line)
    path, badge = judged.save(tmp_path / "run.jsonl"), tmp_path / "badge.svg"
    assert main(["report", str(path), f"--badge={badge}"]) == 0
    picture = badge.read_text("utf-8")
    ElementTree.fromstring(picture)
    assert f"<title>attention: {said}</title>" in picture
    assert re.findall(r"<text[^>]*>([^<]*)</text>", picture) == ["attention", said]
    assert set(re.findall('fill="(#.{6})"', picture)) == {COLOURS[said.partition(",")[0]]}


def test_three_badges_say_verdict_precision_and_coverage(tmp_path: Path) -> None:
    judged = [
        cell(FOUR_CASES[0], grade="exact"),
        cell(FOUR_CASES[1], grade="fused"),
        cell(FOUR_CASES[2], grade="eager", check="contract"),
        cell(FOUR_CASES[3], status="known", kind="value", grade="none"),
        cell(FOUR_CASES[0], status="unsupported", implementation="torch:other"),
        cell(FOUR_CASES[0].replace("f32", "bf16"), dtype="bf16", grade="eager"),
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
    path, badge = (
        run(cell(FOUR_CASES[0]), **part).save(tmp_path / "run.jsonl"),
        tmp_path / "badge.svg",
    )
    assert main(["report", str(path), "--partial", f"--badge={badge}"]) == 2
    assert "a badge needs a whole run" in capsys.readouterr().err
    assert not badge.exists()

"""Diff: every change is named for what it is, and only new failures fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.report.diff import (
    CHANGES,
    NothingInCommon,
    UnknownImplementation,
    compare_runs,
    new_failures,
    summary,
    with_renamed_implementations,
)
from attention_conformance.suite.spec.vocabulary import BROKEN, STATUSES
from tests.rows import cell, elect, run

SAME = cell("sdpa/causal/mha/f32/b1h1q2k2d8")
CASE = "sdpa/none/mha/f32/b2h3q5k7d8"


def changes(old: Run, new: Run) -> list[tuple[str, str]]:
    frame = compare_runs(old, new)
    return list(zip(frame["case"], frame["change"], strict=True))


@pytest.mark.parametrize("old", [*STATUSES, None])
@pytest.mark.parametrize("new", [*STATUSES, None])
def test_the_change_of_a_status(old: str | None, new: str | None) -> None:
    """None is a cell that the run lacks."""
    runs = [run(SAME, *([cell(CASE, status=s)] if s else [])) for s in (old, new)]
    if old == new:
        expected = []
    elif new is None:
        expected = ["gone"]
    elif new in BROKEN and old not in BROKEN:
        expected = ["new failure"]
    elif old is None:
        expected = ["new cell"]
    elif new == "pass" and old in (*BROKEN, "known"):
        expected = ["fixed"]
    else:
        expected = ["status"]
    assert changes(*runs) == [(CASE, change) for change in expected]
    assert new_failures(compare_runs(*runs)) == (expected == ["new failure"])


ELECTED = {"check": "election", "question": "no-keys"}
ROWS = {"check": "invariant_batch"}
OBSERVED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({}, {"error_ratio": 0.1}, {"error_ratio": 0.2}, ""),
    ({}, {"error_ratio": 0.1}, {"error_ratio": 0.21}, "ratio"),
    ({}, {"error_ratio": 0.0}, {"error_ratio": 0.1}, "ratio"),
    ({}, {"error_ratio": 0.9}, {"error_ratio": math.inf}, "ratio"),
    ({}, {"error_ratio": math.nan}, {"error_ratio": 0.5}, "ratio"),
    ({}, {"error_ratio": 0.1}, {"error_ratio": 8.0, "status": "fail"}, "new failure"),
    ({}, {"status": "fail", "kind": "value"}, {"status": "fail", "kind": "raised"}, "status"),
    ({}, {"grade": "fused"}, {"grade": "eager"}, "grade: fused, eager"),
    ({}, {"grade": "exact"}, {"grade": "none"}, "grade: exact, none"),
    ({}, {"grade": "eager"}, {"grade": "fused"}, ""),
    ({}, {"grade": "exact"}, {"grade": "none", "status": "fail"}, "new failure"),
    (ELECTED, {"observed": "zeros"}, {"observed": "nan"}, "election: zeros, nan"),
    (ELECTED, {"observed": "zeros"}, {"observed": "", "status": "unsupported"}, "status"),
    (ELECTED, {"observed": "zeros"}, {"observed": "nan", "status": "fail"},
     "new failure; election: zeros, nan"),
    (ROWS, {"observed": "bitwise"}, {"observed": "within bound"}, "invariance: bitwise, within bound"),
    (ROWS, {"observed": "within bound"}, {"observed": "broken"}, "invariance: within bound, broken"),
    (ROWS, {"observed": "within bound"}, {"observed": "bitwise"}, ""),
    ({}, {"kernels": "flash"}, {"kernels": "gemm, softmax"}, "kernels: flash, gemm, softmax"),
    ({}, {"kernels": "flash"}, {"kernels": ""}, ""),
    ({}, {"kernels": "flash", "error_ratio": 0.1}, {"kernels": "gemm", "error_ratio": 0.9},
     "kernels: flash, gemm; ratio"),
]  # fmt: skip
"""Fields of both cells, of the old and of the new one, and the changes with what was observed."""


@pytest.mark.parametrize(("both", "old", "new", "said"), OBSERVED)
def test_the_changes_of_what_was_observed(
    both: dict[str, Any], old: dict[str, Any], new: dict[str, Any], said: str
) -> None:
    frame = compare_runs(run(SAME, cell(**both, **old)), run(SAME, cell(**both, **new)))
    texts = [
        f"{row['change']}: {row['old_observed']}, {row['new_observed']}".removesuffix(": , ")
        for row in frame.to_dict("records")
    ]
    assert "; ".join(texts) == said


@pytest.mark.parametrize("part", ["mode", "device", "check", "backend", "implementation"])
def test_cells_are_matched_by_their_whole_key(part: str) -> None:
    moved = cell(status="fail", **{part: "other"})  # type: ignore[arg-type]
    table = compare_runs(run(SAME, cell()), run(SAME, moved))
    assert sorted(table["change"]) == ["gone", "new failure"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("partial", [{"partial": True}, {"shard": "1/2"}, {"complete": False}])
def test_of_partial_runs_only_common_cells_are_compared(which: int, partial: dict) -> None:
    sides = [[SAME, cell("sdpa/x")], [replace(SAME, status="fail"), cell("sdpa/y", status="fail")]]
    runs = [run(*cells, **(partial if n == which else {})) for n, cells in enumerate(sides)]
    assert changes(*runs) == [(SAME.case, "new failure")]


def test_nothing_in_common_is_an_error_not_an_empty_diff() -> None:
    with pytest.raises(NothingInCommon, match=r"old\.jsonl and new\.jsonl.*1 and 2 cells"):
        compare_runs(
            run(cell(device="cpu"), source="old.jsonl"),
            run(cell(device="cuda"), cell("sdpa/x", device="cuda"), source="new.jsonl"),
        )


def test_new_failures_come_first_and_are_counted() -> None:
    old = run(SAME, cell("a"), cell("b", status="fail"), cell("c", error_ratio=0.1), cell("d"))
    new = run(SAME, cell("c", error_ratio=0.9), cell("b"), cell("a", status="error"), cell("e"))
    frame = compare_runs(old, new)
    assert list(frame["change"]) == ["new failure", "fixed", "gone", "new cell", "ratio"]
    seen = ("status", "election", "grade", "invariance", "kernels")
    counts = dict.fromkeys(CHANGES, 1) | dict.fromkeys(seen, 0)
    assert summary(frame)["cells"].to_dict() == counts


def names(*implementations: str, status: str = "pass") -> list[CellRecord]:
    return [cell(CASE, name, status) for name in implementations]


ZEROS, NAN = (elect("no-keys", {"f32": a}, "torch:flash")[0] for a in ("zeros", "nan"))
OLD = [*names("torch:flash", "torch:math", "jax:jax-nn"), ZEROS]


@pytest.mark.parametrize(
    ("new", "renames", "said"),
    [
        ([*names("torch:flash2", status="fail"), *names("torch:math")], {"flash": "flash2"},
         [["new failure", "flash2"]]),
        ([*names("torch:own", status="fail"), replace(NAN, implementation="own")], {"flash": "own"},
         [["new failure", "own"], ["election", "own"]]),
        ([*names("torch:flash", status="fail"), NAN], {"jax:jax-nn": "torch:flash"},
         [["new failure", "flash"], ["new cell", "flash"]]),
        (names("torch:flash", "torch:math", status="fail"), {"flash": "math", "math": "flash"},
         [["new failure", "flash"], ["new failure", "math"]]),
    ],
)  # fmt: skip
def test_implementations_are_compared_under_new_names(
    new: list[CellRecord], renames: dict[str, str], said: list[list[str]]
) -> None:
    frame = compare_runs(*with_renamed_implementations(run(*OLD), run(*new), renames))
    shown = frame[frame["change"] != "gone"][["change", "implementation"]].to_numpy().tolist()
    assert sorted(shown) == sorted(said)


@pytest.mark.parametrize(
    ("renames", "says"),
    [
        ({"math": "flash"}, r"old\.jsonl: 'math' is not in it; valid: torch:sdpa, jax:sdpa, torch:own"),
        ({"torch:own": "fast"}, r"new\.jsonl: 'fast' is not in it; valid: torch:flash"),
        ({"sdpa": "flash"}, "called so in several backends"),
        ({"torch:sdpa": "flash", "own": "flash"}, "mapped once"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_mapped(renames: dict[str, str], says: str) -> None:
    old = run(*names("torch:sdpa", "jax:sdpa", "torch:own"), source="old.jsonl")
    new = run(*names("torch:flash"), source="new.jsonl")
    with pytest.raises(UnknownImplementation, match=says):
        with_renamed_implementations(old, new, renames)

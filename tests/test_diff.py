"""Diff: every change is named for what it is, and only new failures fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.report.diff import (
    CHANGES,
    NothingInCommon,
    UnknownImplementation,
    compare,
    header_changes,
    mapped,
    new_failures,
    summary,
)
from attention_conformance.suite.spec.vocabulary import STATUSES
from tests.rows import cell, elect, run

SAME = cell("sdpa/causal/mha/f32/b1h1q2k2d8")
CASE = "sdpa/none/mha/f32/b2h3q5k7d8"
BROKEN = ("fail", "error", "crash")
SOUND = ("pass", "known", "unsupported")


def changes(old: Run, new: Run) -> list[tuple[str, str]]:
    frame = compare(old, new)
    return list(zip(frame["case"], frame["change"], strict=True))


def between(old: str | None, new: str | None) -> str:
    """The change of one cell from a status to a status; None is absence, "" no change."""
    runs = [run(SAME, *([cell(CASE, status=s)] if s else [])) for s in (old, new)]
    differences = changes(*runs)
    assert all(case == CASE for case, _ in differences)
    return differences[0][1] if differences else ""


@pytest.mark.parametrize("old", [*SOUND, None])
@pytest.mark.parametrize("new", BROKEN)
def test_what_breaks_is_a_new_failure(old: str | None, new: str) -> None:
    assert between(old, new) == "new failure"


@pytest.mark.parametrize("old", [*BROKEN, "known"])
def test_what_passes_again_is_fixed(old: str) -> None:
    assert between(old, "pass") == "fixed"


@pytest.mark.parametrize(
    ("old", "new"),
    [("pass", "known"), ("pass", "unsupported"), ("unsupported", "pass"), ("fail", "known"),
     ("fail", "unsupported"), ("fail", "crash"), ("crash", "error"), ("known", "unsupported")],
)  # fmt: skip
def test_other_changes_of_status(old: str, new: str) -> None:
    assert between(old, new) == "status"


@pytest.mark.parametrize("status", STATUSES)
def test_a_cell_that_stays_is_no_change(status: str) -> None:
    assert between(status, status) == ""


@pytest.mark.parametrize("status", STATUSES)
def test_a_cell_that_goes_is_gone(status: str) -> None:
    assert between(status, None) == "gone"


@pytest.mark.parametrize("status", SOUND)
def test_a_cell_that_comes_is_new(status: str) -> None:
    assert between(None, status) == "new cell"


def test_another_kind_of_failure_is_a_change() -> None:
    old, new = (run(cell(status="fail", kind=kind)) for kind in ("value", "non-finite"))
    assert changes(old, new) == [(CASE, "status")]


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (0.1, 0.2, False), (0.1, 0.21, True), (0.21, 0.1, True), (0.2, 0.1, False),
        (0.0, 0.0, False), (0.0, 0.1, True), (math.inf, math.inf, False), (0.9, math.inf, True),
        (math.nan, 0.5, True), (0.5, math.nan, True), (math.nan, math.nan, False),
        (math.nan, math.inf, False), (None, 0.5, False), (0.5, None, False),
    ],
)  # fmt: skip
def test_a_ratio_that_moved_is_information(
    old: float | None, new: float | None, moved: bool
) -> None:
    frame = compare(run(cell(error_ratio=old)), run(cell(error_ratio=new)))
    assert list(frame["change"]) == (["ratio"] if moved else [])
    assert not new_failures(frame)


def test_a_new_failure_is_never_called_a_ratio() -> None:
    old = run(cell(error_ratio=0.1))
    frame = compare(old, run(cell(status="fail", kind="value", error_ratio=8.0, message="far")))
    assert list(frame["change"]) == ["new failure"]
    row = frame.iloc[0]
    assert (row["old_status"], row["new_status"]) == ("pass", "fail")
    assert (row["old_ratio"], row["new_ratio"], row["message"]) == (0.1, 8.0, "far")
    assert (row["backend"], row["implementation"], row["check"]) == ("torch", "sdpa", "values")


@pytest.mark.parametrize("part", ["mode", "device", "check", "backend", "implementation"])
def test_cells_are_matched_by_their_whole_key(part: str) -> None:
    moved = cell(status="fail", **{part: "other"})  # type: ignore[arg-type]
    table = compare(run(SAME, cell()), run(SAME, moved))
    assert sorted(table["change"]) == ["gone", "new failure"]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("partial", [{"partial": True}, {"shard": "1/2"}, {"complete": False}])
def test_of_partial_runs_only_common_cells_are_compared(which: int, partial: dict) -> None:
    sides = [[SAME, cell("sdpa/x")], [replace(SAME, status="fail"), cell("sdpa/y", status="fail")]]
    runs = [run(*cells, **(partial if n == which else {})) for n, cells in enumerate(sides)]
    assert changes(*runs) == [(SAME.case, "new failure")]
    whole = [run(*cells) for cells in sides]
    assert [c for _, c in changes(*whole)] == ["new failure", "new failure", "gone"]


def test_nothing_in_common_is_an_error_not_an_empty_diff() -> None:
    with pytest.raises(NothingInCommon, match=r"old\.jsonl and new\.jsonl.*1 and 2 cells"):
        compare(
            run(cell(device="cpu"), source="old.jsonl"),
            run(cell(device="cuda"), cell("sdpa/x", device="cuda"), source="new.jsonl"),
        )


def test_new_failures_come_first_and_are_counted() -> None:
    old = run(SAME, cell("a"), cell("b", status="fail"), cell("c", error_ratio=0.1), cell("d"))
    new = run(
        SAME, cell("c", error_ratio=0.9), cell("b"), cell("a", status="error"), cell("e")
    )  # fmt: skip
    frame = compare(old, new)
    assert list(frame["change"]) == ["new failure", "fixed", "gone", "new cell", "ratio"]
    assert new_failures(frame)
    counts = summary(frame)["cells"].to_dict()
    seen = ("status", "election", "grade", "invariance", "kernels")
    assert counts == dict.fromkeys(CHANGES, 1) | dict.fromkeys(seen, 0)


def observed(old: CellRecord, new: CellRecord) -> list[tuple[str, str, str]]:
    """The changes of one cell, each with what was observed then and now."""
    frame = compare(run(SAME, old), run(SAME, new))
    columns = ("change", "old_observed", "new_observed")
    return list(zip(*(frame[name] for name in columns), strict=True))


def test_an_election_that_changed_is_reported() -> None:
    (zeros,), (nan,) = (elect("no-keys", {"f32": answer}) for answer in ("zeros", "nan"))
    assert observed(zeros, nan) == [("election", "zeros", "nan")]
    assert observed(zeros, zeros) == []
    broken = replace(nan, status="fail", kind="election")
    assert observed(zeros, broken) == [("new failure", "", ""), ("election", "zeros", "nan")]
    (refused,) = elect("no-keys", {"f32": "unsupported"})
    assert observed(zeros, refused) == [("status", "", "")]


@pytest.mark.parametrize(
    ("old", "new", "fell"),
    [("fused", "eager", True), ("exact", "none", True), ("eager", "fused", False),
     ("eager", "eager", False), ("", "eager", False), ("eager", "", False), ("eager", "new", False)],
)  # fmt: skip
def test_a_grade_that_fell_is_reported(old: str, new: str, fell: bool) -> None:
    differences = observed(cell(grade=old), cell(grade=new))
    assert differences == ([("grade", old, new)] if fell else [])


def test_the_grade_of_a_new_failure_is_not_said_twice() -> None:
    new = cell(grade="none", status="fail", kind="value")
    assert observed(cell(grade="exact"), new) == [("new failure", "", "")]


@pytest.mark.parametrize(
    ("old", "new", "fell"),
    [("bitwise", "within bound", True), ("within bound", "broken", True),
     ("within bound", "bitwise", False), ("bitwise", "bitwise", False), ("bitwise", "", False)],
)  # fmt: skip
def test_an_invariance_that_fell_is_reported(old: str, new: str, fell: bool) -> None:
    cells = [cell(check="invariant_batch", observed=grade) for grade in (old, new)]
    assert observed(*cells) == ([("invariance", old, new)] if fell else [])


def test_kernels_that_are_others_are_reported() -> None:
    old, new = (cell(mode="compiled", kernels=name) for name in ("flash_fwd", "gemm, softmax"))
    assert observed(old, new) == [("kernels", "flash_fwd", "gemm, softmax")]
    assert observed(old, replace(old, kernels="")) == []
    moved = [replace(c, error_ratio=r) for c, r in ((old, 0.1), (new, 0.9))]
    assert [change for change, *_ in observed(*moved)] == ["kernels", "ratio"]


def test_what_is_observed_fails_nothing() -> None:
    frame = compare(run(cell(grade="exact")), run(cell(grade="eager")))
    assert list(frame["change"]) == ["grade"]
    assert not new_failures(frame)


def names(*implementations: str, status: str = "pass") -> list[CellRecord]:
    return [cell(CASE, name, status) for name in implementations]


def test_a_renamed_implementation_is_compared_under_its_new_name() -> None:
    old = run(*names("torch:flash", "torch:math"))
    new = run(*names("torch:flash2", status="fail"), *names("torch:math"))
    for renames in ({"flash": "flash2"}, {"torch:flash": "torch:flash2"}):
        frame = compare(*mapped(old, new, renames))
        shown = frame[["change", "implementation"]].to_numpy().tolist()
        assert shown == [["new failure", "flash2"]]


def test_a_function_is_compared_with_a_frameworks_own() -> None:
    own = run(*names("torch:sdpa", "torch:sdpa-math", "torch:flash", "jax:jax-nn"))
    (answer,), (other,) = (elect("no-keys", {"f32": a}) for a in ("zeros", "nan"))
    own = replace(own, cells=(*own.cells, answer))
    function = run(*names("torch:flash", status="fail"), replace(other, implementation="flash"))
    frame = compare(*mapped(own, function, {"sdpa": "flash"}))
    assert frame[["change", "implementation", "old_observed"]].to_numpy().tolist() == [
        ["new failure", "flash", ""], ["election", "flash", "zeros"],
    ]  # fmt: skip
    frame = compare(*mapped(own, function, {"jax:jax-nn": "torch:flash"}))
    assert frame["change"].tolist() == ["new failure", "new cell"]


def test_implementations_of_one_file_are_compared_with_each_other() -> None:
    both = run(*names("torch:sdpa"), *names("torch:flash", status="fail"))
    frame = compare(*mapped(both, both, {"sdpa": "flash"}))
    assert frame["change"].tolist() == ["new failure"]
    assert compare(*mapped(both, both, {"sdpa": "flash", "flash": "sdpa"}))["change"].tolist() == [
        "new failure", "fixed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("renames", "says"),
    [
        (
            {"math": "flash"},
            r"old\.jsonl: 'math' is not in it; valid: torch:sdpa, jax:sdpa, torch:own",
        ),
        ({"torch:own": "fast"}, r"new\.jsonl: 'fast' is not in it; valid: torch:flash"),
        ({"sdpa": "flash"}, "called so in several backends"),
        ({"torch:sdpa": "flash", "own": "flash"}, "mapped once"),
        ({"torch:own": "flash", "own": "flash"}, "mapped once"),
    ],
)
def test_names_that_cannot_be_mapped(renames: dict[str, str], says: str) -> None:
    old = run(*names("torch:sdpa", "jax:sdpa", "torch:own"), source="old.jsonl")
    new = run(*names("torch:flash"), source="new.jsonl")
    with pytest.raises(UnknownImplementation, match=says):
        mapped(old, new, renames)


def test_the_same_run_has_no_changes() -> None:
    same = run(SAME, cell(status="fail", kind="value", error_ratio=3.0))
    frame = compare(same, same)
    assert len(frame) == 0
    assert not new_failures(frame)
    assert "change" in frame.columns


def test_header_changes_name_versions_options_and_commit() -> None:
    old = run(SAME, options={"level": "smoke", "seed": 0}, started="then")
    new = run(
        SAME,
        versions={"torch": "2.14.0", "jax": "0.11"},
        options={"level": "full", "seed": 0},
        commit="def5678",
        started="now",
    )
    frame = header_changes(old, new).set_index("field")
    assert frame.loc["versions.torch"].tolist() == ["2.13.0", "2.14.0"]
    assert frame.loc["versions.jax"].tolist() == ["", "0.11"]
    assert frame.loc["options.level"].tolist() == ["smoke", "full"]
    assert frame.loc["commit"].tolist() == ["abc1234", "def5678"]
    assert len(frame) == 4

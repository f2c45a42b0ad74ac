"""Reports of semantics: elections, invariance, and features that work together."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.report import semantics
from tests.rows import cell, elect, frame


def test_elections() -> None:
    table = semantics.ELECTIONS.of(
        frame(
            *elect("no-keys", {"f32": "zeros", "bf16": "zeros", "f16": "nan"}),
            *elect("value-size", {"f32": "raises", "f64": "unsupported"}),
            *elect("integer-mask", {"f32": "unsupported"}),
            *elect("no-keys", {"f32": "nan", "bf16": "nan", "f16": "nan"}, "jax:jax-nn"),
            cell(
                "elect/integer-mask/f32",
                "jax:jax-nn",
                "error",
                check="election",
                question="integer-mask",
            ),
            cell(),
        )
    )
    assert table.columns.tolist() == ["no-keys", "value-size", "integer-mask"]
    assert table.loc["torch:sdpa"].tolist() == ["zeros (f16: nan)", "raises", "-"]
    assert table.loc["jax:jax-nn"].tolist() == ["nan", "", "error"]


def graded(check: str, grades: dict[str, str], status: str = "pass") -> list[CellRecord]:
    """The cells of one check, a dtype each."""
    return [
        cell(f"sdpa/none/mha/{dtype}/b3h2q18k34d8", status=status, check=check, observed=grade)
        for dtype, grade in grades.items()
    ]


def test_invariance_is_the_worst_grade() -> None:
    table = semantics.INVARIANCE.of(
        frame(
            *graded("invariant_rows", {"f32": "bitwise", "bf16": "bitwise", "f16": "within bound"}),
            cell("sdpa/none/mha/f32/b2h4q129k161d64", check="invariant_rows", observed="broken",
                 status="fail"),
            *graded("invariant_rerun", {"f32": "bitwise", "bf16": "bitwise"}),
            *graded("invariant_threads", {"f32": ""}, "unsupported"),
            *graded("invariant_split", {"f32": ""}, "crash"),
            cell(),
        )
    )  # fmt: skip
    assert table.columns.tolist() == ["a second call", "rows", "threads", "split keys"]
    assert table.loc["torch:sdpa"].tolist() == [
        "bitwise", "broken (bf16: bitwise, f16: within bound)", "-", "crash",
    ]  # fmt: skip
    assert semantics.INVARIANCE.of(frame(cell())).empty


def test_every_check_of_invariance_is_in_the_table() -> None:
    assert set(semantics.CHECKS_OF_INVARIANCE) == {
        c.name for c in all_checks().values() if c.name.startswith("invariant_")
    }


def test_an_election_that_is_not_the_declared_one_shows_what_was_observed() -> None:
    (lied,) = elect("no-keys", {"f32": "nan"})
    lied = replace(lied, status="fail")
    assert semantics.ELECTIONS.of(frame(lied)).loc["torch:sdpa", "no-keys"] == "nan"


def test_what_works_together() -> None:
    case = "sdpa/none/mha/f32/b1h1q1k{}d8"
    both, alone = ("window", "sinks"), ("window",)
    cells = frame(
        cell(case.format(1), "torch:one", features=both, status="fail"),
        cell(case.format(2), "torch:one", features=both),
        cell(case.format(3), "torch:one", features=alone),
        cell(case.format(3), "torch:one", features=alone, check="paths", status="fail"),
        cell(case.format(1), "torch:two", features=both, status="unsupported"),
        cell(case.format(3), "torch:two", features=alone),
        cell(case.format(4), "torch:two"),
    )
    table = semantics.TOGETHER.of(cells)
    assert table.loc["sdpa"].to_dict("index") == {
        "sinks": {"torch:one": "wrong (1 of 2)", "torch:two": "refused"},
        "window": {"torch:one": "wrong (1 of 3)", "torch:two": "right"},
        "sinks + window": {"torch:one": "wrong (1 of 2)", "torch:two": "refused"},
    }

"""The page of what works together says what the records say, and leaves out what follows."""

from __future__ import annotations

from pathlib import Path

from attention_conformance.suite.report.conformance import LARGEST, OF_OPERATORS
from tests.rows import cell, frame, run
from tests.studies.together import page

CASE = "paged/none/mha/f32/b1h1q1k{}d8"
WINDOW, SCALE = ("window",), ("scale",)


def test_a_pair_has_a_row_only_where_its_entry_does_not_follow(tmp_path: Path) -> None:
    cells = [
        cell(
            CASE.format(n), implementation, status, operator="paged", features=features, seconds=0.5
        )
        for implementation, statuses in {
            "torch:one": ("pass", "pass", "pass", "pass"),
            "torch:two": ("pass", "pass", "pass", "pass"),
            "torch:three": ("pass", "pass", "known", "unsupported"),
        }.items()
        for n, status, features in zip(
            range(1, 5),
            statuses,
            (WINDOW, SCALE, (*WINDOW, *SCALE), (*WINDOW, "softcap")),
            strict=True,
        )
    ]
    cells.append(cell(operator="packed", features=WINDOW, status="unsupported"))
    assert OF_OPERATORS.of(frame(*cells))["seconds"].to_dict() == {
        ("paged", "torch:one"): 2.0,
        ("paged", "torch:two"): 2.0,
        ("paged", "torch:three"): 2.0,
        ("packed", "torch:sdpa"): 0.0,
    }
    text = page([run(*cells).save(tmp_path / "records.jsonl")])
    lines = text.splitlines()
    assert '    pytest suite --backend=torch -k "packed/ or paged/" --results=torch.jsonl' in lines
    counted = lines[lines.index("## Cells by status") :]
    assert "| packed | torch:sdpa | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in counted
    assert "| paged | torch:three | 4 | 2 | 0 | 1 | 1 | 0 | 0 |" in counted
    assert lines[lines.index("## Paged") + 2 :] == [
        "| features | torch:one, torch:two | torch:three |",
        "| --- | --- | --- |",
        "| scale | right | wrong (1 of 2) |",
        "| scale + window | right | wrong (1 of 1) |",
        "| softcap | right | refused |",
        "| window | right | wrong (1 of 2) |",
    ]


def test_the_largest_ratios_are_those_of_right_answers_of_all_seeds() -> None:
    cells = frame(
        cell(CASE.format(1), error_ratio=0.25, numerics="fused", operator="paged"),
        cell(
            CASE.format(1),
            "torch:flex",
            error_ratio=0.5,
            numerics="fused",
            seed=1,
            operator="paged",
        ),
        cell(
            CASE.format(2),
            error_ratio=3.0,
            numerics="fused",
            status="known",
            kind="value",
            operator="paged",
        ),
        cell(
            CASE.format(1).replace("f32", "bf16"),
            error_ratio=0.75,
            numerics="eager",
            operator="paged",
        ),
        cell(CASE.format(3), error_ratio=0.9, numerics="fused", check="paths", operator="paged"),
    )
    table = LARGEST.of(cells)
    fused = {"implementations": 2, "seeds": 2, "cells": 2, "f32": 0.5}
    assert table.loc[("paged", "torch", "fused")].drop("bf16").to_dict() == fused
    eager = {"implementations": 1, "seeds": 1, "cells": 1, "bf16": 0.75}
    assert table.loc[("paged", "torch", "eager")].drop("f32").to_dict() == eager
    assert table[["f32", "bf16"]].isna().sum().tolist() == [1, 1]

"""Functions as people have them are judged as they are: right ones are green, wrong twins are red."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance import check_attention
from attention_conformance.report import Report
from backends.registry import load as load_backend
from backends.registry import load_function
from tests.signatures.rows import ROWS, Row

CHECKS = ("values", "gradients", "paths", "contract", "mask_layouts")


def judged(row: Row, path: Path, claims: tuple[str, ...]) -> Report:
    """The report about a function by the checks of a small part of smoke."""
    pytest.importorskip({"tf": "tensorflow"}.get(row.backend, row.backend))
    function = load_function(load_backend(row.backend), f"{path}:{row.name}", {})
    said = dict(claim.split("=") for claim in claims)
    checks = CHECKS
    if row.backend != "torch":  # programs are compiled for every shape
        checks, said["dtypes"] = CHECKS[:1], "f32"
    return check_attention(
        function, row.backend, name=row.name, checks=checks, raises=False, **said
    )


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_right_function_is_green(row: Row, tmp_path: Path) -> None:
    report = judged(row, row.written(tmp_path, twin=False), row.claims)
    assert report.passed, str(report)
    said = [note for note in report.notes if "binding: " in note]
    assert len(said) == bool(row.binding)
    for part in row.binding.split(", ") if said else ():
        assert part in said[0]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_wrong_twin_is_red(row: Row, tmp_path: Path) -> None:
    report = judged(row, row.written(tmp_path, twin=True), row.claims)
    assert not report.passed
    assert (report.table.status == "fail").any(), str(report)


@pytest.mark.parametrize("row", [row for row in ROWS if row.advice], ids=str)
def test_what_needs_a_claim_is_told_so_first(row: Row, tmp_path: Path) -> None:
    report = judged(row, row.written(tmp_path, twin=False), ())
    assert not report.passed
    first = report.diagnoses.iloc[0].sentence
    assert row.advice in first
    assert f"claim {row.claims[0]}" in first

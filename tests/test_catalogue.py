"""Diagnoses are kept in result files and shown by reports; an error of the diagnosis is a note. Which
sentences are found stands in `tests/frozen` (told-*.txt)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records import diagnoses as remarks
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.expectations import draft
from attention_conformance.suite.report import frames
from attention_conformance.suite.report.kinds import CONFORMANCE, conformance_frames
from attention_conformance.suite.run import diagnosing
from attention_conformance.suite.spec.case import Case
from tests.rows import cell as recorded
from tests.rows import run

CausalSeesNext = next(one.kernel for one in all_faults() if one.name == "causal-sees-next")

VALUES = all_checks()["values"]

CASES = (
    "sdpa/causal/mha/f32/b2h3q7k7d8",
    "sdpa/causal/gqa2/f32/b2h4q5k9d6",
    "sdpa/bool.bhqk/gqa2/f32/b2h4q6k7d8/dense",
    "sdpa/bool.b1qk/mha/f32/b3h2q4k5d8/dense",
    "sdpa/none/gqa3/f32/b2h6q5k7d8",
    "sdpa/none/mha/f32/b2h3q5k7d8/scale0.3",
    "sdpa/pad/mha/f32/b2h3q5k9d8",
    "sdpa/causal/mha/bf16/b2h3q9k9d16",
)


def made(*kinds: type[Implementation]) -> list[Implementation]:
    return KernelBackend("mine", kinds).implementations()


def split(implementation: Implementation) -> tuple[list[Cell], list[Cell]]:
    """The cells that fail and that pass."""
    cells = [Cell(VALUES, Case.parse(text), implementation) for text in CASES]
    verdicts = [judge(cell).status for cell in cells]
    return tuple(
        [cell for cell, status in zip(cells, verdicts, strict=True) if status == wanted]
        for wanted in ("fail", "pass")
    )  # type: ignore[return-value]


def record_of(cell: Cell, status: str) -> records.CellRecord:
    case = cell.case
    return recorded(
        case.id, str(cell.implementation), status, dtype=case.dtype.name, features=case.needs,
        kind="value" if status == "fail" else "", facts=case.facts,
    )  # fmt: skip


class PlanByHand:
    """The part of a plan that is read."""

    def __init__(self, implementation: Implementation) -> None:
        self.functions = self.implementations = [implementation]
        self.options = diagnosing.Options(("mine",), cell_timeout=0.0)


def told_of(implementation: Implementation, folder: Path | None = None) -> remarks.FailureReport:
    failing, passing = split(implementation)
    cells = [record_of(c, "fail") for c in failing] + [record_of(c, "pass") for c in passing]
    return diagnosing.diagnose_run(PlanByHand(implementation), cells, folder)  # type: ignore[arg-type]


def test_an_exception_is_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken\ninside")

    (implementation,) = made(CausalSeesNext)
    monkeypatch.setattr(diagnosing, "diagnose", broken)
    said = told_of(implementation)
    assert said.diagnoses == ()
    assert said.notes == ("no diagnosis of mine:causal-sees-next: RuntimeError: broken",)
    monkeypatch.setattr(diagnosing, "_diagnose", broken)
    assert told_of(implementation).notes == ("no diagnosis: RuntimeError: broken",)


ONE = DiagnosisRecord(
    "torch", "sdpa", "It is wrong.", "`x`", "mask", "catalogue", 2, 3, 0, "values", CASES[0],
    picture="# .\n. #",
)  # fmt: skip


def test_result_files_keep_diagnoses(tmp_path: Path) -> None:
    loaded = run(recorded(CASES[0], status="fail", kind="value"))
    read = records.load(replace(loaded, diagnoses=(ONE,)).save(tmp_path / "r.jsonl"))
    assert read.diagnoses == (ONE,)
    assert read.cells == loaded.cells
    table = CONFORMANCE.make(conformance_frames(read), ["diagnoses"])["diagnoses"]
    assert table["sentence"].tolist() == ["It is wrong."]
    assert frames.diagnoses(loaded).empty
    assert "the run says: It is wrong." in draft(read.cells, {"torch": "2.13"}, read.diagnoses)


def test_one_call_is_diagnosed() -> None:
    from attention_conformance import assert_attention_close

    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, 6, 8)).astype(np.float32) for _ in range(3))
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(8).astype(np.float32)
    scores = np.where(np.tri(6, k=1, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    output = weights / weights.sum(-1, keepdims=True) @ value
    with pytest.raises(
        AssertionError, match=r"beyond their bound\nA causal query sees the next key\.\n"
    ):
        assert_attention_close(output, query, key, value, causal=True)
    with pytest.raises(AssertionError, match=r"beyond their bound$"):
        assert_attention_close(output + 1, query, key, value, causal=True)

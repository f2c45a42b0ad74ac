"""Diagnoses are kept in result files and shown by reports; an error of the diagnosis is a note. Which
sentences are found stands in `tests/frozen` (told-*.txt)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance import assert_attention_close, check_attention
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.expectations import draft
from attention_conformance.suite.report import frames
from attention_conformance.suite.report.kinds import CONFORMANCE, conformance_frames
from attention_conformance.suite.run import diagnosing
from tests.rows import cell as recorded
from tests.rows import run

CASE = "sdpa/causal/mha/f32/b2h3q7k7d8"


def wrong(query, key, value):  # type: ignore[no-untyped-def]
    """One percent too large."""
    return 1.01 * (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value


@pytest.mark.parametrize(
    ("place", "said"), [("diagnose", "no diagnosis of torch:wrong"), ("_diagnose", "no diagnosis")]
)
def test_an_exception_is_one_note(place: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken\ninside")

    pytest.importorskip("torch")
    monkeypatch.setattr(diagnosing, place, broken)
    report = check_attention(wrong, checks="values", dtypes="f32", raises=False)
    assert report.diagnoses.empty
    assert f"{said}: RuntimeError: broken" in report.notes


ONE = DiagnosisRecord(
    "torch", "sdpa", "It is wrong.", "`x`", "mask", "catalogue", 2, 3, 0, "values", CASE,
    picture="# .\n. #",
)  # fmt: skip


def test_result_files_keep_diagnoses(tmp_path: Path) -> None:
    loaded = run(recorded(CASE, status="fail", kind="value"))
    read = records.load(replace(loaded, diagnoses=(ONE,)).save(tmp_path / "r.jsonl"))
    assert read.diagnoses == (ONE,)
    assert read.cells == loaded.cells
    table = CONFORMANCE.make(conformance_frames(read), ["diagnoses"])["diagnoses"]
    assert table["sentence"].tolist() == ["It is wrong."]
    assert frames.diagnoses(loaded).empty
    assert "the run says: It is wrong." in draft(read.cells, {"torch": "2.13"}, read.diagnoses)


def test_one_call_is_diagnosed() -> None:
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

"""Failing implementations are told which known fault they behave like, and right ones nothing. Measured
sentences are compared with cells: what they explain is counted, and passing cells count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.deviations.kernels.attention import Kernel, Online
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis import catalogue
from attention_conformance.suite.judge.diagnosis.diagnose import diagnose
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
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

CausalSeesNext, HeadsTiled, MaskInverted = (
    next(one.kernel for one in all_faults() if one.name == name)
    for name in ("causal-sees-next", "heads-tiled", "mask-inverted")
)

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


def never() -> bool:
    return False


def made(*kinds: type[Implementation]) -> list[Implementation]:
    return KernelBackend("mine", kinds).implementations()


def split(
    implementation: Implementation, check: Any = VALUES, ids: Iterable[str] = CASES
) -> tuple[list[Cell], list[Cell]]:
    """The cells that fail and that pass."""
    cells = [Cell(check, Case.parse(text), implementation) for text in ids]
    verdicts = [judge(cell).status for cell in cells]
    return tuple(
        [cell for cell, status in zip(cells, verdicts, strict=True) if status == wanted]
        for wanted in ("fail", "pass")
    )  # type: ignore[return-value]


def told(kind: type[Implementation], without: str = "", check: Any = VALUES) -> list[Diagnosis]:
    (implementation,) = made(kind)
    failing, passing = split(implementation, check)
    assert failing
    return catalogue.explaining_faults(failing, passing, never, without)


class TiledOnline(Online):
    """Rounds otherwise than the catalogue's kernels."""

    tile = 2


@pytest.mark.parametrize("fault", [CausalSeesNext, HeadsTiled, MaskInverted])
def test_a_fault_is_named_though_sums_run_in_another_order(fault: type[Kernel]) -> None:
    (one,) = told(type("Mine", (fault, TiledOnline), {}))
    known = next(f for f in all_faults() if f.kernel is fault)
    assert (one.fault, one.sentence, one.hint) == (known.name, known.sentence, known.hint)
    assert (one.family, one.source, one.contradicts) == (known.family, "catalogue", 0)
    assert one.explains == one.tried >= 2
    assert one.case in CASES


def test_a_passing_cell_contradicts() -> None:
    (implementation,) = made(CausalSeesNext)
    failing, passing = split(implementation)
    masked = [c for c in failing if "causal" in c.case.id]
    assert [one.fault for one in catalogue.explaining_faults(masked, passing, never)] == [
        "causal-sees-next"
    ]
    (right,) = made(Kernel)
    beside = [Cell(VALUES, cell.case, right) for cell in masked]
    assert catalogue.explaining_faults(masked[:1], beside[1:], never) == []


def blank(masked: bool) -> type[Kernel]:
    """Attention without a scale that is NaN in all elements: of masked calls, or of all."""

    class Blank(Kernel):
        def factor(self, call: Any) -> float:
            return 1.0

        def compute(self, call: Any) -> Any:
            got = super().compute(call)
            without = call.mask is None and not call.causal and call.lengths is None
            return got if masked and without else got * np.nan

    return Blank


def test_nan_beside_nan_explains_nothing() -> None:
    assert told(blank(masked=False)) == []
    assert {one.family for one in told(blank(masked=True))} == {"scale"}


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
    table = CONFORMANCE.of(conformance_frames(read), ["diagnoses"])["diagnoses"]
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


def attention(scale_of: Callable[..., float]) -> Callable[..., Any]:
    """Attention whose scale is multiplied by a function of its operands."""

    def function(query, key, value, scale=None):
        from tests.functions.of_torch import textbook

        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return textbook(query, key, value, scale=scale * scale_of(query, key))

    return function


def measured(function: Callable[..., Any], *ids: str) -> list[Diagnosis]:
    """The measured diagnoses of a function."""
    pytest.importorskip("torch")
    backend = registry.load("torch")
    implementation = registry.callable_implementation(backend, function, "function", {})[0]
    failing, passing = split(implementation, ids=ids)
    found = diagnose(implementation, failing, passing, seconds=60)
    return [one for one in found if one.source == "measured"]


PLAIN = (
    "sdpa/none/mha/f32/b2h3q17k23d8",
    "sdpa/none/mha/f32/b2h6q5k9d8",
    "sdpa/none/mha/f32/b1h2q4k8d16",
)


def test_failing_cells_are_counted_whose_answers_a_formula_gives() -> None:
    given = "sdpa/none/mha/f32/b2h3q17k23d8/scale0.3"
    (one,) = measured(attention(lambda q, k: q.shape[-1] ** -0.5), *PLAIN, given)
    assert "The scale is 0.125 = 1/D" in one.sentence
    assert (one.explains, one.tried, one.contradicts) == (
        3,
        4,
        0,
    )  # with a given scale it is another
    assert one.case in PLAIN


def test_what_passing_cells_contradict_without_a_property_falls_behind() -> None:
    ids = [f"sdpa/none/mha/f32/b2h3q9k{k}d8" for k in (5, 7, 6, 23, 24)]
    function = attention(lambda q, k: math.log2(math.e) if k.shape[2] % 2 else 1.0)
    one, *_ = measured(function, *ids)
    assert "the scale" in one.sentence.lower()
    assert (one.explains, one.tried, one.contradicts) == (3, 3, 2)

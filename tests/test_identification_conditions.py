"""Measured sentences are compared with cells: what they explain is counted, and passing cells count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_conformance.backends import registry  # noqa: E402
from attention_conformance.suite.checks import all_checks  # noqa: E402
from attention_conformance.suite.judge.cell import Cell  # noqa: E402
from attention_conformance.suite.judge.diagnosis.diagnose import diagnose  # noqa: E402
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis  # noqa: E402
from attention_conformance.suite.judge.judge import judge  # noqa: E402
from attention_conformance.suite.spec.case import Case  # noqa: E402
from tests.functions import of_torch  # noqa: E402

VALUES = all_checks()["values"]


def attention(scale_of, causal_of=lambda q, k: True, mask_of=lambda q, mask: mask):
    """Attention with another scale, causal mask or mask, by functions of its operands."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None):
        is_causal = is_causal and causal_of(query, key)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scale = scale * scale_of(query, key)
        return of_torch.textbook(query, key, value, mask_of(query, attn_mask), is_causal, scale)

    return function


def split(function: Callable[..., Any], *ids: str, like: str = "") -> tuple[list[Cell], list[Cell]]:
    """The failing and the passing cells of the check `values`."""
    backend = registry.load("torch")
    implementation = registry.callable_implementation(backend, function, "function", {}, like)[0]
    cells = [Cell(VALUES, Case.parse(text), implementation) for text in ids]
    statuses = [judge(cell).status for cell in cells]
    assert {*statuses} <= {"pass", "fail"}
    failing = [cell for cell, status in zip(cells, statuses, strict=True) if status == "fail"]
    return failing, [cell for cell in cells if cell not in failing]


def told(function: Callable[..., Any], *ids: str, like: str = "") -> list[Diagnosis]:
    """The measured diagnoses of a function."""
    failing, passing = split(function, *ids, like=like)
    assert failing
    one = failing[0].implementation
    found = diagnose(one.backend, one, failing, passing, seconds=60)
    return [one for one in found if one.source == "measured"]


PLAIN = (
    "sdpa/none/mha/f32/b2h3q17k23d8",
    "sdpa/none/mha/f32/b2h6q5k9d8",
    "sdpa/none/mha/f32/b1h2q4k8d16",
)


def test_failing_cells_are_counted_whose_answers_a_formula_gives() -> None:
    given = "sdpa/none/mha/f32/b2h3q17k23d8/scale0.3"
    (one,) = told(attention(lambda q, k: q.shape[-1] ** -0.5), *PLAIN, given)
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
    one, *_ = told(function, *ids)
    assert "the scale" in one.sentence.lower()
    assert (one.explains, one.tried, one.contradicts) == (3, 3, 2)

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
from attention_conformance.suite.judge.diagnosis.conditions import alike, conditioned  # noqa: E402
from attention_conformance.suite.judge.diagnosis.diagnose import diagnose  # noqa: E402
from attention_conformance.suite.judge.diagnosis.evidence import Evidence  # noqa: E402
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis  # noqa: E402
from attention_conformance.suite.judge.diagnosis.identify import identify  # noqa: E402
from attention_conformance.suite.judge.diagnosis.instrument import Found, softmax  # noqa: E402
from attention_conformance.suite.judge.diagnosis.look import Look  # noqa: E402
from attention_conformance.suite.judge.judge import judge  # noqa: E402
from attention_conformance.suite.spec.case import Case  # noqa: E402
from tests.diagnosed import layers  # noqa: E402
from tests.functions import of_torch  # noqa: E402
from tests.test_identification import of  # noqa: E402

VALUES = all_checks()["values"]


def attention(scale_of, causal_of=lambda q, k: True, mask_of=lambda q, mask: mask):
    """Attention with another scale, causal mask or mask, by functions of its operands."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None):
        is_causal = is_causal and causal_of(query, key)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scale = scale * scale_of(query, key)
        return of_torch.textbook(query, key, value, mask_of(query, attn_mask), is_causal, scale)

    return function


def right(query, key):
    return 1.0


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


SQUARE = ("sdpa/causal/mha/f32/b2h3q9k9d8", "sdpa/causal/mha/f32/b1h2q16k16d8")
ODD = ("sdpa/causal/mha/f32/b2h3q17k23d8", "sdpa/causal/mha/f32/b2h3q9k5d8")
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


def test_evidence_by_hand() -> None:
    failing, passing = split(attention(lambda q, k: 2.0), *PLAIN)
    assert not passing
    right_cells = [Cell(VALUES, cell.case, of(of_torch.textbook)) for cell in failing]
    looks = [look for cell in failing if (look := Look.of(cell)) is not None]
    case = looks[0].inputs.case

    def twice(reading):
        return softmax(2 * reading.scores, reading.seen)

    found = Found("Scores are doubled.", "scale", formula=twice)
    assert conditioned(Evidence(looks), found, [case]) == (
        found,
        [look.inputs.case for look in looks],
        0,
    )
    alone = Cell(VALUES, Case.parse("sdpa/none/mha/f32/b1h3q9k16d8"), of(of_torch.textbook))
    said, _, against = conditioned(Evidence(looks[:2], [alone]), found, [case])
    assert said.sentence == "Only with several samples: scores are doubled."
    assert against == 0
    # One cell alone says nothing of its properties, and several cells nothing of more than two.
    assert conditioned(Evidence(looks[:1], [alone]), found, [case]) == (found, [case], 1)
    assert conditioned(Evidence(looks[:2], right_cells[2:]), found, [case])[2] == 1
    # What a failing cell that is answered otherwise has not is no condition.
    other = looks[2]
    other.got = {"output": 1 + other.got["output"]}
    assert conditioned(Evidence([*looks[:2], other], [alone]), found, [case])[2] == 1
    # The same case on both sides: no property is left, and the cell contradicts.
    assert conditioned(Evidence(looks[:1], right_cells[:1]), found, [case])[2] == 1
    mute = Found("Scores are doubled.", "scale", formula=lambda reading: None)
    assert conditioned(Evidence(looks, right_cells), mute, [case]) == (mute, [case], 0)
    halved = Found("Scores are halved.", "scale", formula=lambda r: softmax(r.scores / 2, r.seen))
    assert conditioned(Evidence(looks, right_cells[:2]), halved, [case])[1:] == ([case], 2)


def test_cells_are_sorted_by_likeness() -> None:
    cells = [
        Cell(VALUES, Case.parse(text), of(of_torch.textbook)) for text in (*PLAIN, *SQUARE, *ODD)
    ]
    first = alike(cells, [Case.parse(ODD[0])])
    assert [cell.case.id for cell in first[:2]] == [ODD[0], ODD[1]]
    assert {cell.case.id for cell in first[-3:]} == set(PLAIN)


def test_weights_of_layers_are_compared_with_no_cell() -> None:
    ids = ("multi-head/causal/mha/f32/b2h4q7k7d3/e12.12.12.12/self",)
    failing, _ = split(layers.SplitWithoutTranspose, *ids, like="multi-head")
    looks = [look for cell in failing if (look := Look.of(cell)) is not None]
    assert looks
    found = Found("Weights are equal.", "softmax", formula=lambda reading: reading.seen + 0.0)
    case = looks[0].inputs.case
    assert conditioned(Evidence(looks, failing), found, [case]) == (found, [case], 0)


def test_without_failures_nothing_is_said() -> None:
    judged = registry.load("torch")
    (sdpa,) = [one for one in judged.implementations() if one.name == "sdpa"]
    assert identify(judged, sdpa, []) == []


def test_a_known_fault_of_some_sizes_is_said_of_these_alone() -> None:
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, sinks=None):
        if sinks is None or key.shape[-2] % 64 == 0:
            return of_torch.textbook(query, key, value, attn_mask, is_causal, scale)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        sunk = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.softmax(torch.cat([scores, sunk], -1), -1)[..., :-1] @ value

    tiled = ("q5k64", "q7k64", "q9k64", "q64k64", "q3k128", "q2k192")
    sizes = (*tiled, "q5k65", "q7k63", "q33k33", "q3k127", "q64k5")
    cells = split(attention, *(f"sdpa/none/mha/f32/b2h3{one}d8/sinks" for one in sizes))
    assert [len(part) for part in cells] == [6, 5]
    implementation = cells[0][0].implementation
    found, *_ = diagnose(implementation.backend, implementation, *cells)
    assert found.sentence == "Only where 64 divides the number of keys: sinks have no effect."

"""A person's cache is a class or an object; what it lacks is not asked, and said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import (
    UsageError,
    callable_implementation,
    function_implementation,
    load,
)
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions" / "caching.py"


def statuses(name: str) -> dict[Case, str]:
    """Statuses of a cache's cells of the check values at smoke, by case."""
    judged = of_person(f"{FUNCTIONS}:{name}", "cached")
    return {cell.case: verdict.status for cell, verdict in judged}


def needs(found: Mapping[Case, str], *statuses: str) -> set[str]:
    """What the cases with these statuses need."""
    return {need for case, status in found.items() if status in statuses for need in case.needs}


def test_a_persons_cache() -> None:
    found = statuses("Growing")
    assert set(found.values()) == {"pass", "unsupported"}
    can = needs(found, "pass")
    assert can >= {"window", "ring", "left-padding", "reorder", "rollback", "reset", "value-size"}
    assert not can & {"softcap", "bias", "subsets", "tree", "documents", "rotary", "alibi-slopes"}
    assert all(status == "pass" for case, status in found.items() if can >= {*case.needs})


def test_a_person_claims_the_format_of_a_cache_of_codes() -> None:
    def found(name: str, said: Mapping[str, Any]) -> set[str]:
        cells = of_person(f"{FUNCTIONS}:{name}", "cached", said)
        return {verdict.status for _, verdict in cells} - {"unsupported"}

    assert found("Coded", {"codes": "int8"}) == {"pass"}
    assert "fail" in found("Coded", {})
    assert "fail" in found("CodedCoarsely", {"codes": "int8"})


def test_a_persons_cache_of_samples_that_step_alone_and_of_trees() -> None:
    found = statuses("Serving")
    assert set(found.values()) == {"pass", "unsupported"}
    can = needs(found, "pass")
    assert can >= {"subsets", "tree", "keep", "documents", "rotary", "halves", "reset", "rollback"}
    assert not can & {"window", "left-padding", "softcap", "alibi-slopes", "reorder", "bias"}


@pytest.mark.parametrize("name", ["Slots", "slots"])
def test_a_cache_in_place_is_a_class_or_an_object(name: str) -> None:
    found = statuses(name)
    assert set(found.values()) == {"pass", "unsupported"}
    assert needs(found, "pass") == {"grouped-heads", "reset"}


def test_a_drop_in_refuses_samples_that_do_not_exist() -> None:
    place, claims = f"{FUNCTIONS}:Growing", {"drop_in": True}
    judged = of_person(place, "cached", claims, check="bad_problem")
    verdicts = {cell.case.id.split("/")[2]: verdict for cell, verdict in judged}
    # [:-7] of five tokens leaves none, [:2] two of them, and index -1 is the last sample.
    assert {name for name, verdict in verdicts.items() if verdict.status == "fail"} == {
        "rollback-beyond-length", "rollback-negative", "history-negative",
    }  # fmt: skip
    assert "changed from" in verdicts["history-negative"].message


def test_what_a_cache_lacks_is_said() -> None:
    judged, _ = function_implementation(load("torch"), f"{FUNCTIONS}:Slots", {}, "cached")
    case = Case.parse("cached/none/mha/f32/b3h2q8k20d8/c3.pick200.1.4")
    assert judged.unsupported(case) == "the cache has no method reorder"
    ring = Case.parse("cached/none/mha/f32/b3h2q8k20d8/c8/win3/room8")
    assert judged.missing(["ring"]) == "init takes a capacity and no window"
    assert judged.unsupported(ring) == "the function has no parameter window"
    with pytest.raises(UsageError, match="Stepless has no step; expected both as methods"):
        function_implementation(load("torch"), f"{FUNCTIONS}:Stepless", {}, "cached")
    with pytest.raises(UsageError, match="no cache is judged with numpy"):
        function_implementation(load("numpy"), f"{FUNCTIONS}:Slots", {}, "cached")


DECODING = "cached/none/gqa2/f32/b2h4q1k9d8/c1"


def implementation(name: str) -> Implementation:
    """An implementation of torch, or a cache of `FUNCTIONS`."""
    backend = load("torch")
    named = (i for i in backend.implementations() if i.name == name)
    found = next(named, None)
    return found or function_implementation(backend, f"{FUNCTIONS}:{name}", {}, "cached")[0]


@pytest.mark.parametrize("name", ["textbook-cached", "Growing", "Slots"])
def test_a_timed_step_is_right_however_often_it_is_called(name: str) -> None:
    judged, inputs = implementation(name), draw(Case.parse(DECODING))
    cell = Cell(Check("speed", lambda cell: None, lambda level: ()), inputs.case, judged)
    call = judged.timed(inputs)
    for _ in range(3):
        cell.judge(cell.read(call(), inputs, call))


def test_a_cache_is_full_before_its_step_is_timed() -> None:
    """Without a way back all of a script is timed."""
    inputs = draw(Case.parse(DECODING))
    called = []

    class Counted(type(implementation("Growing").judged())):  # type: ignore[misc]
        def step(self, state: Any, query: Any, key: Any, value: Any) -> Any:
            called.append(query.shape[2])
            return super().step(state, query, key, value)

    judged, _ = callable_implementation(load("torch"), Counted, "counted", {}, "cached")
    call = judged.timed(inputs)
    assert called == [8]  # filled
    call()
    call()
    assert called == [8, 1, 1]
    longer = judged.timed(draw(Case.parse("cached/none/gqa2/f32/b2h4q2k9d8/c1.1")))
    longer()
    assert called[3:] == [7, 1, 1]

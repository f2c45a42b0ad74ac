"""A person's cache is a class or an object; what it lacks is not asked, and said."""

from __future__ import annotations

import re
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


def statuses(name: str) -> dict[str, str]:
    """Statuses of a cache's cells of the check values at smoke, by script and options."""
    return {
        "/".join(cell.case.id.split("/")[5:]): verdict.status
        for cell, verdict in of_person(f"{FUNCTIONS}:{name}", "cached")
    }


def test_a_persons_cache() -> None:
    found = statuses("Growing")
    assert [script for script, status in found.items() if status != "pass"] == [
        "c5.1.3/win3/cap2.0/sinks/slopes/scale0.3", "c5.1.3/bias.1hqk",  # no softcap, no bias
        "c3of0.3of12.back2.5", "c2.back2of0.3of1.resetof2.3of20.3",
        "c2.pick200.2of1.3of02.4of1.3of02",  # no samples
        "c3.tree1121.keep3.2", "c1.tree11213.keep4.3/slopes", "c1.tree112.keep2x0.4",
        "c1.tree112of02.keep2x.3of1.4", "c4.tree112.keep2.2/win2/room5",
        "c1+2.1.0+4", "c1+2.1.2+1.back2.1/win3/slopes",  # no document_starts
        "c5.1.3/rot.halves", "c1.5.1.1/win3/room8/pad5.0.12/rot.interleaved",  # no rotary_base
        "c2.back2of0.3of1.resetof2.3of20.3/rot.halves",
        "c4.pick200.back2of1.4of1.4of02", "c4of0.resetof0.resetof0.2of0.9of1.3of0",
        "c3.tree1121.back4.2", "c5.1.3/rot.halves/base500000.0",
        "c5.1.3/used/cap2.0/sinks/slopes/scale0.3", "c5.1.3/used/rot.halves/base500000.0",
        "c1.tree112.pick200.keep121.4",
        "c1.1.3/win20/rot.halves", "c1.1.3/slopes",
    ]  # fmt: skip
    assert set(found.values()) == {"pass", "unsupported"}


def test_a_person_claims_the_format_of_a_cache_of_codes() -> None:
    def found(name: str, said: Mapping[str, Any]) -> set[str]:
        cells = of_person(f"{FUNCTIONS}:{name}", "cached", said)
        return {verdict.status for _, verdict in cells} - {"unsupported"}

    assert found("Coded", {"codes": "int8"}) == {"pass"}
    assert "fail" in found("Coded", {})
    assert "fail" in found("CodedCoarsely", {"codes": "int8"})


def test_a_persons_cache_of_samples_that_step_alone_and_of_trees() -> None:
    found = statuses("Serving")
    refused = [script for script, status in found.items() if status != "pass"]
    assert all(
        {"win", "pad", "cap", "slopes", "pick", "bias"} & {*re.findall("[a-z]+", x)}
        for x in refused
    )
    answered = {
        "c3of0.3of12.back2.5", "c3.tree1121.keep3.2", "c1.tree112.keep2x0.4", "c1+2.1.0+4",
        "c5.1.3/rot.halves", "c2.back2of0.3of1.resetof2.3of20.3/rot.halves",
    }  # fmt: skip
    assert answered <= {*found} - {*refused}
    found = statuses("KeepsFirst")
    assert {script for script, status in found.items() if status == "fail"} == {
        "c3.tree1121.keep3.2", "c1.tree11213.keep4.3", "c1.tree112.keep2x0.4",
        "c1.tree112of02.keep2x.3of1.4",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["Slots", "slots"])
def test_a_cache_in_place_is_a_class_or_an_object(name: str) -> None:
    found = statuses(name)
    assert {script for script, status in found.items() if status == "pass"} == {
        "c5.1.3", "c1.1.1.1.4", "c1.1.1.1.4/offset", "c9", "c1.3.1.3", "c3.3.1.2", "c3.1.reset.3.2",
        "c4.1.3.reset.1", "c5.1.3/room9", "c5.1.3/used", "c1.1.1.1.4/level", "c1.1.3",
    }  # fmt: skip
    assert set(found.values()) == {"pass", "unsupported"}


def test_a_chunk_that_sees_its_future_fails() -> None:
    found = statuses("NoFuture")
    assert found["c5.1.3"] == found["c9"] == found["c1.1.1.1.4"] == "fail"


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


@pytest.mark.parametrize("name", ["textbook-cached", "textbook-cached-slots", "Growing", "Slots"])
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

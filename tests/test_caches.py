"""Caches: a person's cache is a class or an object, and what it lacks is not asked,
and said. Pages have the sizes that a function claims. Honest kernels (`tests/honest`) and the frameworks'
own are second opinions of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import callable_implementation, load
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.paged import PAGED
from tests.runtimes import of_person, user_function

CACHES = Path(__file__).parent / "functions" / "caching.py"


def statuses(name: str) -> dict[Case, str]:
    """Statuses of a cache's cells of the check values at smoke, by case."""
    judged = of_person(f"{CACHES}:{name}", "cached")
    return {cell.case: verdict.status for cell, verdict in judged}


def needs(found: Mapping[Case, str], *statuses: str) -> set[str]:
    """What the cases with these statuses need."""
    return {need for case, status in found.items() if status in statuses for need in case.needs}


@pytest.mark.parametrize(
    ("name", "able", "unable"),
    [
        ("Growing", "window ring left-padding reorder rollback reset",
         "softcap bias subsets tree documents rotary alibi-slopes"),
        ("Serving", "subsets tree keep documents rotary halves reset rollback",
         "window left-padding softcap alibi-slopes reorder bias"),
    ],
)  # fmt: skip
def test_a_persons_cache(name: str, able: str, unable: str) -> None:
    found = statuses(name)
    assert set(found.values()) == {"pass", "unsupported"}
    can = needs(found, "pass")
    assert can >= {*able.split()}
    assert not can & {*unable.split()}
    own = [status for case, status in found.items() if can >= {*case.needs}]
    assert name != "Growing" or {*own} == {"pass"}


def test_a_person_claims_the_format_of_a_cache_of_codes() -> None:
    def found(name: str, said: Mapping[str, Any]) -> set[str]:
        cells = of_person(f"{CACHES}:{name}", "cached", said)
        return {verdict.status for _, verdict in cells} - {"unsupported"}

    assert found("Coded", {"codes": "int8"}) == {"pass"}
    assert "fail" in found("Coded", {})
    assert "fail" in found("CodedCoarsely", {"codes": "int8"})


def test_a_drop_in_refuses_samples_that_do_not_exist() -> None:
    place, claims = f"{CACHES}:Growing", {"drop_in": True}
    judged = of_person(place, "cached", claims, check="bad_problem")
    verdicts = {cell.case.id.split("/")[2]: verdict for cell, verdict in judged}
    # [:-7] of five tokens leaves none, [:2] two of them, and index -1 is the last sample.
    assert {name for name, verdict in verdicts.items() if verdict.status == "fail"} == {
        "rollback-beyond-length", "rollback-negative", "history-negative",
    }  # fmt: skip
    assert "changed from" in verdicts["history-negative"].message


def test_what_a_cache_lacks_is_said() -> None:
    judged = user_function(f"{CACHES}:Slots", "cached")
    case = Case.parse("cached/none/mha/f32/b3h2q8k20d8/c3.pick200.1.4")
    assert judged.unsupported(case) == "the cache has no method reorder"
    ring = Case.parse("cached/none/mha/f32/b3h2q8k20d8/c8/win3/room8")
    assert judged.missing(["ring"]) == "init takes a capacity and no window"
    assert judged.unsupported(ring) == "the function has no parameter window"


DECODING = "cached/none/gqa2/f32/b2h4q1k9d8/c1"


def test_a_cache_is_full_before_its_step_is_timed() -> None:
    """Without a way back all of a script is timed."""
    inputs = draw(Case.parse(DECODING))
    called = []

    class Counted(type(user_function(f"{CACHES}:Growing", "cached").judged())):  # type: ignore[misc]
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


PAGES = Path(__file__).parent / "functions" / "paging.py"


def test_a_claim_of_page_sizes_is_asked_in_pages_of_these_sizes() -> None:
    claim = {"page_sizes": (16, 32)}
    free, claimed, broken = (
        list(of_person(f"{PAGES}:{name}", "paged", said))
        for name, said in (("right", {}), ("sixteen", claim), ("ascending", claim))
    )
    judged = [cell.case for cell, verdict in claimed if verdict.status != "unsupported"]
    assert {case.option("page_size") for case in judged} == {16, 32}
    assert {verdict.status for _, verdict in claimed} == {"pass", "unsupported"}
    features = {"window", "heads-before-slots", "scale", "softcap"}  # which it does not take
    assert len(judged) >= sum(not features & {*cell.case.needs} for cell, _ in free) > 0
    assert "fail" in {verdict.status for _, verdict in broken}


def test_a_drop_in_refuses_tables_and_lengths_that_name_nothing() -> None:
    place, claims = f"{PAGES}:right", {"drop_in": True}
    judged = of_person(place, "paged", claims, check="bad_problem")
    messages = {cell.case.id.split("/")[2]: verdict.message for cell, verdict in judged}
    answered = {name for name, message in messages.items() if message}
    assert answered == {"page-negative", "pages-of-two-sizes"}
    assert "changed from" in messages["page-negative"]


def test_the_work_of_a_call_is_what_its_samples_attend() -> None:
    """Samples of 1, 3 and 5 queries with 7, 12 and 5 keys in a window of 3 keys."""
    case = Case.parse("paged/none/gqa2/f32/b3h4q9k24d8v6/seg1.3.5x7.12.5/causal/win2")
    assert PAGED.work is not None
    found = PAGED.work(draw(case), "forward")
    pairs = 4 * (3 + 9 + (1 + 2 + 3 + 3 + 3))
    assert found.flops == 2 * pairs * (8 + 6)
    assert found.bytes == 4 * (8 + 6) * (9 * 4 + 2 * (3 + 5 + 5))

"""Caches: scripts of cases, samples that are chosen, what ids cannot mean; a person's cache is a class
or an object, and what it lacks is not asked, and said. Pages: what no sample owns is drawn so that
reading it shows, and pages have the sizes that a function claims. Honest kernels (`tests/honest`) and
the frameworks' own are second opinions of the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import (
    UsageError,
    callable_implementation,
    load,
)
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import draw, draw_cotangent
from attention_conformance.suite.spec.operators.cached import CACHED, completed
from attention_conformance.suite.spec.operators.paged import PAGED, PLAIN, page_counts, pool_sizes
from attention_conformance.suite.spec.operators.scripts import capacity, most_tokens
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.test_caching import tokens
from tests.runtimes import loaded, of, of_person, user_function

GROWN = "cached/none/mha/f64/b3h2q8k20d8"


def test_cases_ask_rings_and_tokens_that_nobody_attends() -> None:
    asked = of_operator(CACHED, every_case, "standard")
    spare = {capacity(case) - most_tokens(case) for case in asked}
    assert spare >= {0, 2}
    assert min(spare) < 0
    groups = dict(tokens(draw(Case.parse("cached/none/gqa2/f32/b2h4q9k9d8/c5.back2.1.3"))))
    assert not groups["tokens that no row attends"].any()  # rows before the crop attend all
    groups = dict(tokens(draw(Case.parse(f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12"))))
    assert groups["tokens that no row attends"].sum() == 3 * 9 + 3  # and padding


def test_samples_are_chosen_with_their_histories() -> None:
    inputs = draw(Case.parse(f"{GROWN}/c1.5.pick110.1.1/pad5.0.12"))
    chosen = inputs.select("b", [1, 0])
    assert chosen.case.id == "cached/none/mha/f64/b2h2q8k20d8/c1.5.pick00.1.1/pad0.5"
    assert inputs.select("b", [1]).case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.5.pick0.1.1"
    with pytest.raises(ValueError, match="1 is not in list"):
        inputs.select("b", [0])
    for keep in ("keep2", "keep2x"):
        drafted = draw(Case.parse(f"{GROWN}/c1.tree112of02.{keep}.3of1.4"))
        alone = drafted.select("b", [1])
        assert alone.case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.3of0.4"


def test_random_scripts_are_valid() -> None:
    sizes = Sizes(2, 2, 2, 3, 3, 4, 4)
    for numbers, script in (
        ((3, 0, 2), "creset.2"),
        ((9, 1), "c9.pick10.1"),
        ((1, 3), "c1.1+2"),
        ((7, 1), "c7.back2.1"),
        ((0, 0), "c1"),
        ((4, 0, 1), "creset.1"),
        ((8, 0, 9, 1), "c8.back2.reset.9.pick10.1/pad1.2"),
        ((8, 3), "c8.back2.1+2"),
    ):
        own, options = completed(sizes, numbers)
        assert Case.of(CACHED, own, every_case("smoke")[0].dtype, **options).id.endswith(script)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b2h4q9k9d8", "needs a script"),
        ("b2h4q9k9d8/c9.reset", "ends with a chunk"),
        ("b2h4q9k9d8/c5.1", "add up to the number of queries"),
        ("b2h4q9k8d8/c9", "keys are as many or more"),
        ("b2h4q9k9d8/c5.back6.4", "not 6 tokens to take back"),
        ("b2h4q9k9d8/c5.pick02.4", "samples are numbers below 2"),
        ("b2h4q9k9d8/c5.pick0.4", "pick has a number for each of 2 samples"),
        ("b2h4q9k9d8/c9/win4/room4", "a ring has 5 slots"),
        ("b2h4q9k9d8/c5of00.5of1.4", "a sample steps once at a time"),
        ("b2h4q9k9d8/c5.tree1121.keep4.0", "keep has a node of the tree"),
        ("b2h4q9k9d8/c5.tree11.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c3.tree1121.back3.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c5.1.3/base100.0", "a base is that of a rotation"),
        ("b2h4q9k9d8/c5.tree1121/win3/room6", "a ring has 7 slots"),
        ("b2h4q9k9d8/c5.2of0.tree11of1.keep10.2", "keep has a node of the tree"),
        ("b2h4q9k9d8/c5.tree11.resetof1.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c2.6of1.pick11.7of0.1of1/bias.1hqk", "a column for every position"),
        ("b2h4q9k12d8/c9/pad12.0", "every prompt has a token behind it"),
        ("b2h4q9k12d8/c9/pad3", "left padding is a number for each sample"),
        ("b2h4q9k12d8/c5.reset.4/pad3.0.0.0", "not all 0 in the last"),
        ("b2h4q9k9d8/c5.reset.4/pad5.0.0.1", "every prompt has a token behind it"),
        ("b2h4q9k9d8/c5.4/pad3.0.0.1", "for each sample of every prompt"),
        ("b2h4q9k9d8/c2.tree1121.keep3.3/pad3.0", "every prompt has a token behind it"),
        ("b2h4q9k12d8/c5+4/pad3.0", "no other document"),
        ("b2h4q9k9d7/c5.4/rot.halves", "a rotation is of pairs of components"),
        ("b2h4q9k9d8/c5+0.4", "one token or more in each document"),
        ("b2h4q9k9d8/c9/cap0.0", "softcap must be positive"),
    ],
)
def test_what_ids_cannot_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(f"cached/none/mha/f32/{text}")


CACHES = Path(__file__).parent / "functions" / "caching.py"


def statuses(name: str) -> dict[Case, str]:
    """Statuses of a cache's cells of the check values at smoke, by case."""
    judged = of_person(f"{CACHES}:{name}", "cached")
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
        cells = of_person(f"{CACHES}:{name}", "cached", said)
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
    with pytest.raises(UsageError, match="Stepless has no step; expected both as methods"):
        user_function(f"{CACHES}:Stepless", "cached")
    with pytest.raises(UsageError, match="no cache is judged with numpy"):
        user_function(f"{CACHES}:Slots", "cached", "numpy")


DECODING = "cached/none/gqa2/f32/b2h4q1k9d8/c1"


def implementation(name: str) -> Implementation:
    """An implementation of torch, or a cache of `CACHES`."""
    if name == "textbook-cached":
        return of(loaded("torch"), name)
    return user_function(f"{CACHES}:{name}", "cached")


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


PAGES = Path(__file__).parent / "functions" / "paging.py"
STEP = PLAIN.replace("{dt}", "f64")
SHARED = "paged/none/gqa2/f64/b3h4q9k24d8/seg1.3.5x7.12.5/shared/hnd/causal"


def test_what_no_sample_owns_has_no_gradient_and_is_large() -> None:
    ends = set()
    for case in of_operator(PAGED, every_case, "standard"):
        inputs = draw(case)
        sizes, (counts, shared) = pool_sizes(case), page_counts(case)
        table = inputs.arrays["page_table"]
        own = [{*row[:count].tolist()} for row, count in zip(table, counts, strict=True)]
        assert sizes["p"] - len(set().union(*own)) == 2
        common = set.intersection(*(pages for pages in own if pages))
        assert len(own) == 1 or len(common) == shared
        ends |= {(end, end % sizes["p"] in set().union(*own)) for end in (0, -1)}
        large = (np.abs(inputs.key) >= 100).all(-1).sum()
        copies = shared * sizes["s"] * (sum(map(bool, own)) - 1)
        stored = case.sizes.Hkv * (case.sizes.Lk - copies)
        assert large == inputs.key[..., 0].size - stored
    assert ends == {(0, True), (0, False), (-1, True), (-1, False)}, "each end is owned, and free"
    inputs = draw(Case.parse(SHARED))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    for name in ("key", "value"):
        hidden = np.abs(inputs.arrays[name]) >= 100
        assert hidden.any()
        assert not gradients[name].value[hidden].any()
        assert gradients[name].error[hidden].max() < 1e-300  # an underflow at most


def test_samples_are_chosen_and_the_pool_stays() -> None:
    inputs = draw(Case.parse(STEP))
    chosen = inputs.select("b", [2, 0])
    assert chosen.case.id == "paged/none/gqa2/f64/b2h4q6k12d8/seg5.1x5.7/causal"
    assert chosen.key is inputs.key
    whole, part = (
        Oracle.forward(x, Rounding("exact")).expected["output"].value for x in (inputs, chosen)
    )
    assert np.array_equal(part, np.concatenate([whole[4:9], whole[:1]]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b3h4q9k24d8/causal", "needs lengths of samples"),
        ("b3h4q9k24d8/seg1.3.5x7.12.4", "keys: expected 3 with 24, got 3 with 23"),
        ("b2h4q3k4d8/seg1.2x4.0", "every query needs a key"),
        ("b2h4q5k6d8/seg1.4x3.3/causal", "every query needs a key"),
        ("b1h4q1k8d8/seg1x8/win3", "a window is causal"),
        ("b1h4q1k8d8/seg1x8/page0", "at least one slot"),
        ("b2h4q2k11d8/seg1.1x3.8/shared", "full pages"),
        ("b1h4q0k8d8/seg0x8", "needs a query and a key"),
        ("b1h4q1k8d8/seg1x8/cap0.0", "softcap must be positive"),
    ],
)
def test_what_ids_of_pages_cannot_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(f"paged/none/mha/f32/{text}")


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
    with pytest.raises(UsageError, match="page_sizes are whole numbers from 1 on"):
        user_function(f"{PAGES}:sixteen", "paged", page_sizes=(0,))


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

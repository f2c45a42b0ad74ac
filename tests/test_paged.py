"""Paged attention: what no sample owns is drawn so that reading it shows, pages have the sizes that a
function claims, and a person's function is judged. Honest kernels and the frameworks' own are second
opinions of the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attention_conformance.backends.registry import UsageError, function_implementation, load
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import draw, draw_cotangent
from attention_conformance.suite.spec.operators.paged import PAGED, PLAIN, page_counts, pool
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions" / "paging.py"
STEP = PLAIN.replace("{dt}", "f64")
SHARED = "paged/none/gqa2/f64/b3h4q9k24d8/seg1.3.5x7.12.5/shared/hnd/causal"


def test_what_no_sample_owns_has_no_gradient_and_is_large() -> None:
    ends = set()
    for case in of_operator(PAGED, every_case, "standard"):
        inputs = draw(case)
        sizes, (counts, shared) = pool(case), page_counts(case)
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
def test_what_ids_cannot_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(f"paged/none/mha/f32/{text}")


def test_a_claim_of_page_sizes_is_asked_in_pages_of_these_sizes() -> None:
    claim = {"page_sizes": (16, 32)}
    free, claimed, broken = (
        list(of_person(f"{FUNCTIONS}:{name}", "paged", said))
        for name, said in (("right", {}), ("sixteen", claim), ("ascending", claim))
    )
    judged = [cell.case for cell, verdict in claimed if verdict.status != "unsupported"]
    assert {case.option("page_size") for case in judged} == {16, 32}
    assert {verdict.status for _, verdict in claimed} == {"pass", "unsupported"}
    features = {"window", "heads-before-slots", "scale", "softcap"}  # which it does not take
    assert len(judged) >= sum(not features & {*cell.case.needs} for cell, _ in free) > 0
    assert "fail" in {verdict.status for _, verdict in broken}
    with pytest.raises(UsageError, match="page_sizes are whole numbers from 1 on"):
        function_implementation(
            load("torch"), f"{FUNCTIONS}:sixteen", {"page_sizes": (0,)}, "paged"
        )


def test_a_drop_in_refuses_tables_and_lengths_that_name_nothing() -> None:
    place, claims = f"{FUNCTIONS}:right", {"drop_in": True}
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

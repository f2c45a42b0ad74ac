"""Promise: writing changes the slots of the tokens and nothing else, to the last bit.

A person's function may write in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from suite.judge.oracle import Oracle, Rounding
from suite.spec.case import Case
from suite.spec.catalogue import cases as every_case
from suite.spec.catalogue import of_operator
from suite.spec.inputs import Inputs, draw, draw_cotangent
from suite.spec.operators.paged_write import PAGED_WRITE
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions" / "paging.py"
SKIPPED = "paged-write/none/mha/f64/b3h2q9k24d8v6/seg1.3.5x7.12.5/hnd/shuffled/skipped"


def token_by_token(inputs: Inputs, name: str) -> np.ndarray:
    """A pool after the write, every number by itself."""
    pool, hnd = inputs.arrays[f"{name}_cache"].copy(), inputs.case.option("layout") == "hnd"
    size = inputs.case.option("page_size")
    for n, slot in enumerate(inputs.arrays["slot_mapping"].astype(int)):
        for head in range(inputs.sizes.Hkv if slot >= 0 else 0):
            page, place = slot // size, slot % size
            at = (page, head, place) if hnd else (page, place, head)
            pool[at] = inputs.arrays[name][n, head]
    return pool


def test_the_reference_is_a_copy_token_by_token() -> None:
    for case in (*of_operator(PAGED_WRITE, every_case, "standard"), Case.parse(SKIPPED)):
        inputs = draw(case)
        expected = Oracle.forward(inputs, Rounding("exact")).expected
        for name, pool in (("key", "output"), ("value", "value_output")):
            assert np.array_equal(expected[pool].value, token_by_token(inputs, name))
            assert not expected[pool].error.any()
        slots = inputs.arrays["slot_mapping"]
        assert len(np.unique(slots[slots >= 0])) == (slots >= 0).sum()
        assert (slots < 0).any() == case.option("skipped")


def test_skipped_tokens_have_no_gradient() -> None:
    inputs = draw(Case.parse(SKIPPED))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    skipped = inputs.arrays["slot_mapping"] < 0
    assert set(gradients) == {"key", "key_cache"}
    assert not gradients["key"].value[skipped].any()
    assert gradients["key"].value[~skipped].all()


def statuses(name: str) -> dict[bool, set[str]]:
    """Statuses of a function's cells of the check values at smoke, by whether slots are skipped."""
    outcomes: dict[bool, set[str]] = {}
    for cell, verdict in of_person(f"{FUNCTIONS}:{name}", "paged-write"):
        outcomes.setdefault(cell.case.option("skipped"), set()).add(verdict.status)
    return outcomes


def test_a_persons_function_returns_pools_or_writes_in_place() -> None:
    assert statuses("written") == {False: {"pass", "unsupported"}, True: {"pass"}}  # no kv_layout
    assert statuses("written_in_place") == {False: {"pass"}, True: {"pass"}}


def test_negative_slots_that_count_from_the_end_fail() -> None:
    assert statuses("wraps") == {False: {"pass", "unsupported"}, True: {"fail"}}

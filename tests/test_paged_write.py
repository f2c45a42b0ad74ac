"""Promise: writing changes the slots of the tokens and nothing else, to the last bit."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operators.paged_write import PAGED_WRITE

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

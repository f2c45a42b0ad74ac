"""Promise: an operator in pages is the operator over the tokens that its table names."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    TABLE,
    gather_tokens,
    owned_slots,
    pools,
    slots,
    slots_first,
    stored_pool_names,
    with_stored_tokens,
)
from attention_conformance.suite.spec.operators.latent import LATENT
from attention_conformance.suite.spec.operators.quantized import QUANTIZED

PAGED = [
    case
    for operator in (QUANTIZED, LATENT)
    for case in of_operator(operator, every_case, "standard")
    if case.option("page_size") is not None and case.dtype.name in ("f32", "bf16")
]


ALONE = [case for case in PAGED if case.sizes.Lq > 1 and not case.option("writes")]


@pytest.mark.parametrize("case", PAGED, ids=str)
def test_the_reference_reads_by_the_table_and_keeps_all_other_slots(case: Case) -> None:
    inputs = draw(case)
    flat, size, Lk = gather_tokens(inputs), case.option("page_size"), case.sizes.Lk
    table, counts = (inputs.arrays[name].astype(int) for name in TABLE)
    for name, pool in (
        with_stored_tokens(inputs) if stored_pool_names(case) else inputs
    ).arrays.items():
        if name in pools(inputs):
            pool = slots_first(case, pool, flat.axes(name))
            keys = flat.axes(name).index("k")
            for b, k in np.ndindex(case.sizes.B, Lk):
                if k < counts[b]:
                    token = pool[table[b, k // size], k % size]
                    at = Lk - counts[b] + k  # the last key is the last one
                    assert np.array_equal(flat.arrays[name][b].take(at, keys - 1), token)
    whole, plain = (Oracle.forward(x, Rounding("exact")).expected for x in (inputs, flat))
    assert np.array_equal(whole["output"].value, plain["output"].value)
    assert np.array_equal(whole["output"].error, plain["output"].error)
    own = owned_slots(inputs)
    assert not own.all()
    for name in [name for name in plain if name.endswith("_output")]:
        before = inputs.arrays[name.replace("_output", "_codes")]
        value, error, before = (
            slots_first(case, x) for x in (whole[name].value, whole[name].error, before)
        )
        assert np.array_equal(value[~own], before[~own])
        assert not error[~own].any()
        assert whole[name].error.any()


def test_new_tokens_are_stored_in_the_last_slots_of_their_samples() -> None:
    inputs = draw(Case.parse("latent/causalbr/mha/f32/b2h3q4k9d8v6/writes/page4"))
    table, counts = (inputs.arrays[name].astype(int) for name in TABLE)
    whole = Oracle.forward(inputs, Rounding("exact")).expected
    for name in ("latent", "key_rope"):
        expected, new = inputs.arrays[name].copy(), inputs.arrays[f"{NEW}{name}"]
        assert not np.isin(new, expected).any()
        for b, q in np.ndindex(2, 4):
            key = counts[b] - 4 + q
            expected[table[b, key // 4], key % 4] = new[b, q]
        assert np.array_equal(whole[f"{name}_output"].value, expected)
        assert not whole[f"{name}_output"].error.any()
    after, cotangent = with_stored_tokens(inputs), np.ones((2, 3, 4, 6))
    of_new, of_all = (Oracle.vjp(x, cotangent, Rounding("exact")).expected for x in (inputs, after))
    at = slots(inputs)[:, -4:]
    tokens, others = (x["latent"].value.reshape(-1, 16).copy() for x in (of_all, of_new))
    assert np.array_equal(of_new["new_latent"].value, tokens[at])
    tokens[at] = 0
    assert np.array_equal(others, tokens)
    moved = {"new_latent": np.ones((2, 4, 16))}
    of_ones = Oracle.jvp(inputs, moved, Rounding("exact")).expected["output"].value
    assert np.isclose(float(of_ones.sum()), float(of_new["new_latent"].value.sum()))


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_a_sample_is_answered_as_alone(case: Case) -> None:
    """The last query is at the last key of each sample, whatever the others have."""
    inputs = draw(case)
    whole = Oracle.forward(inputs, Rounding("exact")).expected["output"].value
    flat, counts = gather_tokens(inputs), inputs.arrays["key_lengths"].astype(int)
    for b, count in enumerate(counts):
        alone = flat.replace(mask_array=None, mask=case.mask).select("b", [b])
        keys = alone.select("k", slice(case.sizes.Lk - count, None))
        own = Oracle.forward(keys, Rounding("exact")).expected["output"].value
        assert np.allclose(own[0], whole[b], rtol=1e-12)

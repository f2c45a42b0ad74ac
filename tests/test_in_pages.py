"""Promise: an operator in pages is the operator over the tokens that its table names."""

from __future__ import annotations

import numpy as np
import pytest

from suite.judge.oracle import Oracle, Rounding
from suite.spec.case import Case
from suite.spec.catalogue import cases as every_case
from suite.spec.catalogue import of_operator
from suite.spec.inputs import draw
from suite.spec.operator import Operator
from suite.spec.operators.in_pages import gathered, slots
from suite.spec.operators.latent import LATENT
from suite.spec.operators.quantized import QUANTIZED

PAGED = [
    case
    for operator in (QUANTIZED, LATENT)
    for case in of_operator(operator, every_case, "standard")
    if case.option("page_size") is not None and case.dtype.name in ("f32", "bf16")
]


@pytest.mark.parametrize("case", PAGED, ids=str)
def test_the_reference_reads_by_the_table_and_keeps_all_other_slots(case: Case) -> None:
    inputs = draw(case)
    flat, size = gathered(inputs), case.option("page_size")
    table = inputs.arrays["page_table"].astype(int)
    for name, pool in inputs.arrays.items():
        if inputs.axes(name)[:2] == "ps":
            keys = flat.axes(name).index("k")
            for b, k in np.ndindex(case.sizes.B, case.sizes.Lk):
                token = pool[table[b, k // size], k % size]
                assert np.array_equal(flat.arrays[name][b].take(k, keys - 1), token)
    whole, plain = (Oracle.forward(x, Rounding("exact")).expected for x in (inputs, flat))
    assert np.array_equal(whole["output"].value, plain["output"].value)
    assert np.array_equal(whole["output"].error, plain["output"].error)
    owned = np.zeros((inputs.letters["p"], size), bool)
    owned.reshape(-1)[slots(inputs)] = True
    assert not owned.all()
    for name in [name for name in whole if name.endswith("_output")]:
        before = inputs.arrays[name.replace("_output", "_codes")]
        assert np.array_equal(whole[name].value[~owned], before[~owned])
        assert not whole[name].error[~owned].any()
        assert whole[name].error.any()


def test_gradients_of_pools_are_those_of_their_tokens() -> None:
    inputs = draw(Case.parse("latent/causalbr/mha/f32/b2h3q4k9d8v6/page4"))
    cotangent = np.ones((2, 3, 4, 6))
    whole, plain = (
        Oracle.vjp(x, cotangent, Rounding("exact")).expected for x in (inputs, gathered(inputs))
    )
    pool = whole["latent"].value
    tokens = pool.reshape(-1, pool.shape[-1])
    assert np.array_equal(tokens[slots(inputs)], plain["latent"].value)
    assert np.count_nonzero(tokens.any(1)) == slots(inputs).size
    moved = {"latent": np.ones_like(pool)}
    of_ones = Oracle.jvp(inputs, moved, Rounding("exact")).expected["output"].value
    assert np.isclose(float((of_ones * cotangent).sum()), float(plain["latent"].value.sum()))


@pytest.mark.parametrize("operator", [QUANTIZED, LATENT], ids=str)
def test_a_page_has_a_slot(operator: Operator) -> None:
    with pytest.raises(ValueError, match="page0"):
        Case.parse(f"{operator.asks.plain.format(dt='f32')}/page0")

"""Promise: merging is attention over all keys, part by part, in any nesting."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import Deviation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from tests.plain import attention as plain_attention

FOUR = "merge/none/mha/f64/b2h3q5k4d8"


def test_parts_of_the_keys_make_the_whole() -> None:
    """Plain attention over thirds of the keys, merged, is plain attention over all of them."""
    rng = np.random.default_rng(5)
    query, key, value = (rng.standard_normal((2, 3, L, 8)) for L in (5, 12, 12))
    parts = [slice(0, 3), slice(3, 4), slice(4, 12)]
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(8)
    lse = np.stack([np.logaddexp.reduce(scores[..., part], -1) for part in parts])
    outputs = np.stack([plain_attention(query, key[:, :, p], value[:, :, p]) for p in parts])
    case = Case.parse("merge/none/mha/f64/b2h3q5k3d8")
    inputs = draw(case).replace(partial_output=outputs, partial_lse=lse)
    expected = Oracle.forward(inputs, Rounding("exact")).expected
    assert np.allclose(
        expected["output"].value.astype(float), plain_attention(query, key, value), atol=1e-13
    )
    assert np.allclose(
        expected["lse"].value.astype(float), np.logaddexp.reduce(scores, -1), atol=1e-13
    )
    assert (expected["output"].error > 0).all()


def test_where_all_parts_are_empty_the_answer_is_promised() -> None:
    inputs = draw(Case.parse(f"{FOUR}/empty"))
    expected = Oracle.forward(inputs, Rounding("exact")).expected
    assert (expected["output"].value[:, :, -1] == 0).all()
    assert np.isneginf(expected["lse"].value[:, :, -1]).all()
    assert np.isfinite(expected["output"].error).all()


@pytest.mark.parametrize("got", [np.nan, 0.0, np.inf])
def test_nothing_but_minus_infinity_is_minus_infinity(got: float) -> None:
    want = np.full(3, -np.inf)
    arrays = np.full(3, got), want, np.zeros(3), np.ones(3, bool)
    try:
        _, _, deviation = against_oracle(*arrays, DTYPES["f32"], "exact")
    except Deviation as error:
        deviation = error
    assert deviation is not None
    assert against_oracle(want, *arrays[1:], DTYPES["f32"], "exact")[2] is None

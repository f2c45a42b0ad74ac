"""What references of other operators promise beyond values: gradients of what nobody attends, rows of
empty parts, samples that are chosen. Honest kernels (`tests/honest`) are second opinions of values."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import Deviation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw, draw_cotangent
from attention_conformance.suite.spec.operators.in_pages import NEW, TABLE, slots, stored

PLAIN = "packed/none/mha/f64/b3h4q24k24d8/seg5.7.12"
CROSS = "packed/none/gqa2/f64/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"


def test_products_may_be_cut_off_where_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed attention multiplies matrices as plain attention does; a rotation multiplies none."""
    backend = load("numpy")
    rounding = DeclaredRounding(truncates_matmul=("bf16",))
    monkeypatch.setattr(backend, "rounding", rounding)
    texts = ("sdpa/none/mha/bf16/b2h3q5k7d8", PLAIN.replace("f64", "bf16"), PLAIN.replace("f64", "f32"),
             "rotary/none/mha/bf16/b2h3q17k1d16")  # fmt: skip
    cut = []
    for text in texts:
        case = Case.parse(text)
        one = next(i for i in backend.implementations() if i.operator is case.operator)
        declared = Cell(all_checks()["values"], case, one).rounding.declared
        cut.append(case.dtype.name in declared.truncates_matmul)
    assert cut == [True, True, False, False]


def test_keys_that_no_query_attends_have_no_gradient() -> None:
    inputs = draw(Case.parse(CROSS))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    for name in ("key", "value"):
        assert not gradients[name].value[5:16].any()
        assert gradients[name].error[5:16].max() < 1e-300  # an underflow at most
        assert gradients[name].value[:5].all()


def test_segments_are_chosen_as_samples_are() -> None:
    inputs = draw(Case.parse(CROSS))
    chosen = inputs.select("b", [2, 0])
    assert chosen.case.id == "packed/none/gqa2/f64/b2h4q9k12d8/seg6.3x7.5/causalbr"
    assert np.array_equal(chosen.query, np.concatenate([inputs.query[3:9], inputs.query[:3]]))
    whole, part = (
        Oracle.forward(x, Rounding("exact")).expected["output"].value for x in (inputs, chosen)
    )
    assert np.array_equal(part, np.concatenate([whole[3:9], whole[:3]]))


def test_where_all_parts_are_empty_the_answer_is_promised() -> None:
    inputs = draw(Case.parse("merge/none/mha/f64/b2h3q5k4d8/empty"))
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


SKIPPED = "paged-write/none/mha/f64/b3h2q9k24d8v6/seg1.3.5x7.12.5/hnd/shuffled/skipped"


def test_skipped_tokens_have_no_gradient() -> None:
    inputs = draw(Case.parse(SKIPPED))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    skipped = inputs.arrays["slot_mapping"] < 0
    assert set(gradients) == {"key", "key_cache"}
    assert not gradients["key"].value[skipped].any()
    assert gradients["key"].value[~skipped].all()


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
    after, cotangent = stored(inputs), np.ones((2, 3, 4, 6))
    of_new, of_all = (Oracle.vjp(x, cotangent, Rounding("exact")).expected for x in (inputs, after))
    at = slots(inputs)[:, -4:]
    tokens, others = (x["latent"].value.reshape(-1, 16).copy() for x in (of_all, of_new))
    assert np.array_equal(of_new["new_latent"].value, tokens[at])
    tokens[at] = 0
    assert np.array_equal(others, tokens)
    moved = {"new_latent": np.ones((2, 4, 16))}
    of_ones = Oracle.jvp(inputs, moved, Rounding("exact")).expected["output"].value
    assert np.isclose(float(of_ones.sum()), float(of_new["new_latent"].value.sum()))

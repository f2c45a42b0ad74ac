"""Promise: packed attention is plain attention segment by segment, forward and backward; ids say lengths,
and what they cannot mean is refused."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operators.packed import (
    hidden_pairs,
)
from tests.plain import attention as plain_attention

PLAIN = "packed/none/mha/f64/b3h4q24k24d8/seg5.7.12"
CROSS = "packed/none/gqa2/f64/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"
CASES = (PLAIN, f"{PLAIN}/causal", CROSS, "packed/none/mqa/f64/b3h4q10k24d8v6/seg3.1.6x5.12.7")


def by_a_mask(inputs: Inputs) -> np.ndarray:
    """The answer (Lq, H, Dv) as plain attention over all pairs under one mask gives it."""
    group = inputs.sizes.group
    query, key, value = (
        inputs.arrays[name].transpose(1, 0, 2)[None] for name in ("query", "key", "value")
    )
    key, value = (np.repeat(x, group, 1) for x in (key, value))
    shown = ~hidden_pairs(inputs.case)
    answer = plain_attention(query, key, value, mask=shown, scale=inputs.effective_scale)
    out: np.ndarray = np.asarray(answer)[0].transpose(1, 0, 2)
    return out


@pytest.mark.parametrize("text", CASES)
def test_the_reference_is_plain_attention_under_a_mask(text: str) -> None:
    inputs = draw(Case.parse(text))
    expected = Oracle.forward(inputs, Rounding("exact")).expected["output"]
    assert expected.value.shape == inputs.output_shape("output")
    assert np.allclose(expected.value.astype(float), by_a_mask(inputs), rtol=0, atol=1e-13)
    assert (expected.error > 0).all()


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

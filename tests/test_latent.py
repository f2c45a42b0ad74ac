"""Promise: each form of latent attention has a bound of its own, and a person's function is asked what it
takes. Honest kernels of both forms are second opinions of values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operators.latent import AXES, plain
from tests.plain import attention as plain_attention
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions" / "latents.py"
ONE_FORM = [False, True]


def rounding(absorbs: bool | None, numerics: str = "exact") -> Rounding:
    form = {} if absorbs is None else dict.fromkeys(DTYPES, absorbs)
    return Rounding(numerics, declared=DeclaredRounding(absorbs=form))


def by_keys(inputs: Inputs) -> np.ndarray:
    """Plain attention over the projected keys and values."""
    operands = plain(inputs.arrays)
    return plain_attention(*operands, mask=inputs.dense_mask, scale=inputs.effective_scale)


def test_forms_have_other_bounds_and_an_undeclared_form_the_larger_one() -> None:
    for sizes, larger in (("d8v6/r32e8", 1), ("d64/r7e3", 0)):
        inputs = draw(Case.parse(f"latent/none/mha/bf16/b2h3q4k9{sizes}"))
        bounds = [Oracle.forward(inputs, rounding(absorbs)).bound() for absorbs in ONE_FORM]
        assert np.median(bounds[larger] / bounds[1 - larger]) > 1.3, sizes
        either = Oracle.forward(inputs, rounding(None)).bound()
        assert np.array_equal(either, np.maximum(*bounds))
    cotangent = draw_cotangent(inputs.case)
    of = [
        Oracle.vjp(inputs, cotangent, rounding(absorbs)).expected for absorbs in (False, True, None)
    ]
    for name in AXES:
        assert np.array_equal(of[2][name].error, np.maximum(of[0][name].error, of[1][name].error))


@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32"])
def test_projections_that_select_have_the_bound_of_plain_attention(fmt: str) -> None:
    """So a scale that is off by 1 % is seen in 16 bits."""
    inputs = draw(Case.parse(f"latent/none/mha/{fmt}/b2h3q4k9d8v6/select/large"))
    other = draw(Case.parse(f"sdpa/none/mha/{fmt}/b2h3q4k9d12v6"))
    query, key, value = plain(inputs.arrays)
    same = other.replace(query=query, key=key, value=value)
    want = Oracle.forward(same, rounding(None)).expected["output"]
    roughly = by_keys(inputs.replace(scale=1.01 * inputs.effective_scale))
    for absorbs in ONE_FORM:
        got = Oracle.forward(inputs, rounding(absorbs)).expected["output"]
        assert np.allclose(got.value, want.value, rtol=0, atol=1e-12)
        assert np.median(got.error / want.error) < 2.1
        assert (np.abs(roughly - got.value) > got.error).any()


def test_a_function_without_a_mask_is_passed_none() -> None:
    verdicts = of_person(f"{FUNCTIONS}:causal_alone", "latent", check="invariant_decode")
    assert [verdict.status for _, verdict in verdicts] == ["pass"]


@pytest.mark.parametrize(("name", "status"), [("absorbed", "pass"), ("unabsorbed", "unsupported")])
def test_a_slot_behind_the_last_key_is_asked_of_functions_with_pages(
    name: str, status: str
) -> None:
    found = of_person(f"{FUNCTIONS}:{name}", "latent", check="election")
    asked = [verdict for cell, verdict in found if "nan-behind-last-key" in cell.case.id]
    assert {verdict.status for verdict in asked} == {status}

"""The gradients of plain attention with hidden slots, rows without keys and sinks
(`tests/test_derivatives.py` has what holds of every operator)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.references import sdpa
from attention_conformance.references.outputs import EMPTY_ROW_GRADIENTS, Outputs
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent, draw_tangents

OPERANDS = ("query", "key", "value")


def values(outputs: Outputs) -> dict[str, np.ndarray]:
    return {name: array.value for name, array in outputs.arrays.items()}


def test_what_is_hidden_and_rows_without_keys() -> None:
    case = Case.parse("sdpa/padempty/mha/f32/b2h2q3k4d2")
    inputs, cotangent = draw(case), draw_cotangent(case)
    u = roundoffs("exact", case.dtype)
    clean = sdpa.reference.vjp(inputs, cotangent, u)
    for name in OPERANDS:
        assert (clean.arrays[name].value[-1] == 0).all()
    poisoned = inputs.key.copy()
    poisoned[-1] = np.nan
    dirty = sdpa.reference.vjp(inputs.replace(key=poisoned), cotangent, u)
    for name in OPERANDS:
        for part in ("value", "error"):
            one, other = (getattr(x.arrays[name], part) for x in (clean, dirty))
            np.testing.assert_array_equal(one, other)
    shared = sdpa.reference.vjp(inputs, cotangent, u, "uniform").arrays["value"].value[-1]
    want = cotangent[-1].sum(-2, keepdims=True) / 4
    np.testing.assert_array_max_ulp(shared, np.broadcast_to(want, (2, 4, 2)), 4)


@pytest.mark.parametrize("empty_rows", EMPTY_ROW_GRADIENTS)
def test_rows_without_keys_by_what_they_stand_for(empty_rows: str) -> None:
    """ "scores" are the gradients of zero queries that see every key, as the row's scores are equal;
    "uniform" keeps of these the values' alone."""
    case = Case.parse("sdpa/padempty/mha/f64/b2h2q3k4d2")
    inputs, cotangent = draw(case), draw_cotangent(case)
    gradients = values(sdpa.reference.vjp(inputs, cotangent, NO_ROUNDING, empty_rows))
    blank = ~inputs.attends.any(-1, keepdims=True)
    assert blank[-1].all()
    seen = inputs.replace(
        query=np.where(blank, 0, inputs.query), mask=None, mask_array=inputs.attends | blank
    )
    shown = values(sdpa.reference.vjp(seen, cotangent, NO_ROUNDING))
    for name in OPERANDS:
        got, want = gradients[name][-1], shown[name][-1]
        if name == "key" and empty_rows == "scores":
            # dK sums dS q with the row's own queries, which zero queries hide.
            ds = _score_gradient(inputs, cotangent)[-1] / np.sqrt(np.longdouble(2))
            want = ds.swapaxes(-1, -2) @ inputs.query[-1].astype(np.longdouble)
        taken = empty_rows == "scores" or (empty_rows == "uniform" and name == "value")
        assert np.abs(got - (want if taken else 0)).max() < 1e-17


def _score_gradient(inputs: Inputs, cotangent: np.ndarray) -> np.ndarray:
    """dS where the scores of every row are equal and all keys are seen."""
    received = cotangent.astype(np.longdouble) @ inputs.value.swapaxes(-1, -2)
    return (received - received.mean(-1, keepdims=True)) / inputs.sizes.Lk


@pytest.mark.parametrize("empty_rows", EMPTY_ROW_GRADIENTS)
def test_a_row_without_keys_and_with_a_sink_takes_no_gradient(empty_rows: str) -> None:
    case = Case.parse("sdpa/padempty/mha/f32/b2h2q3k4d2/sinks")
    inputs, u = draw(case), roundoffs("exact", case.dtype)
    assert inputs.feature("sinks") is not None
    inputs = inputs.replace(sinks=np.array([0.5, -np.inf]))
    alone = np.zeros((2, 2, 3, 2))
    alone[-1] = draw_cotangent(case)[-1]
    gradients = values(sdpa.reference.vjp(inputs, alone, u, empty_rows))
    for name in OPERANDS:
        assert not gradients[name][:, 0].any()
    assert not gradients["sinks"].any()
    assert gradients["value"][-1, 1].any() == (empty_rows != "zeros")
    tangents = draw_tangents(case, ("query", "key", "value", "sinks"))
    moved = sdpa.reference.jvp(inputs, tangents, u, empty_rows)
    assert not moved.arrays["output"].value[-1, 0].any()
    assert moved.arrays["output"].value[-1, 1].any() == (empty_rows != "zeros")
    assert np.array_equal(moved.keys == 0, ~inputs.attends.any(-1))
    assert np.array_equal(moved.empty[-1], [[False] * 3, [True] * 3])


def test_declared_roundings_widen_the_gradients_they_speak_of() -> None:
    case = Case.parse("sdpa/none/gqa2/bf16/b2h4q6k6d4/bias.qk/sinks")
    inputs, cotangent = draw(case), draw_cotangent(case)
    plain = roundoffs("fused", case.dtype)

    def wider(**declared: Any) -> set[str]:
        before, after = (
            sdpa.reference.vjp(inputs, cotangent, u).arrays
            for u in (plain, replace(plain, **declared))
        )
        return {n for n, x in after.items() if (x.error > before[n].error).all()}

    assert wider(exp_error=1e-4) == {"query", "key", "value", "bias", "sinks"}
    assert wider(gradient_blocks=(2, 2)) == {"query", "key", "value"}
    assert wider(reduction=plain.output) == {"key", "value", "bias", "sinks"}

"""Bounds of gradients with what implementations declare, gradients of rows without keys, and statistics
that training leaves (`tests/test_derivatives.py` has what holds of every operator)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance import references
from attention_conformance.backends.layer import STEPS, trained
from attention_conformance.references import sdpa
from attention_conformance.references.outputs import EMPTY_ROW_GRADIENTS, Outputs
from attention_conformance.references.rounding import NO_ROUNDING, Bounded
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent

OPERANDS = ("query", "key", "value")


def values(outputs: Outputs) -> dict[str, np.ndarray]:
    return {name: array.value for name, array in outputs.arrays.items()}


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


def test_what_a_norm_declares_widens_its_bounds() -> None:
    inputs = draw(Case.parse("layer-norm/none/mha/bf16/b4h1q3k3d8/e8.8.8.8/self"))
    u, cotangent = roundoffs("exact", inputs.dtype), draw_cotangent(inputs.case)
    reference = references.find(inputs.operator)

    def bounds(**declared: Any) -> dict[str, Bounded]:
        arrays = dict(reference.vjp(inputs, cotangent, replace(u, **declared)).arrays)
        moving = {"query": inputs.key, "gain": inputs.arrays["offset"]}
        return arrays | reference.jvp(inputs, moving, replace(u, **declared)).arrays

    def wider(**declared: Any) -> set[str]:
        plain = bounds()
        return {n for n, x in bounds(**declared).items() if (x.error > plain[n].error).all()}

    assert wider(narrow_statistics=True) == {"query", "gain", "output"}
    assert wider(narrow_biases=("gain", "offset")) == {"gain", "offset"}
    assert wider(reduction=u.output) == {"query", "gain", "offset", "output"}
    forward = (reference.forward(inputs, x) for x in (u, replace(u, narrow_statistics=True)))
    one, other = (outputs.arrays["output"].error for outputs in forward)
    assert np.array_equal(one, other)


def test_what_a_projection_declares_widens_its_bounds() -> None:
    inputs = draw(Case.parse("multi-head/none/mha/bf16/b2h3q5k9d4/e12.12.12.12"))
    u, cotangent = roundoffs("exact", inputs.dtype), draw_cotangent(inputs.case)

    def bounds(**declared: Any) -> dict[str, Bounded]:
        return (
            references.find(inputs.operator).vjp(inputs, cotangent, replace(u, **declared)).arrays
        )

    plain, narrow = bounds(), bounds(narrow_biases=("key_bias", "output_bias"))
    changed = {n for n, x in narrow.items() if not np.array_equal(x.error, plain[n].error)}
    assert changed == {"key_bias", "output_bias"}


def test_statistics_do_not_move() -> None:
    inputs = draw(Case.parse("batch-norm/none/mha/f32/b2h1q3k3d5/e5.5.5.5/self"))
    with pytest.raises(ValueError, match="mean is a constant of batch-norm"):
        references.find(inputs.operator).jvp(inputs, {"mean": inputs.arrays["mean"]}, NO_ROUNDING)


def bounded(inputs: Inputs, numerics: str = "exact") -> dict[str, Bounded]:
    """What the layer returns, in float64 or wider, with the bounds of a class."""
    u = roundoffs(numerics, inputs.dtype)
    return references.find(inputs.operator).forward(inputs, u).arrays


def test_statistics_that_training_leaves_are_known_up_to_their_roundings() -> None:
    """Averages that are added up token by token in float32 answer within the bound, and not within that
    of statistics that are given."""
    x = draw(Case.parse("batch-norm/none/mha/f32/b32h1q3k3d64/e64.64.64.64/self"))
    exact = trained(x, shares := (1.0, 0.5))
    tokens = x.query.reshape(-1, 64).astype(np.float32)
    mean = variance = np.zeros(64, np.float32)
    for factor, share in zip(STEPS, np.float32(shares), strict=True):
        batch = np.float32(factor) * tokens
        own = batch.cumsum(0)[-1] / np.float32(len(batch))
        spread = np.square(batch - own).cumsum(0)[-1] / np.float32(len(batch))
        mean = (1 - share) * mean + share * own
        variance = (1 - share) * variance + share * spread
    got = bounded(x.replace(mean=mean, variance=variance))["output"].value
    want, constant = bounded(exact)["output"], bounded(exact.replace(averaged=None))["output"]
    error = np.abs(got - want.value)
    assert (error <= want.error).all()
    assert (error > constant.error).any()
    assert (want.error < 1e-3).all()

"""The gradients of layers with what implementations declare of them (`tests/test_derivatives.py` has what
holds of every operator)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance import references
from attention_conformance.references.rounding import NO_ROUNDING, Bounded
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw, draw_cotangent


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


@pytest.mark.parametrize(
    "text",
    [
        "multi-head/causal/gqa2/f32/b2h4q5k5d3/e6.6.6.6/self",
        "additive/causal/mha/f32/b2h1q5k5d3v6/e6.6.6.6/self",
        "additive/pad/mha/f32/b2h1q5k5d6/e6.6.6.6/identity/self",
        "concat/pad/mha/f32/b2h1q5k5d6/e6.6.6.6/self",
        "dot/causal/mha/f32/b2h1q5k5d6/e6.6.6.6/self",
    ],
)
def test_one_tensor_receives_the_sum_of_all_three(text: str) -> None:
    inputs = draw(Case.parse(text))
    assert inputs.self_attention
    cotangent, reference = draw_cotangent(inputs.case), references.find(inputs.operator)
    u = roundoffs("eager", inputs.dtype)
    one = reference.vjp(inputs, cotangent, u).arrays
    parts = reference.vjp(inputs.replace(self_attention=False), cotangent, u).arrays
    assert "key" not in one
    assert "value" not in one
    whole = [parts[name] for name in ("query", "key", "value")]
    assert np.abs(one["query"].value - sum(part.value for part in whole)).max() < 1e-14
    assert (one["query"].error >= sum(part.error for part in whole)).all()
    tangents = {"query": inputs.query[::-1]}
    moved = reference.jvp(inputs, tangents, u).arrays["output"]
    apart = reference.jvp(
        inputs.replace(self_attention=False),
        dict.fromkeys(("query", "key", "value"), tangents["query"]),
        u,
    ).arrays["output"]
    assert np.array_equal(moved.value, apart.value)


def test_statistics_do_not_move() -> None:
    inputs = draw(Case.parse("batch-norm/none/mha/f32/b2h1q3k3d5/e5.5.5.5/self"))
    with pytest.raises(ValueError, match="mean is a constant of batch-norm"):
        references.find(inputs.operator).jvp(inputs, {"mean": inputs.arrays["mean"]}, NO_ROUNDING)

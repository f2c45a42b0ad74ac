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


def test_statistics_do_not_move() -> None:
    inputs = draw(Case.parse("batch-norm/none/mha/f32/b2h1q3k3d5/e5.5.5.5/self"))
    with pytest.raises(ValueError, match="mean is a constant of batch-norm"):
        references.find(inputs.operator).jvp(inputs, {"mean": inputs.arrays["mean"]}, NO_ROUNDING)

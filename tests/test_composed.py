"""Plain attention has two references: blocks of rows, which share their terms between classes and
give a standard deviation, and the composition, which has derivatives. Both bound the same errors."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.references import sdpa
from attention_conformance.references.composition import Reference
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw

CASES = (
    "sdpa/causalbr/gqa2/{}/b2h4q5k33d64/scale0.3",
    "sdpa/bool.bhqk.empty/gqa3/{}/b2h6q4k5d3v6/bias.bhqk/dense",
    "sdpa/pad/mqa/{}/b2h4q9k9d16/bias.1hqk/cap0.7",
    "sdpa/causal/gqa2/{}/b2h4q6k40d8/sinks",
    "sdpa/none/mha/{}/b1h2q3k65d80/large",
)


@pytest.mark.parametrize("numerics", ["exact", "fused", "eager", "stepwise"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_bounds_of_both_references_are_alike(case: str, dtype: str, numerics: str) -> None:
    inputs = draw(Case.parse(case.format(dtype)))
    u = roundoffs(numerics, inputs.dtype)
    blocked = sdpa.reference.forward(inputs, u).arrays["output"]
    composed = Reference.forward(sdpa.reference, inputs, u).arrays["output"]
    assert (abs(blocked.value - composed.value) <= 2.0**-10 * blocked.error).all()
    # blocked terms count a third stored score, also where nothing is added to the scaled one
    finite = np.isfinite(blocked.error) & (blocked.error > 0)
    assert (composed.error[finite] <= 1.25 * blocked.error[finite]).all()
    assert np.median(composed.error[finite] / blocked.error[finite]) >= 0.4

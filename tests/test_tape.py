"""The compositions of plain and packed attention are second opinions of the pass by blocks, and of its
bounds."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance import references
from attention_conformance.references.composition import Problem
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, of_operator
from attention_conformance.suite.spec.dtypes import CODES
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators import OPERATORS

CASES = (
    "sdpa/causalbr/gqa2/{dt}/b2h4q6k4d4",
    "sdpa/bool.bhqk.empty/gqa3/{dt}/b2h6q4k5d3v6/bias.bhqk/scale-0.3/dense",
    "sdpa/pad/mqa/{dt}/b2h4q4k5d3/bias.1hqk/cap0.7",
    "sdpa/none/mha/{dt}/b2h3q4k5d3/bias.inf",
    "sdpa/causal/gqa2/{dt}/b2h4q6k4d4/sinks",
    "sdpa/causalbr/gqa2/{dt}/b2h4q4k6d4/slopes",
    "sdpa/bool.bhqk.empty/mha/{dt}/b2h3q4k5d3/bias.qk/cap0.7/sinks/dense",
    "packed/none/gqa2/{dt}/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr",
)


@pytest.mark.parametrize("rows", ["zeros", "uniform"])
@pytest.mark.parametrize(
    ("dt", "numerics"),
    [("f64", "exact"), ("f32", "exact"), ("f32", "eager"), ("f16", "fused"), ("bf16", "eager")],
)
@pytest.mark.parametrize("text", CASES)
def test_a_composition_is_a_second_opinion_of_the_pass_by_blocks(
    text: str, dt: str, numerics: str, rows: str
) -> None:
    """Blocks of rows share their terms between numerics classes, the composition has derivatives; bounds
    are alike."""
    inputs = draw(Case.parse(text.format(dt=dt)))
    sinks = inputs.feature("sinks")
    if sinks is not None:  # A head without a sink, whose rows without keys follow the election.
        inputs = inputs.replace(sinks=np.where(np.arange(len(sinks)), sinks, -np.inf))
    u, reference = roundoffs(numerics, inputs.dtype), references.find(inputs.operator)
    answer = reference.forward(inputs, u, rows)
    with np.errstate(all="ignore"):
        composition = reference.compose(Problem(inputs, u, rows, "zeros"))
        composed = composition.output.output
    blocked = answer.arrays["output"]
    assert np.abs(composed.value - blocked.value).max() < 1e-15
    judged = blocked.error > 0
    # The pass by blocks counts a third stored score, also where nothing is added to the scaled one;
    # in bfloat16 stored scores are most of a bound.
    assert (blocked.error <= (1.5 if dt == "bf16" else 1.1) * composed.error).all()
    assert (composed.error[judged] <= 1.15 * blocked.error[judged]).all()
    assert composition.keys is not None
    assert np.array_equal(composition.keys, answer.keys)


def test_every_operator_has_a_reference_whose_exact_arithmetic_is_exact() -> None:
    """Codes are the exception: the value lies between two of them."""
    for operator in OPERATORS.values():
        reference = references.find(operator)
        case = of_operator(operator, cases, "smoke")[0]
        outputs = reference.forward(draw(case), NO_ROUNDING)
        assert set(outputs.arrays) == set(operator.outputs(case))
        for name, array in outputs.arrays.items():
            assert array.shape == draw(case).full_shape(name)
            code = CODES.get(case.dtype_of(name).name)
            if code is None:
                assert not array.error.any()
            else:
                half = np.maximum(
                    code.unit_roundoff * np.abs(array.value), code.smallest_subnormal / 2
                )
                assert np.array_equal(array.error, half)

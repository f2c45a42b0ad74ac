"""Promise: codes are those of their formats, and written codes are the nearest ones.

A person's function is asked the formats, zero points and flags that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.dtypes import CODES, round_to
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.in_pages import gather_tokens
from attention_conformance.suite.spec.operators.quantized import KINDS, QUANTIZED, broadcast
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE

FUNCTIONS = Path(__file__).parent / "functions" / "coding.py"

NUMBERS: Mapping[str, np.ndarray] = {
    "int8": np.arange(-127.0, 128.0),
    "int4": np.arange(-7.0, 8.0),
    "e4m3": np.array(
        [(m / 8 + (e > 0)) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1]
    ),
    "e5m2": np.array(
        [(m / 4 + (e > 0)) * 2.0 ** (max(e, 1) - 15) for e in range(31) for m in range(4)]
    ),
}
"""All codes of a format; of floating-point formats those without a sign, from their bits."""


@pytest.mark.parametrize("name", CODES)
def test_formats_have_the_numbers_of_their_bits(name: str) -> None:
    code, numbers = CODES[name], NUMBERS[name]
    assert np.array_equal(round_to(numbers, code), numbers)
    assert numbers.max() == code.max
    between = np.random.default_rng(0).uniform(numbers.min(), code.max, 500)
    near = np.abs(numbers - between[:, None]).min(1)
    assert np.array_equal(np.abs(round_to(between, code) - between), near)


PROMISED = {
    "int8": (0.0, 0.5), "int4": (0.0, 0.5), "e4m3": (2.0**-4, 2.0**-10), "e5m2": (2.0**-3, 2.0**-17),
}  # fmt: skip
"""How far a code may be from its number: relative to the number, and at least."""


def steps(inputs: Inputs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The number before rounding, and the promised distance of its code, both in steps of the scale."""
    t = inputs.arrays[name] / broadcast(inputs, f"{name}_scale")
    if inputs.case.option("zero"):
        t = t + broadcast(inputs, f"{name}_zero")
    half, least = PROMISED[inputs.case.option("codes")]
    return t, half * np.abs(t) + least


@pytest.mark.parametrize("case", of_operator(QUANTIZED_WRITE, every_case, "standard"), ids=str)
def test_bounds_of_writing_are_those_of_rounding(case: Case) -> None:
    inputs = draw(case)
    expected = Oracle.forward(inputs, Rounding("exact")).expected
    last = CODES[case.option("codes")].max
    for name, output in zip(KINDS, inputs.outputs, strict=True):
        t, promised = steps(inputs, name)
        within = np.abs(t) <= last + 0.5  # a zero point is rounded
        assert within.all() != case.option("beyond")
        middle = np.abs(t) <= last
        assert np.allclose(expected[output].value[middle].astype(float), t[middle], rtol=1e-12)
        bound = expected[output].error[within]
        assert (bound <= promised[within] * (1 + 2.0**-16) + 2.0**-14).all()
        reach = last if case.option("beyond") else min(last, 448.0)
        assert (np.abs(t) > 0.99 * reach).any()
        codes = round_to(np.clip(t, -last, last), CODES[case.option("codes")])
        assert (np.abs(codes - expected[output].value) <= expected[output].error).all()


WRITES = [c for c in of_operator(QUANTIZED, every_case, "standard") if c.option("writes")]


@pytest.mark.parametrize("case", WRITES, ids=str)
def test_the_bound_without_codes_holds_for_the_codes_that_are_written(case: Case) -> None:
    inputs, answer = gather_tokens(draw(case)), {}
    oracle = Oracle.forward(inputs, Rounding("exact"))
    for name in KINDS:
        want, code = oracle.expected[f"{name}_output"], CODES[case.option("codes")]
        answer[f"{name}_output"] = round_to(np.clip(want.value, code.least, code.max), code)
        old = slice(-case.sizes.Lq)
        assert not want.error[:, :, old].any()
        assert np.array_equal(want.value[:, :, old], inputs.arrays[f"{name}_codes"][:, :, old])
    loose, given = oracle.expected["output"], oracle.given(answer).expected["output"]
    away = np.abs(given.value - loose.value) + given.error
    float64 = 2.0**-50 * np.abs(loose.value).max()  # both are equal where no new token counts
    assert (away <= loose.error + float64).all()
    near = case.recipe == "normal" and case.sizes.D < 20  # else scores are off by more than 1
    assert (away / loose.error).max() > (2.0**-6 if near else 0)
    assert given.error.max() < loose.error.max()

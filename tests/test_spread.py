"""Promise: errors are drawn in the places and of the sizes that the bounds have, and what goes beyond
them, or with a direction, is told by name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import f

from attention_conformance.suite.judge import monte_carlo
from attention_conformance.suite.judge.monte_carlo import (
    DRAWS,
    PASSES,
    ErrorStatistics,
    RoundingSamples,
    forward_samples,
    gradient_samples,
)
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.tolerance import RMS_FALSE_ALARM, rms_limit
from attention_conformance.suite.judge.verdict import Deviation, HarnessError
from attention_conformance.suite.spec.catalogue import parse_cases
from attention_conformance.suite.spec.inputs import draw, draw_cotangent
from attention_conformance.suite.test_spread import CAPPED, SHORT, WIDE, WIDE_LAYERS

CASES = parse_cases(pattern.format(dt="bf16") for pattern in (*WIDE, *WIDE_LAYERS, CAPPED, *SHORT))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_drawn_lies_within_the_bounds(case) -> None:
    """To first order: drawn steps build on drawn steps. Bounds of an encoder are infinite in bfloat16."""
    inputs, rounding = draw(case, 3), Rounding("stepwise")
    samples = {"output": forward_samples(inputs, rounding.roundoffs(inputs))}
    bounds = {"output": Oracle.forward(inputs, rounding).bound()}
    if case.operator.takes_masks:
        cotangent = draw_cotangent(case, 3)
        oracle = Oracle.vjp(inputs, cotangent, rounding)
        samples |= gradient_samples(inputs, cotangent, rounding.roundoffs(inputs, backward=True))
        bounds |= {name: oracle.bound(name) for name in samples if name != "output"}
    for name, one in samples.items():
        assert one.errors.shape == (PASSES, one.exact.size)
        worst = np.abs(one.errors).max(0) / bounds[name].ravel()
        assert one.errors.any(), name
        assert worst.max() <= 1.05, name
        assert len({tuple(errors) for errors in one.errors}) == PASSES


def test_a_pass_is_the_same_each_time_and_another_for_other_inputs() -> None:
    inputs = draw(CASES[0], 5)
    u = Rounding("eager").roundoffs(inputs)
    first = forward_samples(inputs, u)
    monte_carlo._CACHE.clear()
    again, other = forward_samples(inputs, u), forward_samples(draw(CASES[0], 6), u)
    assert again is not first
    np.testing.assert_array_equal(again.errors, first.errors)
    signs = [np.sign(drawn.errors[0][:500]) for drawn in (first, other)]
    assert 0.4 < (signs[0] == signs[1]).mean() < 0.6
    exact = Oracle.forward(inputs, Rounding("eager")).expected["output"].value
    np.testing.assert_allclose(first.exact, exact, rtol=0, atol=1e-15)


def test_what_is_not_finite_fails() -> None:
    with pytest.raises(Deviation, match="is not finite") as caught:
        spread_of(np.full(10, np.nan))
    assert caught.value.kind == "non-finite"
    with pytest.raises(HarnessError, match="ill-posed"):
        spread_of(np.zeros(10), scale=np.inf)


def test_the_limit_of_the_size_allows_for_an_estimated_variance() -> None:
    """The size of random errors comes from `PASSES` samples, so their ratio has an F distribution. Every
    draw has the same weight, so at least `DRAWS` errors are independent."""
    for independent in (DRAWS, 10, 30, 100, 1000):
        ratio = f.isf(RMS_FALSE_ALARM, independent, PASSES * independent)
        assert rms_limit(independent) > np.sqrt(ratio)


def spread_of(error: np.ndarray, scale: float = 1.0) -> ErrorStatistics:
    """What is judged of an error (n,) beside normal ones of the size `scale`, for an answer of ones."""
    chance = np.random.default_rng(1)
    statistics = ErrorStatistics("the answer")
    for _ in range(DRAWS):
        errors = scale * chance.standard_normal((PASSES, error.size))
        exact = np.ones(error.size)
        statistics.add(exact + error, RoundingSamples(exact, errors), {"a gain": exact})
    return statistics


def test_errors_like_those_drawn_pass() -> None:
    chance = np.random.default_rng(2)
    statistics = spread_of(0.3 * chance.standard_normal(1000))
    statistics.judge()
    assert statistics.rms == pytest.approx(0.3, rel=0.1)
    spread_of(np.zeros(1000)).judge()


def test_errors_that_are_too_large_fail() -> None:
    chance = np.random.default_rng(2)
    with pytest.raises(Deviation, match=r"the answer, 6 draws: errors are 3\.\d+ times as large"):
        spread_of(3.3 * chance.standard_normal(1000)).judge()


def test_errors_that_go_with_a_direction_fail_and_say_by_how_much() -> None:
    """A tenth of what one element may err, in all of a thousand."""
    with pytest.raises(Deviation, match=r"go with a gain, as if that were off by 20 %: 1\d\.\d"):
        spread_of(np.full(1000, 0.2)).judge()


def test_errors_where_none_may_be_are_infinite() -> None:
    with pytest.raises(Deviation, match="errors are inf times as large"):
        spread_of(np.full(10, 0.1), scale=0.0).judge()

"""Tolerance: the bound is sharp at its edge, and never met by rounding. What its formula gives stands in
`tests/frozen/bounds.txt`. Errors are drawn in the places and of the sizes that the bounds have, and
what goes beyond them, or with a direction, is told by name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, f

from attention_conformance.references import sdpa
from attention_conformance.suite.judge import tolerance
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
from attention_conformance.suite.judge.verdict import HarnessError, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.test_spread import CAPPED, SHORT, WIDE, WIDE_LAYERS


def oracle(inputs: Inputs, numerics: str = "exact", flushes: bool = False) -> Oracle:
    return Oracle.forward(inputs, Rounding(numerics, flushes))


def expected(inputs: Inputs) -> np.ndarray:
    return oracle(inputs).expected["output"].value


@pytest.mark.parametrize("name", DTYPES)
def test_last_number_inside_passes_and_the_next_fails(name: str) -> None:
    inputs = draw(Case.parse(f"sdpa/causal/mha/{name}/b1h2q3k4d4"))
    exact = oracle(inputs)
    want, limit = expected(inputs), exact.bound()
    at = (0, 1, 2, 3)
    got = want.copy()
    got[at] = want[at] + limit[at]
    kind = got.dtype.type
    while abs(got[at] - want[at]) > limit[at]:
        got[at] = np.nextafter(got[at], want[at])
    inside = exact.judge({"output": got})
    assert inside.error_ratio is not None
    assert 0.99 < inside.error_ratio <= 1
    while abs(got[at] - want[at]) <= limit[at]:
        got[at] = np.nextafter(got[at], kind(np.inf))
    with pytest.raises(WrongAnswer, match=r"b=0, h=1, q=2, v=3.*ratio 1;") as error:
        exact.judge({"output": got})
    assert error.value.kind == "value"


def test_where_the_bound_is_zero_the_answer_is_exact() -> None:
    inputs = draw(Case.parse("sdpa/bool.qk.empty/mha/f32/b1h1q3k4d4/dense"))
    exact, got = oracle(inputs), expected(inputs).copy()
    assert (exact.bound()[0, 0, 0] == 0).all()
    exact.judge({"output": got})
    got[0, 0, 0, 0] = 1e-300
    with pytest.raises(WrongAnswer, match="ratio inf"):
        exact.judge({"output": got})


def test_non_finite_answers_are_judged_before_numbers() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h1q2k3d4"))
    for bad in (np.nan, np.inf, -np.inf):
        got = expected(inputs).copy()
        got[0, 0, 1, 2] = bad
        got[0, 0, 0, 0] += 1
        with pytest.raises(WrongAnswer, match=r"\(0, 0, 1, 2\)") as error:
            oracle(inputs, "eager").judge({"output": got})
        assert error.value.kind == "non-finite"


def test_a_nan_in_the_oracle_is_never_a_pass() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h1q2k3d4"))
    value = inputs.value.copy()
    value[0, 0, 1] = np.nan
    ill = oracle(inputs.replace(value=value), "eager")
    with pytest.raises(HarnessError, match="ill-posed"):
        ill.judge({"output": np.full((1, 1, 2, 4), np.nan)})


def test_overflow_of_the_dtype_is_the_right_answer_beyond_its_largest_number() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f16/b1h1q2k1d4"))
    huge = oracle(inputs.replace(value=np.full((1, 1, 1, 4), 65504.0)))
    huge.judge({"output": np.full((1, 1, 2, 4), np.inf)})
    with pytest.raises(WrongAnswer):
        huge.judge({"output": np.full((1, 1, 2, 4), -np.inf)})


def test_a_rounded_reference_is_graded_exact_and_rounded_weights_are_not() -> None:
    case = Case.parse("sdpa/none/mha/bf16/b2h3q17k23d8")
    inputs = draw(case)
    eager = oracle(inputs, "eager")
    rounded = round_to(expected(inputs), case.dtype)
    assert eager.judge({"output": rounded}).grade == "exact"
    unit = np.tile(np.eye(inputs.sizes.Lk), (*inputs.value.shape[:2], 1, 1))
    weights = round_to(sdpa.attention(inputs.query, inputs.key, unit).output, case.dtype)
    output = round_to(weights @ inputs.value, case.dtype)
    assert eager.judge({"output": output}).grade == "fused"


def test_variance_model_is_calibrated() -> None:
    """Rounding the exact output and nothing else gives the model's own standard deviation."""
    case = Case.parse("sdpa/none/mha/bf16/b2h8q65k63d16")
    figures = []
    for seed in range(5):
        inputs = draw(case, seed)
        figures.append(oracle(inputs).judge({"output": round_to(expected(inputs), case.dtype)}).rms)
    # Uniform over a binade, half an ulp is between u/2 and u of the value: rms u / sqrt(3) * 0.76.
    assert 0.6 < np.mean(figures) < 0.9


@pytest.mark.parametrize("independent", [1, 4, 27, 136, 1000])
def test_chance_exceeds_the_limit_of_the_variance_model_with_the_stated_probability(
    independent: int,
) -> None:
    """Normal errors are the worst case: a sum of uniform errors is no likelier large."""
    limit = tolerance.chance_limit(independent)
    assert chi2.sf(independent * limit**2, independent) < tolerance.RMS_FALSE_ALARM
    assert chi2.sf(independent * (limit / 1.2) ** 2, independent) > tolerance.RMS_FALSE_ALARM
    assert tolerance.rms_limit(independent) == tolerance.MODEL_ERROR * limit


def spread(case: Case, numerics: str, times: float) -> float:
    """The statistic of an answer that is off by `times` the standard deviation everywhere."""
    inputs = draw(case)
    judge = oracle(inputs, numerics)
    assert judge.outputs.deviation is not None
    rms = judge.judge({"output": expected(inputs) + times * judge.outputs.deviation}).rms
    assert rms is not None
    return rms


def test_errors_of_one_row_are_one_error() -> None:
    """One stored score moves a whole row: in four rows 1.9 is chance, in a thousand it is none."""
    assert (
        spread(Case.parse("sdpa/none/mha/bf16/b1h4q1k63d64"), "eager", 1.9) > tolerance.MODEL_ERROR
    )
    with pytest.raises(WrongAnswer, match="where 4 errors are independent"):
        spread(Case.parse("sdpa/none/mha/bf16/b1h4q1k63d64"), "eager", 5.4)
    with pytest.raises(WrongAnswer, match="systematic"):
        spread(Case.parse("sdpa/none/mha/bf16/b2h8q65k63d16"), "eager", 1.9)
    with pytest.raises(WrongAnswer, match="systematic"):
        spread(Case.parse("sdpa/none/mha/bf16/b2h8q65k63d16"), "exact", 1.5)


CASES = [Case.parse(text.format(dt="bf16")) for text in (*WIDE, *WIDE_LAYERS, CAPPED, *SHORT)]


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


LARGE = 3.3 * np.random.default_rng(2).standard_normal(1000)


@pytest.mark.parametrize(
    ("error", "scale", "kind", "said"),
    [
        (np.full(10, np.nan), 1.0, "non-finite", "is not finite"),
        (LARGE, 1.0, "value", r"the answer, 6 draws: errors are 3\.\d+ times as large"),
        # A tenth of what one element may err, in all of a thousand.
        (np.full(1000, 0.2), 1.0, "value", r"go with a gain, as if that were off by 20 %: 1\d\.\d"),
        (np.full(10, 0.1), 0.0, "value", "errors are inf times as large"),
    ],
)
def test_errors_that_fail_say_why(error: np.ndarray, scale: float, kind: str, said: str) -> None:
    with pytest.raises(WrongAnswer, match=said) as caught:
        spread_of(error, scale).judge()
    assert caught.value.kind == kind

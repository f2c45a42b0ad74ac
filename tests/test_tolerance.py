"""Tolerance: the bound is the formula it says it is, sharp at its edge, and never met by rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from references.definition import attention
from suite.judge import tolerance
from suite.judge.oracle import Oracle
from suite.judge.verdict import Deviation, HarnessError
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import draw


def by_the_formula(inputs: Inputs, numerics: str) -> np.ndarray:
    """The bound by scalar loops over the module's docstring."""
    u = tolerance.roundoffs(numerics, inputs.dtype)
    s = inputs.sizes
    scale = inputs.effective_scale
    bias = np.broadcast_to(0.0 if inputs.bias is None else inputs.bias, (s.B, s.H, s.Lq, s.Lk))
    attends = inputs.attends
    out = np.zeros((s.B, s.H, s.Lq, s.Dv))
    for b, h, i in np.ndindex(s.B, s.H, s.Lq):
        kv = h // (s.H // s.Hkv)
        keys = [j for j in range(s.Lk) if attends[b, h, i, j]]
        if not keys:
            continue
        n = len(keys)
        scores, sizes, slopes, caps = [], [], [], []
        for j in keys:
            q, k = inputs.query[b, h, i], inputs.key[b, kv, j]
            raw = scale * float(q @ k)
            capped = (
                raw if inputs.softcap is None else inputs.softcap * math.tanh(raw / inputs.softcap)
            )
            slopes.append(1.0 if inputs.softcap is None else 1 - (capped / inputs.softcap) ** 2)
            caps.append(0.0 if inputs.softcap is None else abs(capped))
            sizes.append((abs(scale) * float(np.abs(q) @ np.abs(k)), abs(raw)))
            scores.append(capped + bias[b, h, i, j])
        m = max(scores)
        p = np.exp(np.array(scores) - m)
        p /= p.sum()
        v = inputs.value[b, kv, keys]
        o = p @ v
        d = s.D + 2
        # a_j and c_j of `references.definition.Terms`
        a = [
            d * dot * slope + abs(score - m) + 4 + 4 * cap
            for (dot, _), slope, score, cap in zip(sizes, slopes, scores, caps, strict=True)
        ]
        c = [
            2 * raw * slope + cap + abs(score)
            for (_, raw), slope, score, cap in zip(sizes, slopes, scores, caps, strict=True)
        ]
        relevant = p > 1e-9
        shift = m - np.array(scores)
        peak = u.accumulate * max(np.array(a)[relevant]) + u.score * max(np.array(c)[relevant])
        peak += u.step * max(shift[relevant])
        growth = math.exp(peak) * math.expm1(peak) / peak
        ds = u.accumulate / (1 - d * u.accumulate) * np.array(a) + u.score * np.array(c)
        ds = ds + u.step * shift
        g = (n + 4) * u.accumulate / (1 - (n + 4) * u.accumulate)
        for x in range(s.Dv):
            mass = np.abs(v[:, x])
            out[b, h, i, x] = (
                growth * float(np.sum(p * ds * (mass + abs(o[x]))))
                + (u.weight + 3 * u.step + g) * float(p @ mass)
                + (g + u.output) * abs(o[x])
                + u.weight_underflow * float(mass.sum())
                + (n + 1) * u.product_underflow
                + u.floor
            )
    return out


@pytest.mark.parametrize("numerics", tolerance.NUMERICS)
@pytest.mark.parametrize(
    "text",
    [
        "sdpa/none/mha/{}/b2h2q3k5d4",
        "sdpa/bool.bhqk.empty/gqa2/{}/b2h4q5k7d6v3/bias.bhqk/dense",
        "sdpa/causal/mha/{}/b1h2q5k5d4/scale-0.7/cap2.0",
        "sdpa/none/mha/{}/b1h2q4k9d8/large",
        "sdpa/none/mha/{}/b1h2q4k9d8/tiny",
    ],
)
@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_bound_is_the_formula(text: str, numerics: str, name: str) -> None:
    inputs = draw(Case.parse(text.format(name)))
    got = Oracle.of(inputs).bound(numerics)
    want = by_the_formula(inputs, numerics)
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()
    assert (np.abs(got - want) <= 1e-3 * want).all()


@pytest.mark.parametrize("name", DTYPES)
def test_last_number_inside_passes_and_the_next_fails(name: str) -> None:
    inputs = draw(Case.parse(f"sdpa/causal/mha/{name}/b1h2q3k4d4"))
    oracle = Oracle.of(inputs)
    want, limit = oracle.reference.output, oracle.bound("exact")
    at = (0, 1, 2, 3)
    got = want.copy()
    got[at] = want[at] + limit[at]
    kind = got.dtype.type
    while abs(got[at] - want[at]) > limit[at]:
        got[at] = np.nextafter(got[at], want[at])
    inside = oracle.judge(got, "exact")
    assert inside.error_ratio is not None
    assert 0.99 < inside.error_ratio <= 1
    while abs(got[at] - want[at]) <= limit[at]:
        got[at] = np.nextafter(got[at], kind(np.inf))
    with pytest.raises(Deviation, match=r"b=0, h=1, q=2, d=3.*ratio 1;") as error:
        oracle.judge(got, "exact")
    assert error.value.kind == "value"


def test_where_the_bound_is_zero_the_answer_is_exact() -> None:
    inputs = draw(Case.parse("sdpa/bool.qk.empty/mha/f32/b1h1q3k4d4/dense"))
    oracle = Oracle.of(inputs)
    got = oracle.reference.output.copy()
    assert (oracle.bound("exact")[0, 0, 0] == 0).all()
    oracle.judge(got, "exact")
    got[0, 0, 0, 0] = 1e-300
    with pytest.raises(Deviation, match="ratio inf"):
        oracle.judge(got, "exact")


def test_non_finite_answers_are_judged_before_numbers() -> None:
    oracle = Oracle.of(draw(Case.parse("sdpa/none/mha/f32/b1h1q2k3d4")))
    for bad in (np.nan, np.inf, -np.inf):
        got = oracle.reference.output.copy()
        got[0, 0, 1, 2] = bad
        got[0, 0, 0, 0] += 1
        with pytest.raises(Deviation, match=r"\(0, 0, 1, 2\)") as error:
            oracle.judge(got, "eager")
        assert error.value.kind == "non-finite"


def test_a_nan_in_the_oracle_is_never_a_pass() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h1q2k3d4"))
    value = inputs.value.copy()
    value[0, 0, 1] = np.nan
    oracle = Oracle.of(replace(inputs, value=value))
    with pytest.raises(HarnessError, match="ill-posed"):
        oracle.judge(np.full((1, 1, 2, 4), np.nan), "eager")


def test_overflow_of_the_dtype_is_the_right_answer_beyond_its_largest_number() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f16/b1h1q2k1d4"))
    huge = replace(inputs, value=np.full((1, 1, 1, 4), 65504.0))
    oracle = Oracle.of(huge)
    oracle.judge(np.full((1, 1, 2, 4), np.inf), "exact")
    with pytest.raises(Deviation):
        oracle.judge(np.full((1, 1, 2, 4), -np.inf), "exact")


def test_classes_nest() -> None:
    for name in ("f32", "bf16", "f16"):
        oracle = Oracle.of(draw(Case.parse(f"sdpa/causal/mha/{name}/b2h2q9k11d8")))
        limits = [oracle.bound(numerics) for numerics in tolerance.NUMERICS[:5]]
        for narrow, wide in pairwise(limits):
            assert (narrow <= wide * (1 + 1e-12)).all()
    f32 = Oracle.of(draw(Case.parse("sdpa/none/mha/f32/b1h1q3k4d4")))
    assert np.array_equal(f32.bound("exact"), f32.bound("eager"))


def test_flushing_widens_the_floor_only() -> None:
    oracle = Oracle.of(draw(Case.parse("sdpa/none/mha/f32/b1h1q3k4d4")))
    extra = oracle.bound("exact", flushes=True) - oracle.bound("exact")
    assert (extra >= 0).all()
    assert extra.max() < 100 * DTYPES["f32"].smallest_normal


def test_unknown_class_and_missing_terms_are_named() -> None:
    with pytest.raises(ValueError, match="exact, fused, eager"):
        tolerance.roundoffs("sloppy", DTYPES["f32"])
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h1q3k4d4"))
    reference = attention(inputs.query, inputs.key, inputs.value)
    with pytest.raises(ValueError, match="terms=True"):
        tolerance.bound(reference, "exact", DTYPES["f32"])
    with pytest.raises(ValueError, match="terms=True"):
        tolerance.standard_deviation(reference, "exact", DTYPES["f32"])


def test_gamma() -> None:
    assert tolerance.gamma(3, 2.0**-24) == 3 * 2.0**-24 / (1 - 3 * 2.0**-24)
    assert tolerance.gamma(2**8, 2.0**-8) == np.inf


def test_ratios() -> None:
    got = tolerance.ratios(np.array([0.0, 1.0, -2.0, 0.5]), np.array([0.0, 0.0, 1.0, 1.0]))
    assert got.tolist() == [0.0, np.inf, 2.0, 0.5]


def test_a_rounded_reference_is_graded_exact_and_rounded_weights_are_not() -> None:
    case = Case.parse("sdpa/none/mha/bf16/b2h3q17k23d8")
    inputs = draw(case)
    oracle = Oracle.of(inputs)
    rounded = round_to(oracle.reference.output, case.dtype)
    assert oracle.judge(rounded, "eager").grade == "exact"
    found = attention(inputs.query, inputs.key, inputs.value, weights=True)
    weights = round_to(found.weights, case.dtype)  # type: ignore[arg-type]
    assert oracle.judge(round_to(weights @ inputs.value, case.dtype), "eager").grade == "fused"


def test_variance_model_is_calibrated() -> None:
    """Rounding the exact output and nothing else gives the model's own standard deviation."""
    case = Case.parse("sdpa/none/mha/bf16/b2h8q65k63d16")
    found = []
    for seed in range(5):
        oracle = Oracle.of(draw(case, seed))
        found.append(oracle.judge(round_to(oracle.reference.output, case.dtype), "exact").rms)
    # Uniform over a binade, half an ulp is between u/2 and u of the value: rms u / sqrt(3) * 0.76.
    assert 0.6 < np.mean(found) < 0.9

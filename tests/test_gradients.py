"""The reference of gradients: against finite differences, scalar loops, and forward differentiation."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from references.definition import attention
from references.gradients import EMPTY_ROWS, Gradients, attention_gradients, attention_tangent
from references.running import NO_ROUNDING
from suite.judge.gradients import GradientOracle
from suite.judge.tolerance import roundoffs
from suite.spec.catalogue import parse
from suite.spec.dtypes import DTYPES
from suite.spec.gradient_catalogue import gradient_cases
from suite.spec.problem import Inputs
from suite.spec.recipes import draw, draw_cotangent, draw_tangents

CASES = (
    "sdpa/none/mha/f64/b2h3q5k7d4",
    "sdpa/causalbr/gqa2/f64/b2h4q6k4d4",
    "sdpa/bool.bhqk.empty/gqa3/f64/b2h6q4k5d3v6/bias.bhqk/scale-0.3/dense",
    "sdpa/pad/mqa/f64/b2h4q4k5d3/bias.1hqk/cap0.7",
    "sdpa/none/mha/f64/b2h3q4k5d3/bias.inf",
)


def gradients(inputs: Inputs, cotangent: np.ndarray, precision: type = np.longdouble) -> Gradients:
    return attention_gradients(
        *(x.astype(precision) for x in (inputs.query, inputs.key, inputs.value, cotangent)),
        rounding=NO_ROUNDING,
        mask=inputs.dense_mask,
        bias=None if inputs.bias is None else inputs.bias.astype(precision),
        scale=inputs.scale,
        softcap=inputs.softcap,
    )


def loss(inputs: Inputs, cotangent: np.ndarray) -> np.longdouble:
    """The cotangent's product with the output, in extended precision."""
    found = attention(
        inputs.query, inputs.key, inputs.value, mask=inputs.dense_mask, bias=inputs.bias,
        scale=inputs.scale, softcap=inputs.softcap, precision=np.longdouble,
    )  # fmt: skip
    return (found.output * cotangent).sum()


@pytest.mark.parametrize("text", CASES)
def test_central_differences(text: str) -> None:
    """(f(x + h) - f(x - h)) / 2h in extended precision, off by h^2 and 2^-64 / h: 1e-11 together."""
    case = parse(text)
    inputs, cotangent = draw(case), draw_cotangent(case)
    found = gradients(inputs, cotangent)
    rng = np.random.default_rng(0)
    names = ["query", "key", "value"] + (["bias"] if inputs.bias is not None else [])
    for name in names:
        array = getattr(inputs, name)
        got = found.bias(array.shape) if name == "bias" else getattr(found, name)
        finite = np.argwhere(np.isfinite(array))
        for at in map(tuple, rng.permutation(finite)[:12]):
            step = np.longdouble(2.0) ** -20
            moved = []
            for sign in (1, -1):
                changed = array.astype(np.longdouble)
                changed[at] += sign * step
                moved.append(loss(replace(inputs, **{name: changed}), cotangent))
            slope = (moved[0] - moved[1]) / (2 * step)
            assert abs(slope - got.value[at]) < 1e-10 * max(1, abs(slope)), (name, at)


def test_fifty_digits() -> None:
    """Every gradient of a small problem by mpmath, from the definition with exact derivatives."""
    case = parse("sdpa/causal/mha/f64/b1h1q3k3d2")
    inputs, cotangent = draw(case), draw_cotangent(case)
    found = gradients(inputs, cotangent)
    with mpmath.workdps(50):
        q, k, v, g = (
            [[mpmath.mpf(float(x)) for x in row] for row in array[0, 0]]
            for array in (inputs.query, inputs.key, inputs.value, cotangent)
        )
        root = 1 / mpmath.sqrt(2)

        def value(q: list, k: list, v: list) -> mpmath.mpf:
            total = mpmath.mpf(0)
            for i in range(3):
                scores = [root * mpmath.fdot(q[i], k[j]) for j in range(i + 1)]
                weights = [mpmath.exp(s) for s in scores]
                for c in range(2):
                    mixed = mpmath.fdot(weights, [v[j][c] for j in range(i + 1)])
                    total += g[i][c] * mixed / mpmath.fsum(weights)
            return total

        for name, rows in (("query", q), ("key", k), ("value", v)):
            for i in range(3):
                for c in range(2):

                    def along(x: mpmath.mpf, rows=rows, i=i, c=c) -> mpmath.mpf:
                        kept, rows[i][c] = rows[i][c], x
                        out = value(q, k, v)
                        rows[i][c] = kept
                        return out

                    slope = mpmath.diff(along, rows[i][c])
                    got = getattr(found, name).value[0, 0, i, c]
                    assert abs(slope - mpmath.mpf(str(got))) < 1e-17 * max(1, abs(slope))


def loops(inputs: Inputs, cotangent: np.ndarray) -> dict[str, np.ndarray]:
    """The chain of the docstring one scalar at a time, heads of a group one after the other."""
    s = inputs.sizes
    out = {n: np.zeros(getattr(inputs, n).shape) for n in ("query", "key", "value")}
    attends = np.broadcast_to(inputs.attends, (s.B, s.H, s.Lq, s.Lk))
    scale = inputs.effective_scale
    for b, h, i in np.ndindex(s.B, s.H, s.Lq):
        head = h // (s.H // s.Hkv)
        keys = [j for j in range(s.Lk) if attends[b, h, i, j]]
        if not keys:
            continue
        q, g = inputs.query[b, h, i], cotangent[b, h, i]
        scores = np.array([scale * q @ inputs.key[b, head, j] for j in keys])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        received = np.array([g @ inputs.value[b, head, j] for j in keys])
        mean = weights @ received
        for j, p, r in zip(keys, weights, received, strict=True):
            ds = p * (r - mean)
            out["query"][b, h, i] += scale * ds * inputs.key[b, head, j]
            out["key"][b, head, j] += scale * ds * q
            out["value"][b, head, j] += p * g
    return out


@pytest.mark.parametrize(
    "text", ["sdpa/none/gqa2/f64/b2h4q5k6d3", "sdpa/causalbr+padleft/gqa3/f64/b2h6q7k5d3v4"]
)
def test_scalar_loops(text: str) -> None:
    case = parse(text)
    inputs, cotangent = draw(case), draw_cotangent(case)
    found = gradients(inputs, cotangent, np.float64)
    for name, want in loops(inputs, cotangent).items():
        assert np.abs(getattr(found, name).value - want).max() < 1e-13


def test_bounds_grow_with_the_class() -> None:
    """Who rounds more is allowed more, element by element, in every gradient."""
    for case in gradient_cases("smoke"):
        inputs, cotangent = draw(case), draw_cotangent(case)
        before = None
        for numerics in ("exact", "fused", "eager", "stepwise"):
            found = GradientOracle.of(inputs, cotangent, numerics).reference
            if before is not None:
                for name in ("query", "key", "value"):
                    narrow, wide = getattr(before, name).error, getattr(found, name).error
                    assert (wide >= narrow).all(), (case.id, numerics, name)
            before = found


def test_what_is_hidden_and_rows_without_keys() -> None:
    case = parse("sdpa/padempty/mha/f32/b2h2q3k4d2")
    inputs, cotangent = draw(case), draw_cotangent(case)
    found = GradientOracle.of(inputs, cotangent, "exact").reference
    for name in ("query", "key", "value"):
        assert (getattr(found, name).value[-1] == 0).all()
    poisoned = inputs.key.copy()
    poisoned[-1] = np.nan
    again = GradientOracle.of(replace(inputs, key=poisoned), cotangent, "exact").reference
    np.testing.assert_array_equal(again.query.value, found.query.value)
    shared = GradientOracle.of(inputs, cotangent, "exact", empty_rows="uniform").reference
    want = cotangent[-1].sum(-2, keepdims=True) / 4
    np.testing.assert_array_max_ulp(shared.value.value[-1], np.broadcast_to(want, (2, 4, 2)), 4)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_rows_without_keys_by_what_they_stand_for(empty_rows: str) -> None:
    """ "scores" are the gradients of zero queries that see every key, as the row's scores are equal;
    "uniform" keeps of these the values' alone. The tangent is the other side of each."""
    case = parse("sdpa/padempty/mha/f64/b2h2q3k4d2")
    inputs, cotangent, tangents = draw(case), draw_cotangent(case), draw_tangents(case)
    wide = [x.astype(np.longdouble) for x in (inputs.query, inputs.key, inputs.value)]
    given = {"rounding": NO_ROUNDING, "mask": inputs.dense_mask, "empty_rows": empty_rows}
    found = attention_gradients(*wide, cotangent.astype(np.longdouble), **given)
    blank = ~inputs.attends.any(-1, keepdims=True)
    shown = attention_gradients(
        np.where(blank, 0, wide[0]), *wide[1:], cotangent.astype(np.longdouble),
        rounding=NO_ROUNDING, mask=inputs.attends | blank,
    )  # fmt: skip
    assert blank[-1].all()
    for name in ("query", "key", "value"):
        got, want = getattr(found, name).value[-1], getattr(shown, name).value[-1]
        if name == "key" and empty_rows == "scores":
            # dk sums ds q with the row's own queries, which zero queries hide.
            ds = found.scores.value[-1] / np.sqrt(np.longdouble(2))
            want = ds.swapaxes(-1, -2) @ wide[0][-1]
        taken = empty_rows == "scores" or (empty_rows == "uniform" and name == "value")
        assert np.abs(got - (want if taken else 0)).max() < 1e-17
    moved, _ = attention_tangent(*wide, tuple(x.astype(np.longdouble) for x in tangents), **given)
    parts = zip((found.query, found.key, found.value), tangents, strict=True)
    right = sum((g.value * t).sum() for g, t in parts)
    assert abs((cotangent * moved.value).sum() - right) < 1e-16 * np.abs(moved.value).sum()


@pytest.mark.parametrize("text", CASES)
def test_tangent_is_the_gradients_other_side(text: str) -> None:
    """<G, o'> = <dq, q'> + <dk, k'> + <dv, v'>, in extended precision."""
    case = parse(text)
    inputs, cotangent = draw(case), draw_cotangent(case)
    tangents = draw_tangents(case)
    wide = [x.astype(np.longdouble) for x in (inputs.query, inputs.key, inputs.value, *tangents)]
    moved, keys = attention_tangent(
        *wide[:3],
        tuple(wide[3:]),  # type: ignore[arg-type]
        rounding=NO_ROUNDING,
        mask=inputs.dense_mask,
        bias=inputs.bias,
        scale=inputs.scale,
        softcap=inputs.softcap,
    )
    found = gradients(inputs, cotangent)
    left = (cotangent * moved.value).sum()
    parts = zip((found.query, found.key, found.value), tangents, strict=True)
    right = sum((g.value * t).sum() for g, t in parts)
    assert abs(left - right) < 1e-16 * np.abs(cotangent * moved.value).sum()
    assert (keys == inputs.attends.sum(-1)).all()


def test_unknown_rows_are_refused() -> None:
    x = np.ones((1, 1, 1, 1))
    rounding = roundoffs("exact", DTYPES["f32"])
    with pytest.raises(ValueError, match=r"one of .* got .nan."):
        attention_gradients(x, x, x, x, rounding=rounding, empty_rows="nan")

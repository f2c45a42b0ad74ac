"""The layers' references: they agree with scalar loops, and their bounds hold for every class when each
step is rounded as the class says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance import references
from attention_conformance.backends.statistics import STEPS, trained
from attention_conformance.references import multi_head
from attention_conformance.references.one_head import as_head
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.rounding import NO_ROUNDING, Bounded
from attention_conformance.references.tape import Leaf
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases
from attention_conformance.suite.spec.covering import covering_array, feasible, pairs_of
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators import encoder
from attention_conformance.suite.spec.operators.layers import PARAMETERS
from attention_conformance.suite.spec.operators.multi_head import AXES
from attention_conformance.suite.spec.operators.sdpa_cases import mask_fits_form
from attention_conformance.suite.spec.vocabulary import NUMERICS
from tests import loops

MULTI_HEAD = (
    "multi-head/none/mha/f64/b2h3q3k4d2/e5.6.7.4",
    "multi-head/causal+pad/mha/f64/b2h2q4k4d3v2/e5.5.5.3/self",
    "multi-head/bool.bhqk.empty/gqa2/f64/b1h4q3k3d2/e4.4.4.4/bias.bhqk/nobias/dense",
    "multi-head/none/mqa/f64/b2h3q2k3d2/e4.4.4.4/bias.inf",
    "multi-head/pad/gqa2/f64/b2h4q3k4d3/e5.4.4.3/qknorm",
)


def bounded(inputs: Inputs, numerics: str = "exact") -> dict[str, Bounded]:
    """What the layer returns, in float64 or wider, with the bounds of a class."""
    u = roundoffs(numerics, inputs.dtype)
    return references.of(inputs.operator).forward(inputs, u).arrays


@pytest.mark.parametrize("text", MULTI_HEAD)
def test_multi_head_equals_loops(text: str) -> None:
    x = draw(Case.parse(text)).replace(returned="head")
    exact, limit = multi_head.reference.forward(x, NO_ROUNDING).arrays, bounded(x)
    output, weights = loops.multi_head(
        x.query, x.key, x.value, x.parameters, mask=x.dense_mask, bias=x.bias, epsilon=x.epsilon
    )
    for name, want in (("output", output), ("weights", weights)):
        error = np.abs(exact[name].value - want)
        assert (error <= 2 * limit[name].error + 1e-300).all()
        assert not exact[name].error.any()
    average = bounded(x.replace(returned="average"))["weights"]
    assert np.abs(average.value - weights.mean(1)).max() < 1e-15
    assert set(bounded(x.replace(returned="none"))) == {"output"}


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


Parameters = dict[str, np.ndarray]


def additive_score(q: np.ndarray, k: np.ndarray, p: Parameters) -> float:
    if "query_kernel" in p:
        q, k = q @ p["query_kernel"], k @ p["key_kernel"]
    vector = p.get("score_vector", np.ones(len(q)))
    return math.fsum(w * math.tanh(a) for w, a in zip(vector, q + k, strict=True))


def concat_score(q: np.ndarray, k: np.ndarray, p: Parameters) -> float:
    return float(p["concat_weight"]) * math.fsum(map(math.tanh, float(p["scale"]) * (q + k)))


def dot_score(q: np.ndarray, k: np.ndarray, p: Parameters) -> float:
    return float(p["scale"]) * math.fsum(q * k)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("additive/pad/mha/f64/b2h1q3k4d5v3/e4.6.3.3", additive_score),
        ("additive/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity", additive_score),
        ("additive/pad/mha/f64/b2h1q3k4d5v3/e4.6.3.3/bias.b1qk", additive_score),
        ("concat/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3", concat_score),
        ("dot/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3", dot_score),
    ],
)
def test_single_heads_equal_loops(text: str, score: Callable[..., float]) -> None:
    x = draw(Case.parse(text))
    p = {n: np.asarray(a, float) for n, a in x.parameters.items()}

    bias = np.zeros((1, 1, 1, 1)) if x.bias is None else x.bias
    bias = np.broadcast_to(bias, (x.sizes.B, 1, x.sizes.Lq, x.sizes.Lk))
    want = loops.scored(
        x.value,
        lambda b, i, j: score(x.query[b, i], x.key[b, j], p) + float(bias[b, 0, i, j]),
        (x.sizes.B, x.sizes.Lq, x.sizes.Lk),
        x.dense_mask,
    )
    output = bounded(x)["output"]
    assert (np.abs(output.value.astype(float) - want) <= 4 * output.error + 1e-300).all()


@pytest.mark.parametrize(
    ("operator", "option", "axes", "others", "count"),
    [("layer-norm", "", 2, (0, 1), 96), ("batch-norm", "/train", (0, 1), 2, 64)],
)
def test_norms_take_the_statistics_they_name(
    operator: str, option: str, axes: Any, others: Any, count: int
) -> None:
    """32 samples of 3 tokens of 64 features: 96 layer-norm statistics, 64 batch-norm statistics."""
    case = Case.parse(f"{operator}/none/mha/f64/b32h1q3k3d64/e64.64.64.64/plain/self{option}")
    got = bounded(draw(case))["output"].value.astype(float)
    means = got.mean(axes)
    assert means.size == count
    assert np.abs(means).max() < 1e-12
    assert np.abs(got.mean(others)).max() > 0.1


def test_splitting_before_the_projection_is_another_function() -> None:
    """Heads that each project a slice of the features know less than heads that project all of them."""
    x = draw(Case.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"))
    block = np.zeros((12, 4, 3))
    for h in range(4):
        rows = slice(3 * h, 3 * h + 3)
        block[rows, h] = x.parameters["query_kernel"][rows, h]
    whole = bounded(x, "stepwise")["output"]
    split = bounded(x.replace(query_kernel=block))["output"]
    assert (np.abs(split.value - whole.value) > whole.error).any()


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("dt", ["f32", "bf16", "f16"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_bounds_hold_when_every_step_is_rounded(numerics: str, dt: str, seed: int) -> None:
    """A chain of projection, scores, softmax and product, each step rounded as its class stores it."""
    if numerics == "single":
        return
    fmt, rng = DTYPES[dt], np.random.default_rng(seed)
    u = roundoffs(numerics, fmt)
    spread = 10.0 ** rng.uniform(-1, 0.7)
    x, y = (round_to(rng.standard_normal((5, 6)) * spread, fmt) for _ in range(2))
    kernels = [round_to(rng.standard_normal((6, 4)) / 2.5, fmt) for _ in range(3)]

    def keep(z: np.ndarray, unit: float) -> np.ndarray:
        return round_to(z, fmt if unit == fmt.unit_roundoff else DTYPES["f32"])

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if u.accumulate != fmt.unit_roundoff:
            return (a.astype(np.float32) @ b.astype(np.float32)).astype(float)
        total = np.zeros((a.shape[0], b.shape[1]))
        for i in range(a.shape[1]):
            total = round_to(total + round_to(np.outer(a[:, i], b[i]), fmt), fmt)
        return total

    q, k, v = (keep(product(z, w), u.output) for z, w in zip((x, y, y), kernels, strict=True))
    s = keep(keep(product(keep(q / 2, u.output), k.T), u.score), u.score)
    shifted = keep(s - s.max(-1, keepdims=True), u.step)
    raised = keep(np.exp(shifted), u.step)
    p = keep(raised / keep(raised.sum(-1, keepdims=True), u.step), u.weight)
    got = keep(product(p, v), u.output)

    def leaf(array: np.ndarray) -> Leaf:
        return Leaf(u, Bounded.exact(array))

    chain = [
        as_head(Linear(u, leaf(z[None]), leaf(w))) for z, w in zip((x, y, y), kernels, strict=True)
    ]
    pairs = Pairs((1, 1, 5, 5), None)
    attended = Attend(u, Scores(u, chain[0], chain[1], 0.5, pairs), chain[2], pairs).answer
    assert (np.abs(got - attended.output.value) <= attended.output.error).all()
    assert (np.abs(p - attended.weights.value) <= attended.weights.error).all()


def test_wrong_by_one_percent_is_seen_in_float32() -> None:
    x = draw(Case.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"))
    right = bounded(x, "stepwise")["output"]
    wrong = bounded(x.replace(query_kernel=1.01 * x.arrays["query_kernel"]))["output"]
    assert (np.abs(wrong.value - right.value) > right.error).any()


@pytest.mark.parametrize("election", ["zeros", "nan", "uniform"])
def test_rows_without_keys_as_elected(election: str) -> None:
    x = draw(Case.parse("dot/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6/head"))
    u = roundoffs("eager", x.dtype)
    outputs = references.of(x.operator).forward(x, u, election)
    output, weights = outputs.arrays["output"], outputs.arrays["weights"]
    assert (outputs.keys[-1] == 0).all()
    assert outputs.empty[-1].all()
    want = {"zeros": 0.0, "nan": np.nan, "uniform": x.value[-1].mean(0)}[election]
    share = {"zeros": 0.0, "nan": np.nan, "uniform": 1 / 9}[election]
    assert np.allclose(output.value[-1], want, equal_nan=True)
    assert np.allclose(weights.value[-1], share, equal_nan=True)
    assert output.error[-1].any() == (election != "zeros")
    assert np.isfinite(output.value[:-1]).all()


def test_an_approximated_exponential_widens_every_bound() -> None:
    x = draw(Case.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self/head"))
    u = roundoffs("exact", x.dtype)
    plain, wide = (
        multi_head.reference.forward(x, replace(u, exp_error=error)).arrays for error in (0.0, 1e-4)
    )
    for name, array in wide.items():
        assert (array.error > plain[name].error + 1e-6 * np.abs(array.value)).all()


def test_ids_and_cases_determine_each_other() -> None:
    layers = [case for case in cases("full") if case.operator.is_layer]
    assert len({case.id for case in layers}) == len(layers)
    for case in layers:
        assert Case.parse(case.id) == case
    names = {name for case in layers for name in draw(case).parameters}
    assert names == {*PARAMETERS, *encoder.PARAMETERS}


def test_the_covering_array_covers_every_pair() -> None:
    rows = covering_array(AXES, mask_fits_form, spread=("mask", "shape", "dtype", "returned"))
    for (a, x), (b, y) in feasible(AXES, mask_fits_form, pairs_of(AXES)):
        assert any(row[a] == x and row[b] == y for row in rows), (a, x, b, y)

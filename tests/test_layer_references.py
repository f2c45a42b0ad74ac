"""The layers' references: they agree with scalar loops, and their bounds hold for every class when each
step is rounded as the class says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from references import layers, loops, running
from references.running import NO_ROUNDING, Approx
from suite.judge.layers import LayerAnswer, LayerOracle
from suite.judge.tolerance import NUMERICS, roundoffs
from suite.judge.verdict import Deviation
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.layer_catalogue import covering_rows, layer_cases
from suite.spec.layers import OPERATORS, PARAMETERS, LayerCase, draw_layer

MULTI_HEAD = (
    "multi-head/none/mha/f64/b2h3q3k4d2/e5.6.7.4",
    "multi-head/causal+pad/mha/f64/b2h2q4k4d3v2/e5.5.5.3/self",
    "multi-head/bool.bhqk.empty/gqa2/f64/b1h4q3k3d2/e4.4.4.4/bias.bhqk/nobias/dense",
    "multi-head/none/mqa/f64/b2h3q2k3d2/e4.4.4.4/bias.inf",
)


@pytest.mark.parametrize("text", MULTI_HEAD)
def test_multi_head_equals_loops(text: str) -> None:
    x = draw_layer(LayerCase.parse(text))
    found = layers.multi_head(
        x.query, x.key, x.value, x.parameters,
        allowed=x.dense_mask, bias=x.bias, rounding=NO_ROUNDING,
    )  # fmt: skip
    output, weights = loops.multi_head(
        x.query, x.key, x.value, x.parameters, mask=x.dense_mask, bias=x.bias
    )
    limit = LayerOracle.of(x, "exact").reference
    assert (np.abs(found.output.value - output) <= 2 * limit.output.error + 1e-300).all()
    assert (np.abs(found.weights.value - weights) <= 2 * limit.weights.error + 1e-300).all()
    assert not found.output.error.any()
    assert not found.weights.error.any()


@pytest.mark.parametrize(
    "text",
    [
        "additive/pad/mha/f64/b2h1q3k4d5v3/e4.6.3.3",
        "additive/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity",
        "concat/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3",
        "dot/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
        "masked/causal+pad/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
    ],
)
def test_single_heads_equal_loops(text: str) -> None:
    x = draw_layer(LayerCase.parse(text))
    p = {n: np.asarray(a, float) for n, a in x.parameters.items()}

    def score(b: int, i: int, j: int) -> float:
        q, k = x.query[b, i], x.key[b, j]
        if x.operator == "additive":
            if "query_kernel" in p:
                q, k = q @ p["query_kernel"], k @ p["key_kernel"]
            vector = p.get("score_vector", np.ones(len(q)))
            return math.fsum(w * math.tanh(a) for w, a in zip(vector, q + k, strict=True))
        if x.operator == "concat":
            return float(p["concat_weight"]) * math.fsum(
                map(math.tanh, float(p["scale"]) * (q + k))
            )
        scale = 1 / math.sqrt(len(q)) if x.operator == "masked" else float(p["scale"])
        return scale * math.fsum(q * k)

    want = loops.scored(x.value, score, (x.sizes.B, x.sizes.Lq, x.sizes.Lk), x.dense_mask)
    reference = LayerOracle.of(x, "exact").reference
    got = reference.output.value.astype(float)
    assert (np.abs(got - want) <= 4 * reference.output.error + 1e-300).all()


@pytest.mark.parametrize("operator", ["layer-norm", "batch-norm"])
def test_norms_take_the_statistics_they_name(operator: str) -> None:
    """32 samples of 3 tokens of 64 features: 96 layer-norm statistics, 64 batch-norm statistics."""
    train = "/train" if operator == "batch-norm" else ""
    case = LayerCase.parse(f"{operator}/none/mha/f64/b32h1q3k3d64/e64.64.64.64/plain/self{train}")
    x = draw_layer(case)
    got = LayerOracle.of(x, "exact").reference.output.value.astype(float)
    axes = 2 if operator == "layer-norm" else (0, 1)
    means = got.mean(axes)
    assert means.size == (96 if operator == "layer-norm" else 64)
    assert np.abs(means).max() < 1e-12
    other = (0, 1) if operator == "layer-norm" else 2
    assert np.abs(got.mean(other)).max() > 0.1


def test_splitting_before_the_projection_is_another_function() -> None:
    """Heads that each project a slice of the features know less than heads that project all of them."""
    x = draw_layer(LayerCase.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"))
    block = np.zeros((12, 4, 3))
    for h in range(4):
        rows = slice(3 * h, 3 * h + 3)
        block[rows, h] = x.parameters["query_kernel"][rows, h]
    split = {**x.parameters, "query_kernel": block}
    whole = LayerOracle.of(x, "stepwise")
    other = layers.multi_head(x.query, x.key, x.value, split, rounding=NO_ROUNDING)
    with pytest.raises(Deviation):
        whole.judge(LayerAnswer(None, round_to(other.output.value, x.dtype)))


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

    chain = [
        running.linear(Approx.exact(z), w, None, u) for z, w in zip((x, y, y), kernels, strict=True)
    ]
    scores = running.scaled_scores(chain[0], chain[1], 0.5, u)
    made = running.attend(scores, chain[2], None, u)
    assert (np.abs(got - made.output.value) <= made.output.error).all()
    assert (np.abs(p - made.weights.value) <= made.weights.error).all()


def test_wrong_by_one_percent_is_seen_in_float32() -> None:
    x = draw_layer(LayerCase.parse("multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"))
    scaled = {**x.parameters, "query_kernel": 1.01 * x.parameters["query_kernel"]}
    other = layers.multi_head(x.query, x.key, x.value, scaled, rounding=NO_ROUNDING)
    with pytest.raises(Deviation, match="ratio"):
        LayerOracle.of(x, "stepwise").judge(LayerAnswer(None, other.output.value))


def test_ids_and_cases_determine_each_other() -> None:
    found = layer_cases("full")
    assert len({case.id for case in found}) == len(found)
    for case in found:
        assert LayerCase.parse(case.id) == case
    assert {case.operator for case in layer_cases("smoke")} == set(OPERATORS)
    names = {name for case in found for name in draw_layer(case).parameters}
    assert names == set(PARAMETERS)


def test_the_covering_array_covers_every_pair() -> None:
    from suite.spec.covering import feasible_pairs
    from suite.spec.layer_catalogue import AXES, compatible

    rows = covering_rows()
    for a, x, b, y in feasible_pairs(AXES, compatible):
        assert any(row[a] == x and row[b] == y for row in rows), (a, x, b, y)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("multi-head/none/mha/f32/b2h3q3k4d2", "expected OPERATOR/MASK"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4", "bad widths"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4.4/self", "equal sizes"),
        ("dot/none/mha/f32/b2h2q3k4d2/e2.2.2.2", "one head"),
        ("additive/none/mha/f32/b2h1q3k4d2/e4.4.2.2/single", "a single query"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4.4/what", "unknown option"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4.4/train", "not asked in training"),
        ("multi-head/none/mha/f32/b2h3q3k4d2/e4.4.4.4/head/nobias", "canonical"),
    ],
)
def test_wrong_ids_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerCase.parse(text)

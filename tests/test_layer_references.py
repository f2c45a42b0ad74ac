"""The layers' references: their bounds hold for every class when each step is rounded as the class says.
Honest layers (`tests/honest`) are second opinions of their values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance import references
from attention_conformance.backends.layer import STEPS, trained
from attention_conformance.references.one_head import as_head
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.rounding import Bounded
from attention_conformance.references.tape import Leaf
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.vocabulary import NUMERICS


def bounded(inputs: Inputs, numerics: str = "exact") -> dict[str, Bounded]:
    """What the layer returns, in float64 or wider, with the bounds of a class."""
    u = roundoffs(numerics, inputs.dtype)
    return references.find(inputs.operator).forward(inputs, u).arrays


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


@pytest.mark.parametrize("election", ["zeros", "nan", "uniform"])
def test_rows_without_keys_as_elected(election: str) -> None:
    x = draw(Case.parse("dot/padempty/mha/f32/b2h1q5k9d8v6/e8.8.6.6/head"))
    u = roundoffs("eager", x.dtype)
    outputs = references.find(x.operator).forward(x, u, election)
    output, weights = outputs.arrays["output"], outputs.arrays["weights"]
    assert (outputs.keys[-1] == 0).all()
    assert outputs.empty[-1].all()
    want = {"zeros": 0.0, "nan": np.nan, "uniform": x.value[-1].mean(0)}[election]
    share = {"zeros": 0.0, "nan": np.nan, "uniform": 1 / 9}[election]
    assert np.allclose(output.value[-1], want, equal_nan=True)
    assert np.allclose(weights.value[-1], share, equal_nan=True)
    assert output.error[-1].any() == (election != "zeros")
    assert np.isfinite(output.value[:-1]).all()

"""Promise: the layer of an encoder is what its definition says, step by step, and so are its derivatives;
a person's own is judged like any other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance import references
from attention_conformance.references.primitives.activation import gelu, normal_distribution, relu
from attention_conformance.references.rounding import NO_ROUNDING, Bounded
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.norms import EPSILON
from tests.test_layers import OWN, function_implementation, judged

CASES = (
    "encoder/pad/mha/f64/b2h2q3k3d2/e4.4.4.5/self",
    "encoder/pad/mha/f64/b2h2q3k3d2/e4.4.4.5/gelu/self",
    "encoder/causal/mha/f64/b2h2q3k3d2/e4.4.4.5/pre/self",
    "encoder/bool.bhqk/mha/f64/b1h3q4k4d2/e6.6.6.3/pre/gelu/self/dense",
)

ENCODERS = """
class Right(nn.Module):
    def __init__(self, query_width, heads, hidden_width, epsilon, norm_first=False):
        super().__init__()
        E, self.first = query_width, norm_first
        self.attention = Loaded(E, heads)
        self.up, self.down = nn.Linear(E, hidden_width), nn.Linear(hidden_width, E)
        self.norms = nn.ModuleList(nn.LayerNorm(E, eps=epsilon) for _ in range(2))

    def network(self, x):
        return self.down(self.up(x).relu())

    def forward(self, x, causal=False, valid=None):
        one, two = self.norms
        if self.first:
            x = x + self.attention(one(x), causal, valid)
            return x + self.network(two(x))
        x = one(x + self.attention(x, causal, valid))
        return two(x + self.network(x))

    def load_attention(self, p):
        self.attention.load_attention(p)
        for layer, name in ((self.up, "linear1"), (self.down, "linear2")):
            layer.weight.data, layer.bias.data = p[f"{name}_kernel"].T, p[f"{name}_bias"]
        for norm, name in zip(self.norms, ("norm1", "norm2")):
            norm.weight.data, norm.bias.data = p[f"{name}_gain"], p[f"{name}_offset"]

class Wrong(Right):
    def network(self, x):
        return super().network(x) * 1.02
"""


def normed(x: np.ndarray, p: dict[str, np.ndarray], name: str) -> np.ndarray:
    mean = math.fsum(x) / len(x)
    variance = math.fsum((x - mean) ** 2) / len(x)
    normal = (x - mean) / math.sqrt(variance + EPSILON)
    return np.asarray(normal * p[f"{name}_gain"] + p[f"{name}_offset"])


def by_tokens(x: Inputs) -> np.ndarray:
    """The layer, token after token and head after head."""
    p = {n: np.asarray(a, float) for n, a in x.arrays.items()}
    B, L, E = p["query"].shape
    attends, pre = x.attends, x.case.option("pre")
    out = np.zeros((B, L, E))

    def attended(b: int, i: int, tokens: list[np.ndarray]) -> np.ndarray:
        total = p["output_bias"].copy()
        for h in range(x.sizes.H):
            q = tokens[i] @ p["query_kernel"][:, h] + p["query_bias"][h]
            keys = [t @ p["key_kernel"][:, h] + p["key_bias"][h] for t in tokens]
            values = [t @ p["value_kernel"][:, h] + p["value_bias"][h] for t in tokens]
            seen = [j for j in range(L) if attends[b, h, i, j]]
            raised = {j: math.exp(q @ keys[j] / math.sqrt(len(q))) for j in seen}
            head = sum(raised[j] * values[j] for j in seen) / math.fsum(raised.values())
            total += head @ p["output_kernel"][h]
        return np.asarray(total)

    def network(y: np.ndarray) -> np.ndarray:
        hidden = y @ p["linear1_kernel"] + p["linear1_bias"]
        if x.case.option("activation") == "relu":
            active = [max(h, 0.0) for h in hidden]
        else:
            active = [h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden]
        return np.asarray(np.array(active) @ p["linear2_kernel"] + p["linear2_bias"])

    for b in range(B):
        own = list(p["query"][b])
        tokens = [normed(t, p, "norm1") for t in own] if pre else own
        for i in range(L):
            y = own[i] + attended(b, i, tokens)
            if pre:
                out[b, i] = y + network(normed(y, p, "norm2"))
            else:
                y = normed(y, p, "norm1")
                out[b, i] = normed(y + network(y), p, "norm2")
    return out


@pytest.mark.parametrize("text", CASES)
def test_it_equals_loops(text: str) -> None:
    inputs = draw(Case.parse(text))
    output = references.of(inputs.operator).forward(inputs, NO_ROUNDING).arrays["output"]
    np.testing.assert_allclose(np.asarray(output.value, float), by_tokens(inputs), atol=1e-13)
    assert not output.error.any()


def test_the_normal_distribution_is_right_to_the_last_digits() -> None:
    x = np.linspace(-9, 9, 901)
    want = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    np.testing.assert_allclose(normal_distribution(x), want, rtol=0, atol=3e-15)
    wide = normal_distribution(x.astype(np.longdouble))
    np.testing.assert_allclose(wide.astype(float), want, rtol=0, atol=2e-16)


def test_an_activation_knows_how_far_its_argument_may_be_off() -> None:
    u = roundoffs("exact", DTYPES["f32"])
    h = Bounded(np.array([-1.0, -0.1, 0.1, 2.0]), np.full(4, 0.2))
    active, slope = relu(h, u)
    assert active.value.tolist() == [0, 0, 0.1, 2]
    assert slope.value.tolist() == [0, 0, 1, 1]
    assert slope.error.tolist() == [0, 1, 1, 0]
    active, slope = gelu(h, u)
    for off in (-0.2, 0.2):
        other, bent = gelu(Bounded.exact(h.value + off), u)
        assert (np.abs(other.value - active.value) <= active.error).all()
        assert (np.abs(bent.value - slope.value) <= slope.error).all()


def test_a_persons_own_is_judged(torch_backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(OWN + ENCODERS)

    def own(name: str) -> Any:
        return function_implementation(torch_backend, f"{path}:{name}", {}, "encoder")[0]

    right, wrong = own("Right"), own("Wrong")
    for text in (
        "encoder/none/mha/f32/b2h4q7k7d3/e12.12.12.20/self",
        "encoder/causal/mha/f64/b2h4q7k7d3/e12.12.12.20/pre/self",
        "encoder/pad/mha/f64/b2h4q7k7d3/e12.12.12.20/self",
    ):
        assert judged("values", text, right).status == "pass"
    text = "encoder/pad/mha/f32/b2h4q7k7d3/e12.12.12.20/gelu/self"
    assert "no parameter activation" in judged("values", text, right).message
    assert judged("values", CASES[2], wrong).kind == "value"
    assert right.factory.bind(draw(Case.parse(text)))["norm_first"] is False
    text = "encoder/none/mha/f16/b2h4q7k7d3/e12.12.12.20/self"
    assert "systematic" in judged("spread", text, wrong).message

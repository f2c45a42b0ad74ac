"""The layer of an encoder: its activations know their errors, and a person's own is judged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.backends.registry import function_implementation
from attention_conformance.references.primitives.activation import gelu, normal_distribution, relu
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import verdict_of
from tests.test_own_layers import OWN

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
        assert verdict_of(right, text).status == "pass"
    text = "encoder/pad/mha/f32/b2h4q7k7d3/e12.12.12.20/gelu/self"
    assert "no parameter activation" in verdict_of(right, text).message
    assert verdict_of(wrong, CASES[2]).kind == "value"
    assert right.factory.bind(draw(Case.parse(text)))["norm_first"] is False
    text = "encoder/none/mha/f16/b2h4q7k7d3/e12.12.12.20/self"
    assert "systematic" in verdict_of(wrong, text, "spread").message

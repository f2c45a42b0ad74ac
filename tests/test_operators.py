"""Other operators: the frequencies of rotations, number by number, and a person's table or encoder.
Honest kernels (`tests/honest`) are second opinions of values, and of all else that references promise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.registry import function_implementation
from attention_conformance.references import rotary
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.rotary import (
    FACTOR,
    ORIGINAL_LENGTH,
    SCALINGS,
    Rotation,
)
from tests.runtimes import user_function, verdict_of
from tests.test_own_layers import OWN


@pytest.mark.parametrize("got", [np.nan, 0.0, np.inf])
def test_nothing_but_minus_infinity_is_minus_infinity(got: float) -> None:
    want = np.full(3, -np.inf)
    arrays = np.full(3, got), want, np.zeros(3), np.ones(3, bool)
    try:
        _, _, deviation = against_oracle(*arrays, DTYPES["f32"], "exact")
    except WrongAnswer as error:
        deviation = error
    assert deviation is not None
    assert against_oracle(want, *arrays[1:], DTYPES["f32"], "exact")[2] is None


ROTARY = "rotary/none/mha/f64/b2h3q17k1d16"
ROTATIONS = Path(__file__).parent / "functions" / "rotations.py"


def by_hand(scaling: str, index: int, length: int, size: int = 16) -> tuple[float, float]:
    """Frequency and factor of one pair, number by number."""
    theta = 10000.0 ** (-2 * index / size)
    if scaling == "linear":
        return theta / FACTOR, 1.0
    if scaling == "ntk" and length > ORIGINAL_LENGTH:
        base = 10000.0 * (FACTOR * length / ORIGINAL_LENGTH - FACTOR + 1) ** (size / (size - 2))
        return base ** (-2 * index / size), 1.0
    if scaling == "llama3":
        wavelength = 2 * math.pi / theta
        if wavelength < ORIGINAL_LENGTH / 4:
            return theta, 1.0
        if wavelength > ORIGINAL_LENGTH:
            return theta / FACTOR, 1.0
        smooth = (ORIGINAL_LENGTH / wavelength - 1) / 3
        return (1 - smooth) * theta / FACTOR + smooth * theta, 1.0
    if scaling == "yarn":
        # 32 turns and 1 turn within 256 tokens: dimensions 0.2 and 3.2, outwards 0 and 4.
        ramp = min(index / 4, 1.0)
        return theta / FACTOR * ramp + theta * (1 - ramp), 0.1 * math.log(FACTOR) + 1
    if scaling == "longrope":
        by = 1 + index / (2 if length > ORIGINAL_LENGTH else 8)
        return theta / by, math.sqrt(1 + math.log(FACTOR) / math.log(ORIGINAL_LENGTH))
    return theta, 1.0


# mscale 1 and mscale_all_dim 0.5 with the factor 4; an attention_factor.
GIVEN = {
    "yarn-mscale": 1.1386294361119891 / 1.0693147180559945,
    "yarn-factor": 0.75,
    "longrope-factor": 0.75,
}


@pytest.mark.parametrize("more", ["", "/at4097"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies_by_hand(scaling: str, more: str) -> None:
    word = "" if scaling == "none" else f"/{scaling}"
    inputs = draw(Case.parse(f"{ROTARY}{word}{more}"))
    position = inputs.arrays["position"]
    frequencies = rotary.frequencies(Rotation.of(inputs.case, 16), position)
    for index in range(8):
        theta, factor = by_hand(scaling.partition("-")[0], index, int(position.max()) + 1)
        factor = GIVEN.get(scaling, factor)
        assert frequencies.theta[index] == pytest.approx(theta, rel=1e-12), index
        assert frequencies.attention == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("from_checked_table", {"negative": "pass", "beyond-table": "pass", "fractional": "pass"}),
        ("from_table", {"negative": "fail", "beyond-table": "pass", "fractional": "pass"}),
        ("rotate", dict.fromkeys(["negative", "beyond-table", "fractional"], "unsupported")),
    ],
)
def test_a_table_refuses_positions_that_it_does_not_have(
    name: str, refused: dict[str, str]
) -> None:
    judged = user_function(f"{ROTATIONS}:{name}", "rotary", drop_in=True)
    cells = all_checks()["bad_problem"].cells("smoke", [judged])
    outcomes = {cell.case.name: judge(cell).status for cell in cells}  # type: ignore[union-attr]
    assert {n: outcomes[f"position-{n}"] for n in refused} == refused
    plain_operands = verdict_of(judged, ROTARY.replace("f64", "f32"))
    assert plain_operands.status == "pass", plain_operands.message


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
    assert verdict_of(wrong, "encoder/causal/mha/f64/b2h2q3k3d2/e4.4.4.5/pre/self").kind == "value"
    assert right.factory.bind(draw(Case.parse(text)))["norm_first"] is False
    text = "encoder/none/mha/f16/b2h4q7k7d3/e12.12.12.20/self"
    assert "systematic" in verdict_of(wrong, text, "spread").message

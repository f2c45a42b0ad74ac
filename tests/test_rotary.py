"""Promise: frequencies are those of their definitions, and a person's own rotation is asked
what it takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attention_conformance.backends.registry import function_implementation, load
from attention_conformance.references import rotary
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.rotary import (
    FACTOR,
    ORIGINAL_LENGTH,
    SCALINGS,
    Rotation,
)
from tests.runtimes import verdict_of

PLAIN = "rotary/none/mha/f64/b2h3q17k1d16"
FUNCTIONS = Path(__file__).parent / "functions" / "rotations.py"


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
    inputs = draw(Case.parse(f"{PLAIN}{word}{more}"))
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
    judged, _ = function_implementation(
        load("torch"), f"{FUNCTIONS}:{name}", {"drop_in": True}, "rotary"
    )
    cells = all_checks()["bad_problem"].cells("smoke", [judged])
    outcomes = {cell.case.name: judge(cell).status for cell in cells}  # type: ignore[union-attr]
    assert {n: outcomes[f"position-{n}"] for n in refused} == refused
    plain = verdict_of(judged, PLAIN.replace("f64", "f32"))
    assert plain.status == "pass", plain.message

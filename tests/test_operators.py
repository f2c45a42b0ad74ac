"""What references of other operators promise beyond values: gradients of what nobody attends, rows of
empty parts, samples that are chosen, frequencies, forms of latent attention, activations of encoders.
Honest kernels (`tests/honest`) are second opinions of values. A person's function is asked what it
takes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.backends.registry import function_implementation, load
from attention_conformance.references import rotary
from attention_conformance.references.primitives.activation import gelu, normal_distribution, relu
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.judge.verdict import Deviation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    TABLE,
    slots,
    with_stored_tokens,
)
from attention_conformance.suite.spec.operators.latent import AXES, plain_operands
from attention_conformance.suite.spec.operators.rotary import (
    FACTOR,
    ORIGINAL_LENGTH,
    SCALINGS,
    Rotation,
)
from tests.plain import attention as plain_attention
from tests.runtimes import of_person, user_function, verdict_of
from tests.test_own_layers import OWN

PLAIN = "packed/none/mha/f64/b3h4q24k24d8/seg5.7.12"
CROSS = "packed/none/gqa2/f64/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr"


def test_products_may_be_cut_off_where_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed attention multiplies matrices as plain attention does; a rotation multiplies none."""
    backend = load("numpy")
    rounding = DeclaredRounding(truncates_matmul=("bf16",))
    monkeypatch.setattr(backend, "rounding", rounding)
    texts = ("sdpa/none/mha/bf16/b2h3q5k7d8", PLAIN.replace("f64", "bf16"), PLAIN.replace("f64", "f32"),
             "rotary/none/mha/bf16/b2h3q17k1d16")  # fmt: skip
    cut = []
    for text in texts:
        case = Case.parse(text)
        one = next(i for i in backend.implementations() if i.operator is case.operator)
        declared = Cell(all_checks()["values"], case, one).rounding.declared
        cut.append(case.dtype.name in declared.truncates_matmul)
    assert cut == [True, True, False, False]


def test_keys_that_no_query_attends_have_no_gradient() -> None:
    inputs = draw(Case.parse(CROSS))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    for name in ("key", "value"):
        assert not gradients[name].value[5:16].any()
        assert gradients[name].error[5:16].max() < 1e-300  # an underflow at most
        assert gradients[name].value[:5].all()


def test_segments_are_chosen_as_samples_are() -> None:
    inputs = draw(Case.parse(CROSS))
    chosen = inputs.select("b", [2, 0])
    assert chosen.case.id == "packed/none/gqa2/f64/b2h4q9k12d8/seg6.3x7.5/causalbr"
    assert np.array_equal(chosen.query, np.concatenate([inputs.query[3:9], inputs.query[:3]]))
    whole, part = (
        Oracle.forward(x, Rounding("exact")).expected["output"].value for x in (inputs, chosen)
    )
    assert np.array_equal(part, np.concatenate([whole[3:9], whole[:3]]))


def test_where_all_parts_are_empty_the_answer_is_promised() -> None:
    inputs = draw(Case.parse("merge/none/mha/f64/b2h3q5k4d8/empty"))
    expected = Oracle.forward(inputs, Rounding("exact")).expected
    assert (expected["output"].value[:, :, -1] == 0).all()
    assert np.isneginf(expected["lse"].value[:, :, -1]).all()
    assert np.isfinite(expected["output"].error).all()


@pytest.mark.parametrize("got", [np.nan, 0.0, np.inf])
def test_nothing_but_minus_infinity_is_minus_infinity(got: float) -> None:
    want = np.full(3, -np.inf)
    arrays = np.full(3, got), want, np.zeros(3), np.ones(3, bool)
    try:
        _, _, deviation = against_oracle(*arrays, DTYPES["f32"], "exact")
    except Deviation as error:
        deviation = error
    assert deviation is not None
    assert against_oracle(want, *arrays[1:], DTYPES["f32"], "exact")[2] is None


SKIPPED = "paged-write/none/mha/f64/b3h2q9k24d8v6/seg1.3.5x7.12.5/hnd/shuffled/skipped"


def test_skipped_tokens_have_no_gradient() -> None:
    inputs = draw(Case.parse(SKIPPED))
    gradients = Oracle.vjp(inputs, draw_cotangent(inputs.case), Rounding("exact")).expected
    skipped = inputs.arrays["slot_mapping"] < 0
    assert set(gradients) == {"key", "key_cache"}
    assert not gradients["key"].value[skipped].any()
    assert gradients["key"].value[~skipped].all()


def test_new_tokens_are_stored_in_the_last_slots_of_their_samples() -> None:
    inputs = draw(Case.parse("latent/causalbr/mha/f32/b2h3q4k9d8v6/writes/page4"))
    table, counts = (inputs.arrays[name].astype(int) for name in TABLE)
    whole = Oracle.forward(inputs, Rounding("exact")).expected
    for name in ("latent", "key_rope"):
        expected, new = inputs.arrays[name].copy(), inputs.arrays[f"{NEW}{name}"]
        assert not np.isin(new, expected).any()
        for b, q in np.ndindex(2, 4):
            key = counts[b] - 4 + q
            expected[table[b, key // 4], key % 4] = new[b, q]
        assert np.array_equal(whole[f"{name}_output"].value, expected)
        assert not whole[f"{name}_output"].error.any()
    after, cotangent = with_stored_tokens(inputs), np.ones((2, 3, 4, 6))
    of_new, of_all = (Oracle.vjp(x, cotangent, Rounding("exact")).expected for x in (inputs, after))
    at = slots(inputs)[:, -4:]
    tokens, others = (x["latent"].value.reshape(-1, 16).copy() for x in (of_all, of_new))
    assert np.array_equal(of_new["new_latent"].value, tokens[at])
    tokens[at] = 0
    assert np.array_equal(others, tokens)
    moved = {"new_latent": np.ones((2, 4, 16))}
    of_ones = Oracle.jvp(inputs, moved, Rounding("exact")).expected["output"].value
    assert np.isclose(float(of_ones.sum()), float(of_new["new_latent"].value.sum()))


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


LATENTS = Path(__file__).parent / "functions" / "latents.py"
ONE_FORM = [False, True]


def rounding(absorbs: bool | None, numerics: str = "exact") -> Rounding:
    form = {} if absorbs is None else dict.fromkeys(DTYPES, absorbs)
    return Rounding(numerics, declared=DeclaredRounding(absorbs=form))


def by_keys(inputs: Inputs) -> np.ndarray:
    """Plain attention over the projected keys and values."""
    operands = plain_operands(inputs.arrays)
    return plain_attention(*operands, mask=inputs.dense_mask, scale=inputs.effective_scale)


def test_forms_have_other_bounds_and_an_undeclared_form_the_larger_one() -> None:
    for sizes, larger in (("d8v6/r32e8", 1), ("d64/r7e3", 0)):
        inputs = draw(Case.parse(f"latent/none/mha/bf16/b2h3q4k9{sizes}"))
        bounds = [Oracle.forward(inputs, rounding(absorbs)).bound() for absorbs in ONE_FORM]
        assert np.median(bounds[larger] / bounds[1 - larger]) > 1.3, sizes
        either = Oracle.forward(inputs, rounding(None)).bound()
        assert np.array_equal(either, np.maximum(*bounds))
    cotangent = draw_cotangent(inputs.case)
    of = [
        Oracle.vjp(inputs, cotangent, rounding(absorbs)).expected for absorbs in (False, True, None)
    ]
    for name in AXES:
        assert np.array_equal(of[2][name].error, np.maximum(of[0][name].error, of[1][name].error))


@pytest.mark.parametrize("fmt", ["bf16", "f16", "f32"])
def test_projections_that_select_have_the_bound_of_plain_attention(fmt: str) -> None:
    """So a scale that is off by 1 % is seen in 16 bits."""
    inputs = draw(Case.parse(f"latent/none/mha/{fmt}/b2h3q4k9d8v6/select/large"))
    other = draw(Case.parse(f"sdpa/none/mha/{fmt}/b2h3q4k9d12v6"))
    query, key, value = plain_operands(inputs.arrays)
    same = other.replace(query=query, key=key, value=value)
    want = Oracle.forward(same, rounding(None)).expected["output"]
    roughly = by_keys(inputs.replace(scale=1.01 * inputs.effective_scale))
    for absorbs in ONE_FORM:
        got = Oracle.forward(inputs, rounding(absorbs)).expected["output"]
        assert np.allclose(got.value, want.value, rtol=0, atol=1e-12)
        assert np.median(got.error / want.error) < 2.1
        assert (np.abs(roughly - got.value) > got.error).any()


def test_a_function_without_a_mask_is_passed_none() -> None:
    verdicts = of_person(f"{LATENTS}:causal_alone", "latent", check="invariant_decode")
    assert [verdict.status for _, verdict in verdicts] == ["pass"]


@pytest.mark.parametrize(("name", "status"), [("absorbed", "pass"), ("unabsorbed", "unsupported")])
def test_a_slot_behind_the_last_key_is_asked_of_functions_with_pages(
    name: str, status: str
) -> None:
    found = of_person(f"{LATENTS}:{name}", "latent", check="election")
    asked = [verdict for cell, verdict in found if "nan-behind-last-key" in cell.case.id]
    assert {verdict.status for verdict in asked} == {status}


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

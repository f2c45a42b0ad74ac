"""References: the definition and the compositions of plain and packed attention agree with each other and
with loops of mpmath numbers within their own bounds; blocks and memory are as promised."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance import references
from attention_conformance.references import blocked, rounding, sdpa
from attention_conformance.references.composition import Problem
from attention_conformance.references.rounding import (
    NO_ROUNDING,
    NoExtendedPrecision,
    precision_for,
)
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, of_operator
from attention_conformance.suite.spec.dtypes import CODES, DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import OPERANDS
from tests import loops


def arguments(inputs: Inputs) -> dict:
    return {
        "mask": inputs.dense_mask,
        "bias": inputs.bias,
        "scale": inputs.scale,
        "softcap": inputs.feature("softcap"),
        "sinks": inputs.feature("sinks"),
    }


def operands(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return inputs.query, inputs.key, inputs.value


def defined_by(inputs: Inputs, **options: Any) -> blocked.BlockedPass:
    """The blocked pass of inputs. A change of an option is given by name."""
    given = {"mask": inputs.dense_mask, "bias": inputs.bias, "scale": inputs.scale}
    query, key, value = (options.pop(name, inputs.arrays[name]) for name in OPERANDS)
    return sdpa.attention(query, key, value, features=inputs.features, **given, **options)


def exact_limit(inputs: Inputs) -> np.ndarray:
    """The bound of a float64 evaluation of the formula, whatever the case's dtype."""
    reference = defined_by(inputs, terms=True)
    assert reference.terms is not None
    return reference.terms.bound(reference.output, roundoffs("exact", DTYPES["f64"]))


@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(*[st.integers(1, 3)] * 3, *[st.integers(1, 6)] * 4),
    mask=st.sampled_from(["none", "causal", "causalbr", "pad", "bool.bhqk.empty", "win1.0"]),
    bias=st.sampled_from(["", "/bias.bhqk", "/bias.1hqk", "/bias.inf", "/bias.alibi"]),
    scale=st.sampled_from(["", "/scale-0.7", "/scale0.0"]),
    more=st.sampled_from(["", "/cap1.5", "/sinks", "/cap1.5/sinks", "/large", "/offset"]),
)
@settings(max_examples=120, deadline=None)
def test_the_definition_agrees_with_fifty_digits_on_any_case(
    seed: int, sizes: tuple[int, ...], mask: str, bias: str, scale: str, more: str
) -> None:
    B, Hkv, group, Lq, Lk, D, Dv = sizes
    heads = "mha" if group == 1 else "mqa" if Hkv == 1 else f"gqa{group}"
    size = f"b{B}h{Hkv * group}q{Lq}k{Lk}d{D}{f'v{Dv}' if Dv != D else ''}"
    dense = "/dense" if mask.startswith("bool") else ""
    text = f"sdpa/{mask}/{heads}/f64/{size}{bias}{scale}{more}{dense}"
    inputs = draw(Case.parse(text), seed)
    answer, limit = defined_by(inputs), exact_limit(inputs)
    truth, lse = loops.attention(*operands(inputs), **arguments(inputs))
    assert (np.abs(answer.output - truth) <= limit).all()
    # Extended precision carries 11 bits more.
    extended = defined_by(inputs, precision=np.longdouble)
    assert (np.abs(extended.output - truth) <= limit / 1000).all()
    finite = np.isfinite(lse)
    assert (np.isfinite(answer.lse) == finite).all()
    assert np.abs(extended.lse[finite] - lse[finite]).max(initial=0) < 1e-12


BLOCKED = (
    "sdpa/causal/gqa2/f16/b2h6q33k47d8",
    "sdpa/bool.bhqk.empty/mha/f64/b2h2q4k5d3/bias.bhqk/dense",
    "sdpa/pad/mqa/f64/b2h3q2k5d3/scale-0.7/cap2.0",
)


@pytest.mark.parametrize("text", BLOCKED)
def test_blocks_do_not_matter(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(Case.parse(text))
    whole = defined_by(inputs, terms=True, variance=True)
    monkeypatch.setattr(blocked, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(blocked, "LONG_BLOCK_ELEMENTS", 1)
    rows = defined_by(inputs, terms=True, variance=True)
    # Matrix products may sum in another order for other shapes: equal within a few ulps.
    assert np.abs(whole.output - rows.output).max() < 1e-15 * 8
    assert whole.terms is not None
    assert rows.terms is not None
    for name in (
        "accumulate", "score", "shift", "value", "underflow", "score_var", "value_var", "keys",
    ):  # fmt: skip
        one, other = getattr(whole.terms, name), getattr(rows.terms, name)
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max(), name


def test_float64_references_are_in_extended_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("sdpa/none/mha/f64/b1h2q5k7d8", "dot/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3"):
        inputs = draw(Case.parse(text))
        outputs = references.find(inputs.operator).forward(inputs, NO_ROUNDING)
        assert outputs.arrays["output"].value.dtype == np.longdouble
    monkeypatch.setattr(rounding.np, "longdouble", np.float64)
    with pytest.raises(NoExtendedPrecision, match="longdouble"):
        precision_for(DTYPES["f64"])


@pytest.mark.slow
def test_memory_at_32768_keys() -> None:
    """Value, bound and variance of 16 query rows... of all 32768 rows stay within 500 MB."""
    root = Path(__file__).resolve().parents[1]
    program = (
        "import numpy as np; from attention_conformance.references.sdpa import attention; "
        "from attention_conformance.suite.spec.masks import Causal, PairIndex, Sizes; "
        "L = 32768; rng = np.random.default_rng(0); "
        "q, k, v = (rng.standard_normal((1, 1, L, 64)) for _ in range(3)); "
        "s = Sizes(1, 1, 1, L, L, 64, 64); m = Causal(); "
        "attention(q, k, v, mask=lambda rows: m.allowed(PairIndex.of(s, 0, rows)), terms=True, "
        "variance=True)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 500_000  # KiB


CASES = (
    "sdpa/causalbr/gqa2/{dt}/b2h4q6k4d4",
    "sdpa/bool.bhqk.empty/gqa3/{dt}/b2h6q4k5d3v6/bias.bhqk/scale-0.3/dense",
    "sdpa/pad/mqa/{dt}/b2h4q4k5d3/bias.1hqk/cap0.7",
    "sdpa/none/mha/{dt}/b2h3q4k5d3/bias.inf",
    "sdpa/causal/gqa2/{dt}/b2h4q6k4d4/sinks",
    "sdpa/causalbr/gqa2/{dt}/b2h4q4k6d4/slopes",
    "sdpa/bool.bhqk.empty/mha/{dt}/b2h3q4k5d3/bias.qk/cap0.7/sinks/dense",
    "packed/none/gqa2/{dt}/b4h4q10k24d8/seg3.0.6.1x5.11.7.1/causalbr",
)


@pytest.mark.parametrize("rows", ["zeros", "uniform"])
@pytest.mark.parametrize(
    ("dt", "numerics"),
    [("f64", "exact"), ("f32", "exact"), ("f32", "eager"), ("f16", "fused"), ("bf16", "eager")],
)
@pytest.mark.parametrize("text", CASES)
def test_a_composition_is_a_second_opinion_of_the_pass_by_blocks(
    text: str, dt: str, numerics: str, rows: str
) -> None:
    """Blocks of rows share their terms between numerics classes, the composition has derivatives; bounds
    are alike."""
    inputs = draw(Case.parse(text.format(dt=dt)))
    sinks = inputs.feature("sinks")
    if sinks is not None:  # A head without a sink, whose rows without keys follow the election.
        inputs = inputs.replace(sinks=np.where(np.arange(len(sinks)), sinks, -np.inf))
    u, reference = roundoffs(numerics, inputs.dtype), references.find(inputs.operator)
    answer = reference.forward(inputs, u, rows)
    with np.errstate(all="ignore"):
        composition = reference.compose(Problem(inputs, u, rows, "zeros"))
        composed = composition.output.output
    blocked = answer.arrays["output"]
    assert np.abs(composed.value - blocked.value).max() < 1e-15
    judged = blocked.error > 0
    assert (blocked.error <= 1.1 * composed.error).all()
    assert (composed.error[judged] <= 1.15 * blocked.error[judged]).all()
    assert composition.keys is not None
    assert np.array_equal(composition.keys, answer.keys)


def test_every_operator_has_a_reference_whose_exact_arithmetic_is_exact() -> None:
    """Codes are the exception: the value lies between two of them."""
    for operator in OPERATORS.values():
        reference = references.find(operator)
        case = of_operator(operator, cases, "smoke")[0]
        outputs = reference.forward(draw(case), NO_ROUNDING)
        assert set(outputs.arrays) == set(operator.outputs(case))
        for name, array in outputs.arrays.items():
            assert array.shape == draw(case).full_shape(name)
            code = CODES.get(case.dtype_of(name).name)
            if code is None:
                assert not array.error.any()
            else:
                half = np.maximum(
                    code.unit_roundoff * np.abs(array.value), code.smallest_subnormal / 2
                )
                assert np.array_equal(array.error, half)

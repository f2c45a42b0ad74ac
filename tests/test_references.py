"""References: the definition, the loops and the online softmax agree with each other and with mpmath
within their own bounds; blocks, hidden NaN and memory behave as promised."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from references import definition, loops, online
from suite.judge.oracle import Oracle
from suite.judge.tolerance import bound
from suite.spec.dtypes import DTYPES
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import draw

TINY = (
    "sdpa/none/mha/f64/b2h2q3k4d3v2",
    "sdpa/causal/gqa2/f64/b1h4q4k3d2",
    "sdpa/causalbr/mha/f64/b1h2q5k3d2",
    "sdpa/bool.bhqk.empty/mha/f64/b2h2q4k5d3/bias.bhqk/dense",
    "sdpa/pad/mqa/f64/b2h3q2k5d3/scale-0.7/cap2.0",
    "sdpa/win1.1/mha/f64/b1h2q5k5d3/bias.alibi",
    "sdpa/none/mha/f64/b1h2q3k5d3/bias.inf/large",
    "sdpa/seg3/mqa/f64/b1h2q6k5d4/scale0.0",
    "sdpa/none/mha/f64/b1h2q3k5d3/offset",
)


def arguments(inputs: Inputs) -> dict:
    return {
        "mask": inputs.dense_mask,
        "bias": inputs.bias,
        "scale": inputs.scale,
        "softcap": inputs.softcap,
    }


def operands(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return inputs.query, inputs.key, inputs.value


def exact_limit(inputs: Inputs) -> np.ndarray:
    """The bound of a float64 evaluation of the formula, whatever the case's dtype."""
    reference = definition.attention(*operands(inputs), **arguments(inputs), terms=True)
    return bound(reference, "exact", DTYPES["f64"])


@pytest.mark.parametrize("text", TINY)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_references_agree_with_fifty_digits(text: str, seed: int) -> None:
    inputs = draw(Case.parse(text), seed)
    with mpmath.workdps(50):
        wide, _ = loops.attention(
            *operands(inputs),
            **arguments(inputs),
            number=mpmath.mpf,
            exp=mpmath.exp,
            tanh=mpmath.tanh,
            sqrt=mpmath.sqrt,
        )
        truth = np.array(
            [[[[mpmath.nstr(x, 30) for x in row] for row in h] for h in b] for b in wide],
            dtype=np.longdouble,
        )
    limit = exact_limit(inputs)
    scalar = np.array(loops.attention(*operands(inputs), **arguments(inputs))[0])
    streamed, _ = online.attention(*operands(inputs), **arguments(inputs), tile=2)
    plain = definition.attention(*operands(inputs), **arguments(inputs)).output
    extended = definition.attention(
        *operands(inputs), **arguments(inputs), precision=np.longdouble
    ).output
    for name, got in (("loops", scalar), ("online", streamed), ("definition", plain)):
        assert (np.abs(got - truth) <= limit).all(), name
    # Extended precision carries 11 bits more.
    assert (np.abs(extended - truth) <= limit / 1000).all()


@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(*[st.integers(1, 4)] * 2, *[st.integers(1, 6)] * 4),
    mask=st.sampled_from(["none", "causal", "causalbr", "pad", "bool.bhqk.empty", "win1.0"]),
    bias=st.sampled_from(["none", "bhqk", "1hqk", "inf"]),
    cap=st.sampled_from(["", "/cap1.5"]),
)
@settings(max_examples=120, deadline=None)
def test_definition_agrees_with_loops_and_online(seed, sizes, mask, bias, cap) -> None:  # type: ignore[no-untyped-def]
    B, H, Lq, Lk, D, Dv = sizes
    value = f"v{Dv}" if Dv != D else ""
    dense = "/dense" if mask.startswith("bool") else ""
    added = f"/bias.{bias}" if bias != "none" else ""
    case = Case.parse(f"sdpa/{mask}/mha/f32/b{B}h{H}q{Lq}k{Lk}d{D}{value}{added}{cap}{dense}")
    inputs = draw(case, seed)
    found = definition.attention(*operands(inputs), **arguments(inputs), weights=True)
    scalar, scalar_weights = loops.attention(*operands(inputs), **arguments(inputs))
    streamed, lse = online.attention(*operands(inputs), **arguments(inputs), tile=3)
    limit = 2 * exact_limit(inputs)
    assert (np.abs(found.output - np.array(scalar)) <= limit).all()
    assert (np.abs(found.output - streamed) <= limit).all()
    assert found.weights is not None
    assert np.abs(found.weights - np.array(scalar_weights)).max() < 1e-13
    finite = np.isfinite(lse)
    assert (np.isfinite(found.lse) == finite).all()
    assert np.abs(found.lse[finite] - lse[finite]).max(initial=0) < 1e-12


def test_weights_and_lse_are_what_they_are_called() -> None:
    inputs = draw(Case.parse("sdpa/causal/gqa2/f32/b2h4q5k7d8"))
    found = definition.attention(*operands(inputs), **arguments(inputs), weights=True)
    assert found.weights is not None
    assert np.abs(found.weights.sum(-1) - 1).max() < 1e-14
    value = np.repeat(inputs.value, 2, axis=1)
    assert np.abs(found.weights @ value - found.output).max() < 1e-14
    scores = inputs.query @ np.repeat(inputs.key, 2, axis=1).swapaxes(-1, -2) / np.sqrt(8)
    scores = np.where(inputs.attends, scores, -np.inf)
    assert np.abs(np.log(np.exp(scores).sum(-1)) - found.lse).max() < 1e-13
    assert definition.attention(*operands(inputs)).terms is None


@pytest.mark.parametrize("text", ["sdpa/causal/gqa2/f16/b2h6q33k47d8", TINY[3], TINY[4]])
def test_blocks_do_not_matter(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(Case.parse(text))
    options = {**arguments(inputs), "terms": True, "variance": True}
    whole = definition.attention(*operands(inputs), **options)
    monkeypatch.setattr(definition, "BLOCK_ELEMENTS", 1)
    rows = definition.attention(*operands(inputs), **options)
    # Matrix products may sum in another order for other shapes: equal within a few ulps.
    assert np.abs(whole.output - rows.output).max() < 1e-15 * 8
    assert whole.terms is not None
    assert rows.terms is not None
    for name in (
        "accumulate",
        "score",
        "shift",
        "value",
        "underflow",
        "score_var",
        "value_var",
        "keys",
    ):
        one, other = getattr(whole.terms, name), getattr(rows.terms, name)
        assert np.abs(one - other).max() <= 1e-5 * np.abs(one).max(), name


def test_what_no_row_attends_may_be_nan() -> None:
    inputs = draw(Case.parse("sdpa/pad/gqa2/f32/b3h4q5k9d8"))
    clean = definition.attention(*operands(inputs), **arguments(inputs), terms=True)
    hidden = ~inputs.attends.any((1, 2))[:, None, :, None]
    poisoned = [np.where(hidden, np.nan, x) for x in (inputs.key, inputs.value)]
    dirty = definition.attention(inputs.query, *poisoned, **arguments(inputs), terms=True)
    assert np.array_equal(clean.output, dirty.output)
    assert np.array_equal(
        bound(clean, "eager", DTYPES["f32"]), bound(dirty, "eager", DTYPES["f32"])
    )


def test_what_a_row_attends_may_not_be_nan() -> None:
    inputs = draw(Case.parse("sdpa/none/mha/f32/b1h1q2k3d4"))
    value = inputs.value.copy()
    value[0, 0, 1] = np.nan
    assert np.isnan(definition.attention(inputs.query, inputs.key, value).output).all()


def test_rows_without_keys_as_elected() -> None:
    inputs = draw(Case.parse("sdpa/bool.qk.empty/mha/f32/b2h2q7k5d4/dense"))
    empty = ~inputs.attends.any(-1)
    assert empty.any()
    for election, want in (
        ("zeros", np.zeros(4)),
        ("nan", np.full(4, np.nan)),
        ("uniform", inputs.value.mean(2)[:, :, None]),
    ):
        found = definition.attention(*operands(inputs), **arguments(inputs), empty_rows=election)
        wanted = np.broadcast_to(want, found.output.shape)
        assert np.allclose(found.output[empty], wanted[empty], equal_nan=True)
        assert np.isfinite(found.output[~empty]).all()
    with pytest.raises(ValueError, match="zeros, nan, uniform"):
        definition.attention(*operands(inputs), empty_rows="mean")


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"key": np.zeros((2, 2, 7, 6))}, "multiple of Hkv"),
        ({"value": np.zeros((2, 4, 7, 8))}, "multiple of Hkv"),
        ({"query": np.zeros((2, 3, 5, 8))}, "multiple of Hkv"),
        ({"query": np.zeros((4, 5, 8))}, "rank 4"),
        ({"mask": np.ones((5, 6), bool)}, "does not broadcast"),
        ({"mask": np.ones((2, 1, 4, 5, 7), bool)}, "does not broadcast"),
        ({"bias": np.ones((3, 1, 5, 7))}, "does not broadcast"),
        ({"mask": np.ones((5, 7), int)}, "must be boolean"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change: dict, hint: str) -> None:
    good = {
        "query": np.zeros((2, 4, 5, 8)),
        "key": np.zeros((2, 2, 7, 8)),
        "value": np.zeros((2, 2, 7, 8)),
    }
    definition.attention(**good)
    with pytest.raises(ValueError, match=hint):
        definition.attention(**{**good, **change})


def test_float64_oracle_is_in_extended_precision() -> None:
    case = Case.parse("sdpa/none/mha/f64/b1h2q5k7d8")
    assert Oracle.of(draw(case)).reference.output.dtype == np.longdouble


@pytest.mark.slow
def test_memory_at_32768_keys() -> None:
    """Value, bound and variance of 16 query rows... of all 32768 rows stay within 500 MB."""
    root = Path(__file__).resolve().parents[1]
    program = (
        "import numpy as np; from references.definition import attention; from suite.spec.masks "
        "import Causal, Index, Sizes; L = 32768; rng = np.random.default_rng(0); "
        "q, k, v = (rng.standard_normal((1, 1, L, 64)) for _ in range(3)); "
        "s = Sizes(1, 1, 1, L, L, 64, 64); m = Causal(); "
        "attention(q, k, v, mask=lambda rows: m.allowed(Index.of(s, 0, rows)), terms=True, "
        "variance=True)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 500_000  # KiB

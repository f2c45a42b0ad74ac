"""Spec: ids and cases determine each other, levels nest, the array covers, masks mean what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suite.spec.layers import LAYER_FEATURES
from suite.spec.problem import BIASES, FEATURES, RECIPES, Case, Problem

from suite.spec import catalogue
from suite.spec.covering import each_value, feasible_pairs, pairwise
from suite.spec.dtypes import DTYPES, dtype, round_to
from suite.spec.masks import Boolean, Causal, Padding, Segments, Window, parse_mask
from suite.spec.recipes import DRAWS, draw
from suite.spec.sizes import Index, Sizes


def test_levels_nest_and_have_their_sizes() -> None:
    smoke, standard, full = (catalogue.cases(level) for level in catalogue.LEVELS)
    assert standard[: len(smoke)] == smoke
    assert full[: len(standard)] == standard
    assert len(smoke) <= 60
    assert 250 <= len(standard) <= 999
    assert len(full) >= 2000


def test_ids_are_unique_and_parse_back() -> None:
    cases = catalogue.everything("full")
    assert len({case.id for case in cases}) == len(cases)
    for case in catalogue.cases("full"):
        assert Case.parse(case.id) == case
        assert catalogue.find(case.id) == case
        assert set(case.needs) <= set(FEATURES)
    for case in catalogue.layer_cases("full"):
        assert catalogue.find(case.id) == case
        assert set(case.needs) <= set(FEATURES | LAYER_FEATURES)
    probes = catalogue.ELECTION_CASES + catalogue.BAD_CASES + catalogue.LAYER_BAD_CASES
    for case in probes:
        assert catalogue.find(case.id) is case
        assert set(case.needs) <= set(FEATURES | LAYER_FEATURES)


def test_covering_array_covers_every_pair_that_makes_sense() -> None:
    rows = catalogue.covering_rows()
    covered = {(a, row[a], b, row[b]) for row in rows for a in row for b in row if a != b}
    pairs = feasible_pairs(catalogue.AXES, catalogue.compatible)
    assert not [pair for pair in pairs if pair not in covered]
    for row in rows:
        for a in row:
            for b in row:
                if a != b:
                    assert catalogue.compatible(a, row[a], b, row[b])


def test_smoke_shows_every_axis_value() -> None:
    shown = {(k, v) for row in each_value(catalogue.covering_rows()) for k, v in row.items()}
    assert shown == {(name, value) for name, values in catalogue.AXES.items() for value in values}


def test_contradictory_forbidden_pairs_are_an_error() -> None:
    axes = {"a": (1, 2), "b": (1, 2), "c": (1,)}
    with pytest.raises(ValueError, match="no value of axis"):
        pairwise(axes, lambda a, x, b, y: {a, b} != {"b", "c"})


def test_recipes_are_one_list() -> None:
    assert tuple(DRAWS) == RECIPES


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sdpa/causal/mha", "expected sdpa/MASK"),
        ("sdpa/diagonal/mha/f32/b1h1q1k1d1", "unknown mask 'diagonal'"),
        ("sdpa/none/mha/f8/b1h1q1k1d1", "unknown dtype 'f8'"),
        ("sdpa/none/mha/f32/b1h1q1", "bad sizes"),
        ("sdpa/none/four/f32/b1h1q1k1d1", "bad heads"),
        ("sdpa/none/gqa2/f32/b1h3q1k1d1", "multiple"),
        ("sdpa/none/mha/f32/b1h1q1k1d1/loud", "unknown option 'loud'"),
        (
            "sdpa/none/mha/f32/b1h1q1k1d1/scale0.50",
            "expected 'sdpa/none/mha/f32/b1h1q1k1d1/scale0.5'",
        ),
        ("sdpa/none/gqa1/f32/b1h2q1k1d1", "not a canonical"),
    ],
)
def test_bad_ids_say_what_is_wrong(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"id|unknown|bad|multiple") as error:
        Case.parse(text)
    assert hint in str(error.value)


def test_problems_refuse_nonsense() -> None:
    sizes = Sizes(1, 2, 2, 3, 3, 4, 4)
    with pytest.raises(ValueError, match="unknown bias"):
        Problem(sizes, bias="loud")
    with pytest.raises(ValueError, match="softcap"):
        Problem(sizes, softcap=0.0)
    with pytest.raises(ValueError, match="negative"):
        Problem(Sizes(1, 2, 2, -3, 3, 4, 4))
    with pytest.raises(ValueError, match="unknown layout"):
        Case(Problem(sizes), DTYPES["f32"], layout="lbhd")


def bfloat16_by_bits(x: np.ndarray) -> np.ndarray:
    """Round-to-nearest-even of float32 values to bfloat16 on their bit patterns."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


@given(st.floats(allow_nan=False, allow_infinity=True, width=32))
@settings(max_examples=500, deadline=None)
def test_rounding_agrees_with_numpy_and_with_bits(x: float) -> None:
    with np.errstate(over="ignore"):
        assert round_to(x, DTYPES["f16"]) == np.float16(x)
        assert round_to(x, DTYPES["bf16"]) == bfloat16_by_bits(np.array([x]))[0]


@given(st.floats(allow_nan=False))
@settings(max_examples=500, deadline=None)
def test_rounding_to_float32_and_float64(x: float) -> None:
    with np.errstate(over="ignore"):
        assert round_to(x, DTYPES["f32"]) == np.float32(x)
    assert round_to(x, DTYPES["f64"]) == x


def test_rounding_keeps_nan_and_format_facts() -> None:
    assert np.isnan(round_to(np.nan, DTYPES["bf16"]))
    for name, info in (("f64", np.float64), ("f32", np.float32), ("f16", np.float16)):
        fmt, facts = DTYPES[name], np.finfo(info)
        assert fmt.unit_roundoff == facts.eps / 2
        assert fmt.max == facts.max
        assert fmt.smallest_normal == facts.smallest_normal
        assert fmt.smallest_subnormal == facts.smallest_subnormal
    assert dtype("bfloat16") is DTYPES["bf16"]
    assert DTYPES["bf16"].max == 3.3895313892515355e38


def by_loops(sizes: Sizes, rule) -> np.ndarray:  # type: ignore[no-untyped-def]
    out = np.zeros((sizes.B, sizes.H, sizes.Lq, sizes.Lk), bool)
    for b, h, q, k in np.ndindex(out.shape):
        out[b, h, q, k] = rule(b, h, q, k)
    return out


S = Sizes(B=3, H=2, Hkv=2, Lq=7, Lk=5, D=4, Dv=4)


@pytest.mark.parametrize(
    ("token", "rule"),
    [
        ("causal", lambda b, h, q, k: k <= q),
        ("causalbr", lambda b, h, q, k: k <= q - 2),
        ("win2.0", lambda b, h, q, k: q - 2 <= k <= q),
        ("win0.3", lambda b, h, q, k: q <= k <= q + 3),
        ("winx.1", lambda b, h, q, k: k <= q + 1),
        ("prefix3orcausal", lambda b, h, q, k: k < 3 or k <= q),
        ("causal+win1.x", lambda b, h, q, k: q - 1 <= k <= q),
    ],
)
def test_masks_mean_what_they_say(token: str, rule) -> None:  # type: ignore[no-untyped-def]
    mask = parse_mask(token)
    assert mask is not None
    assert mask.token == token
    assert np.array_equal(np.broadcast_to(mask.dense(S), (3, 2, 7, 5)), by_loops(S, rule))


def test_padding_has_different_lengths_and_both_sides() -> None:
    for seed in range(5):
        lengths = Padding().lengths(S, seed)
        assert lengths.min() >= 1
        assert lengths.max() <= S.Lk
        assert len(set(lengths)) > 1
        right = by_loops(S, lambda b, h, q, k, n=lengths: k < n[b])
        left = by_loops(S, lambda b, h, q, k, n=lengths: k >= S.Lk - n[b])
        assert (Padding().dense(S, seed) == right).all()
        assert (Padding(left=True).dense(S, seed) == left).all()
    assert Padding(empty=True).lengths(S)[-1] == 0
    assert Padding().dense(S).shape == (3, 1, 1, 5)


def test_segments_partition_queries_and_keys() -> None:
    mask = Segments(3)
    dense = mask.dense(S)
    for q in range(S.Lq):
        for k in range(S.Lk):
            assert dense[q, k] == (mask.ids(S.Lq)[q] == mask.ids(S.Lk)[k])
    assert set(mask.ids(20)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ("qk", (7, 5)),
        ("b11k", (3, 1, 1, 5)),
        ("b1qk", (3, 1, 7, 5)),
        ("1hqk", (1, 2, 7, 5)),
        ("bhqk", (3, 2, 7, 5)),
    ],
)
def test_boolean_masks_have_their_rank_and_no_empty_row(axes: str, shape: tuple) -> None:
    for seed in range(10):
        dense = Boolean(axes).dense(S, seed)
        assert dense.shape == shape
        assert dense.any(-1).all()
    assert not np.array_equal(Boolean(axes).dense(S, 0), Boolean(axes).dense(S, 1))
    assert 0.3 < Boolean("bhqk").dense(Sizes(4, 4, 4, 40, 40, 1, 1)).mean() < 0.9


def test_empty_masks_have_empty_rows_beside_others() -> None:
    for axes in ("qk", "bhqk", "bhq1"):
        rows = Boolean(axes, empty=True).dense(S).any(-1)
        assert not rows.all()
        assert rows.any()
    assert Boolean("bhq1", empty=True).dense(S).shape == (3, 2, 7, 1)


def test_a_block_of_a_mask_is_the_block_of_the_mask() -> None:
    rows = slice(2, 5)
    for token in catalogue.MASKS:
        mask = parse_mask(token)
        if mask is not None:
            whole = np.broadcast_to(mask.allowed(Index.of(S, 3)), (3, 2, 7, 5))
            block = np.broadcast_to(mask.allowed(Index.of(S, 3, rows)), (3, 2, 3, 5))
            assert np.array_equal(block, whole[:, :, rows]), token


def test_inputs_are_the_same_bytes_and_fit_their_dtype() -> None:
    for case in catalogue.cases("smoke"):
        one, again, other = draw(case), draw(case), draw(case, seed=1)
        assert np.array_equal(one.query, again.query)
        if one.query.size and case.recipe != "integers":
            assert not np.array_equal(one.query, other.query)
        for array in (one.query, one.key, one.value):
            assert np.array_equal(array, round_to(array, case.dtype))
            assert array.dtype == np.float64


def test_every_bias_is_what_its_name_says() -> None:
    for kind in BIASES[1:]:
        case = Case(Problem(S, bias=kind), DTYPES["f32"])
        bias = draw(case).bias
        assert bias is not None
        np.broadcast_shapes(bias.shape, (3, 2, 7, 5))
        assert np.isneginf(bias).any() == (kind == "inf")
        assert not np.isneginf(bias).all(-1).any()
    alibi = draw(Case(Problem(S, bias="alibi"), DTYPES["f32"])).bias
    assert alibi is not None
    assert alibi[0, 0, 3, 1] == -2 * 2.0**-4
    assert alibi[0, 1, 3, 3] == 0


def test_features_of_native_and_dense_masks() -> None:
    native = Case.parse("sdpa/win4.0/gqa2/f32/b2h6q17k23d8v12/scale0.5/cap2.0")
    assert native.needs == ("window", "scale", "softcap", "grouped-heads", "value-size")
    assert "mask" in Case.parse("sdpa/win4.0/mha/f32/b2h6q17k23d8/dense").needs
    assert Case.parse("sdpa/causal/mha/f32/b2h6q17k23d8").needs == ("causal",)
    assert Causal(bottom_right=True).token == "causalbr"
    assert Window(None, 3).token == "winx.3"

"""Masks: predicates mean what their tokens say, and a block of a mask is the block of its dense form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attention_conformance.suite.spec.masks import (
    Boolean,
    Causal,
    Padding,
    Segments,
    Tree,
    parse_mask,
)
from attention_conformance.suite.spec.operators import sdpa_cases
from attention_conformance.suite.spec.sizes import PairIndex, Sizes


def by_loops(sizes: Sizes, rule: Callable[[int, int, int, int], bool]) -> np.ndarray:
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
def test_masks_mean_what_they_say(token: str, rule: Callable[..., bool]) -> None:
    mask = parse_mask(token)
    assert mask is not None
    assert mask.token == token
    assert np.array_equal(np.broadcast_to(mask.dense(S), (3, 2, 7, 5)), by_loops(S, rule))


def test_trees_attend_their_paths_and_all_keys_before() -> None:
    tree = Tree((1, 1, 2, 1, 3))
    assert tree.parents(7).tolist() == [-1, 0, 0, 2, 1, 4, 5]
    assert tree.depths(7).tolist() == [0, 1, 1, 2, 2, 3, 4]
    behind = tree.dense(Sizes(B=1, H=1, Hkv=1, Lq=4, Lk=6, D=4, Dv=4)).astype(int)
    assert behind.tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]
    assert Tree((3,)).parents(4).tolist() == [-1, -1, -1, 0]
    for sizes in (S, Sizes(B=1, H=1, Hkv=1, Lq=5, Lk=9, D=4, Dv=4)):
        chain = Tree((1,)).dense(sizes)
        assert np.array_equal(chain, Causal(bottom_right=True).dense(sizes))
    assert parse_mask("tree11213") == tree
    assert tree.dense(S, rows=slice(3, 5)).tolist() == tree.dense(S)[3:5].tolist()


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
    for token in sdpa_cases.MASKS:
        mask = parse_mask(token)
        if mask is not None:
            whole = np.broadcast_to(mask.allowed(PairIndex.of(S, 3)), (3, 2, 7, 5))
            block = np.broadcast_to(mask.allowed(PairIndex.of(S, 3, rows)), (3, 2, 3, 5))
            assert np.array_equal(block, whole[:, :, rows]), token

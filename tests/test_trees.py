"""Promise: the order of a floating-point sum is revealed exactly, and known orders have their names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from suite.judge.elections import trees
from suite.judge.elections.trees import NoTree, Pair, Tree, named, reveal

HUGE = np.float32(2.0**100)

Sum = Callable[[np.ndarray], np.float32]


def sequential(x: np.ndarray) -> np.float32:
    total = x[0]
    for value in x[1:]:
        total = np.float32(total + value)
    return total


def neighbours(x: np.ndarray) -> np.float32:
    if len(x) == 1:
        return x[0]
    half = 2 ** ((len(x) - 1).bit_length() - 1)
    return np.float32(neighbours(x[:half]) + neighbours(x[half:]))


def halves(x: np.ndarray) -> np.float32:
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def exact(x: np.ndarray) -> np.float32:
    return np.float32(sum(map(int, x)))


def at_once(x: np.ndarray) -> np.float32:
    """Summands are cut to the last place of the largest one, and added exactly."""
    unit = float(np.abs(x).max()) * 2.0**-24
    return np.float32(sum(int(value / unit) for value in x.tolist()) * unit)


def blocks(
    x: np.ndarray, size: int, inner: Sum = sequential, outer: Sum = sequential
) -> np.float32:
    return outer(np.array([inner(x[i : i + size]) for i in range(0, len(x), size)]))


def lanes(
    x: np.ndarray, count: int, inner: Sum = sequential, outer: Sum = sequential
) -> np.float32:
    return outer(np.array([inner(x[i::count]) for i in range(count)]))


def in_turn(x: np.ndarray) -> np.float32:
    """Blocks of 12, 12 and 8."""
    ends = [k + end for k in range(0, len(x), 32) for end in (12, 24, 32)]
    parts = np.split(x, [end for end in ends if end < len(x)])
    return sequential(np.array([sequential(part) for part in parts]))


def split(x: np.ndarray) -> np.float32:
    """Three parts, in which all is lost where they meet."""
    parts = [sequential(part) for part in np.array_split(x, 3)]
    return np.float32(0) if np.abs(parts).max() > len(x) else sequential(np.array(parts))


def odd(x: np.ndarray) -> np.float32:
    """A chain that takes places in the order of a random permutation."""
    return sequential(x[np.random.default_rng(1).permutation(len(x))])


ORDERS: dict[str, tuple[Sum, str]] = {
    "sequential": (sequential, "one after the other"),
    "from-last": (lambda x: sequential(x[::-1]), "one after the other, from the last"),
    "pairwise": (neighbours, "pairwise"),
    "halves": (halves, "pairwise, the second half to the first"),
    "at-once": (at_once, "all at once"),
    "exact": (exact, "without loss: a huge value and 1 are both kept"),
    "blocks-32": (lambda x: blocks(x, 32), "in blocks of 32, each one after the other"),
    "blocks-24": (lambda x: blocks(x, 24), "in blocks of 24, each one after the other"),
    "blocks-4": (
        lambda x: blocks(x, 4, halves),
        "in blocks of 4, each pairwise, the second half to the first",
    ),
    "blocks-16": (
        lambda x: blocks(x, 16, at_once, neighbours),
        "in blocks of 16, each all at once, the blocks pairwise",
    ),
    "blocks-8": (
        lambda x: blocks(x, 8, neighbours, lambda y: sequential(y[::-1])),
        "in blocks of 8, each pairwise, the blocks one after the other, from the last",
    ),
    "blocks-64": (
        lambda x: blocks(x, 64, lambda y: blocks(y, 16), neighbours),
        "in blocks of 64, each in blocks of 16, each one after the other",
    ),
    "blocks-12-12-8": (in_turn, "in blocks of 12, 12, 8 in turn, each one after the other"),
    "split-3": (split, "split in 3 parts, each one after the other"),
    "lanes-8": (
        lambda x: lanes(x, 8, outer=neighbours),
        "in 8 lanes, each one after the other, the lanes pairwise",
    ),
    "lanes-2": (lambda x: lanes(x, 2), "in 2 lanes, each one after the other"),
    "unlike-any-known-tree": (odd, "as a tree unlike any known one"),
}  # fmt: skip
"""Sums by the name of their order, and the order in words."""


def reader(n: int, add: Sum) -> Callable[[list[Pair]], np.ndarray]:
    """How many values are added up when two have met, read from what is lost."""

    def met(pairs: list[Pair]) -> np.ndarray:
        counts = []
        for i, j in pairs:
            x = np.ones(n, np.float32)
            x[i], x[j] = HUGE, -HUGE
            counts.append(n - int(add(x)))
        return np.array(counts)

    return met


@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_are_revealed_and_named(name: str, n: int) -> None:
    add, text = ORDERS[name]
    met = reader(n, add)
    tree = reveal(n, met)
    if n > 64 or name != "blocks-64":
        assert named(tree) == trees.Name(name, text)
    if tree is not None:
        pairs = [(i, j) for j in range(n) for i in range(j)]
        assert tree.met(pairs).tolist() == met(pairs).tolist()


@pytest.mark.parametrize("n", [2, 3, 5, 31, 100])
@pytest.mark.parametrize("name", ["sequential", "from-last", "pairwise", "at-once"])
def test_orders_of_any_number_of_values_are_revealed(name: str, n: int) -> None:
    tree = reveal(n, reader(n, ORDERS[name][0]))
    assert tree is not None
    assert tree.same(trees.KNOWN[name][0](n))


def test_sums_that_are_no_tree_are_told() -> None:
    """The order hangs on the values: every pair is met in a sum of another size."""
    random = np.random.default_rng(0)

    def met(pairs: list[Pair]) -> np.ndarray:
        return random.integers(2, 65, len(pairs))

    with pytest.raises(NoTree):
        reveal(64, met)


def test_a_tree_that_takes_too_many_pairs_is_given_up() -> None:
    """A chain from both ends to the middle, of which each pair tells one place."""

    def outside(x: np.ndarray) -> np.float32:
        n = len(x)
        order = [place for k in range(n // 2) for place in (k, n - 1 - k)]
        return sequential(x[order[::-1]])

    with pytest.raises(NoTree, match="pairs for each summand"):
        reveal(256, reader(256, outside))


def test_a_known_tree_is_made_of_partial_sums() -> None:
    for make, _ in trees.KNOWN.values():
        tree = make(16)
        assert isinstance(tree, Tree)
        assert tree.sums.all(1).sum() == 1
        assert tree.sums.sum(1).min() >= 2

"""Orders of floating-point sums as trees: how an order is revealed, and what it is called.

The summands are M, -M and otherwise 1, with M so large that 1 is lost beside M: the sum counts the values
that are added after M and -M have met. The counts of pairs of places give the tree of partial sums (Xie
et al., FPRev: Revealing the Order of Floating-Point Summation, USENIX ATC 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise

import numpy as np

Pair = tuple[int, int]

WITHOUT_LOSS = "exact"
"""The name of sums that keep 1 beside M: no order is seen."""

UNKNOWN = "unlike-any-known-tree"

PAIRS = 32
"""Pairs of places that are asked for each summand, at most. Sequential sums take 1, pairwise sums
log2(n) / 2."""

LANES = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of lanes that are recognised."""

IN_TURN = 4
"""Different sizes of blocks, at most, that repeat in turn."""


FIRST, LAST, NEIGHBOURS = 0, -1, 1
"""Which places of a set are compared: the first with all others, the last where the first told nothing,
then each with the next."""


class NoTree(Exception):
    """Counts that no tree of partial sums gives: the order hangs on the place, or on the call."""


@dataclass(frozen=True, eq=False)
class Tree:
    """The partial sums of n summands, the whole sum included, as a boolean array (sums, n)."""

    sums: np.ndarray

    @property
    def n(self) -> int:
        """The number of summands."""
        return self.sums.shape[1]

    def same(self, other: Tree) -> bool:
        """True if both trees have the same partial sums."""
        if self.sums.shape != other.sums.shape:
            return False
        mine, others = ({row.tobytes() for row in tree.sums} for tree in (self, other))
        return mine == others

    def met(self, pairs: Sequence[Pair]) -> np.ndarray:
        """For every pair of places the number of summands of the first partial sum that has both."""
        sizes = self.sums.sum(1)
        both = (sizes[self.sums[:, i] & self.sums[:, j]].min() for i, j in pairs)
        return np.fromiter(both, int, len(pairs))

    def parts(self, classes: Sequence[np.ndarray]) -> tuple[list[Tree], Tree] | None:
        """The trees of disjoint classes (m, places) that together have all places, and the tree of the
        classes as summands; None if some class of two places or more is no partial sum."""
        of = np.empty(self.n, int)
        for number, places in enumerate(classes):
            of[places] = number
        least = np.where(self.sums, of, self.n).min(1)
        inside = least == np.where(self.sums, of, -1).max(1)
        whole = np.bincount(least[inside & (self.sums.sum(1) == np.bincount(of)[least])])
        if any(len(p) > 1 and not whole[k : k + 1].any() for k, p in enumerate(classes)):
            return None
        inner = [
            Tree(self.sums[inside & (least == k)][:, places]) for k, places in enumerate(classes)
        ]
        return inner, Tree(self.sums[~inside][:, [places[0] for places in classes]])


@dataclass(frozen=True)
class Name:
    """The short name of an order, and the order in words."""

    name: str
    text: str


def sequential(n: int) -> Tree:
    return Tree(np.tri(n, dtype=bool)[1:])


def from_last(n: int) -> Tree:
    return Tree(np.tri(n, dtype=bool)[1:, ::-1])


def at_once(n: int) -> Tree:
    return Tree(np.ones((1, n), bool))


def neighbours(n: int) -> Tree:
    """Pairs of neighbours, then pairs of pairs."""
    widths = [2**k for k in range(1, (n - 1).bit_length() + 1)]
    places = np.arange(n)
    rows = {
        bytes((start <= places) & (places < start + width))
        for width in widths
        for start in range(0, n - width // 2, width)
    }
    return Tree(np.array([np.frombuffer(row, bool) for row in rows]))


def halves(n: int) -> Tree:
    """The second half is added to the first, then the second quarter: n is a power of two."""
    order = np.argsort([int(f"{i:0{(n - 1).bit_length()}b}"[::-1], 2) for i in range(n)])
    return Tree(neighbours(n).sums[:, np.argsort(order)])


KNOWN: dict[str, tuple[Callable[[int], Tree], str]] = {
    "sequential": (sequential, "one after the other"),
    "from-last": (from_last, "one after the other, from the last"),
    "pairwise": (neighbours, "pairwise"),
    "halves": (halves, "pairwise, the second half to the first"),
    "at-once": (at_once, "all at once"),
}
"""Orders without blocks: how each is made, and what it is called."""


def reveal(n: int, met: Callable[[list[Pair]], np.ndarray]) -> Tree | None:
    """The tree of a sum of n >= 2 values. `met(pairs)` returns for every pair of places how many values
    are added up when both have met, n less the count. None if no order is seen (`WITHOUT_LOSS`).

    Raises NoTree if there is no such tree, or if it takes more than `PAIRS` pairs for each summand.
    """
    sums: set[bytes] = set()
    asked = 0
    # Places that met others in one sum of `most` values: each two meet in a smaller sum, or in that one.
    open_sets = [(np.arange(n), n + 1, FIRST)]
    while open_sets:
        asking = [_pairs(places, pivot) for places, _, pivot in open_sets]
        pairs = [pair for of in asking for pair in of]
        asked += len(pairs)
        if asked > PAIRS * n:
            raise NoTree(f"takes more than {PAIRS} pairs for each summand")
        sizes = np.split(met(pairs), np.cumsum([len(of) for of in asking])[:-1])
        if not sums and n > 2 and (sizes[0] == 2).all():
            return None
        found = []
        for (places, most, pivot), size in zip(open_sets, sizes, strict=True):
            if pivot == NEIGHBOURS:
                # All at once, if a check of other pairs does not say otherwise.
                found += [] if (size == most).all() else [(places, most, FIRST)]
                continue
            others = np.delete(places, pivot)
            groups = np.unique(size)
            for value in groups:
                inside = np.zeros(n, bool)
                inside[[places[pivot], *others[size <= value]]] = True
                if value > most or (value < most and inside.sum() != value):
                    raise NoTree("counts are those of no tree")
                if value < most:
                    sums.add(inside.tobytes())
                group = others[size == value]
                told = len(groups) > 1
                after = FIRST if told else LAST if pivot == FIRST else NEIGHBOURS
                found += [(group, int(value), after)] if len(group) > 1 else []
        open_sets = found
    return Tree(np.array([np.frombuffer(row, bool) for row in sums]))


def _pairs(places: np.ndarray, pivot: int) -> list[Pair]:
    """The first or the last place with every other one, or each place with the next."""
    if pivot == NEIGHBOURS:
        return [(int(i), int(j)) for i, j in pairwise(places)]
    one = int(places[pivot])
    return [(min(one, j), max(one, j)) for j in np.delete(places, pivot).tolist()]


def named(tree: Tree | None) -> Name:
    """The name of an order; None is that of sums without loss."""
    if tree is None:
        return Name(WITHOUT_LOSS, "without loss: a huge value and 1 are both kept")
    return next(_names(tree), Name(UNKNOWN, "as a tree unlike any known one"))


def _names(tree: Tree) -> Iterator[Name]:
    known = _known(tree)
    if known:
        yield Name(known, KNOWN[known][1])
        return
    for blocks in _blocks(tree):
        sizes = [*map(str, _period([len(places) for places in blocks]))]
        text = f"in blocks of {', '.join(sizes)}{' in turn' if len(sizes) > 1 else ''}"
        yield from _of_parts(tree, blocks, f"blocks-{'-'.join(sizes)}", text, "blocks")
    for lanes in LANES:
        if lanes <= tree.n // 2:
            classes = [np.arange(lane, tree.n, lanes) for lane in range(lanes)]
            yield from _of_parts(tree, classes, f"lanes-{lanes}", f"in {lanes} lanes", "lanes")


def _of_parts(
    tree: Tree, classes: Sequence[np.ndarray], name: str, text: str, word: str
) -> Iterator[Name]:
    """The name of an order in parts, if the parts are added in a known order, each in the same."""
    parts = tree.parts(classes)
    outer = "" if parts is None else _known(parts[1])
    if parts is None or not outer:
        return
    first = named(parts[0][0])
    alike = all(p.same(parts[0][0]) for p in parts[0] if p.n == len(classes[0]))
    if first.name == UNKNOWN or not alike:
        return
    if outer == "at-once" and word == "blocks" and len(classes) > 2:
        yield Name(f"split-{len(classes)}", f"split in {len(classes)} parts, each {first.text}")
    else:
        joined = "" if outer == "sequential" else f", the {word} {KNOWN[outer][1]}"
        yield Name(name, f"{text}, each {first.text}{joined}")


def _known(tree: Tree) -> str:
    """The name in `KNOWN`, or ""."""
    if tree.n < 2:
        return "sequential"
    return next((name for name, (make, _) in KNOWN.items() if tree.same(make(tree.n))), "")


def _blocks(tree: Tree) -> Iterator[list[np.ndarray]]:
    """Ways to part the places into blocks that are partial sums: those that are added one after the
    other, then equal ones, the smallest first."""
    starts, stops = tree.sums.argmax(1), tree.n - tree.sums[:, ::-1].argmax(1)
    whole = tree.sums.sum(1) == stops - starts
    ends = {(int(a), int(b)) for a, b in zip(starts[whole], stops[whole], strict=True)}
    ends |= {(i, i + 1) for i in range(tree.n)}
    cuts = [tree.n]
    while start := next((a for a, b in ends if b == cuts[0] > a + 1 and (0, a) in ends), 0):
        cuts.insert(0, start)
    sizes = np.diff([0, *cuts]).tolist()
    if len(_period(sizes)) < min(len(sizes), IN_TURN + 1):  # a chain
        yield [np.arange(stop - size, stop) for stop, size in zip(cuts, sizes, strict=True)]
    for size in sorted(stop for start, stop in ends if start == 0 and 1 < stop < tree.n):
        even = list(pairwise([*range(0, tree.n, size), tree.n]))
        if ends.issuperset(even):
            yield [np.arange(start, stop) for start, stop in even]
    cuts = [0]
    while cuts[-1] < tree.n:
        cuts.append(max(b for a, b in ends if a == cuts[-1] and b - a < tree.n))
    if np.ptp(np.diff(cuts)) == 1:  # as even as can be
        yield [np.arange(start, stop) for start, stop in pairwise(cuts)]


def _period(sizes: list[int]) -> list[int]:
    """The shortest list that repeats to `sizes`, whose last size may be smaller."""
    for length in range(1, len(sizes)):
        repeated = list(islice(cycle(sizes[:length]), len(sizes)))
        if repeated[:-1] == sizes[:-1] and sizes[-1] <= repeated[-1]:
            return sizes[:length]
    return sizes

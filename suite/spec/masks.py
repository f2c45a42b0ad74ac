"""Masks as index predicates: which (query, key) pairs attend.

A mask is a frozen value with a predicate over broadcastable index arrays; True means *attend*. Masks
compose with `&` and `|`, and have a token in case ids. `dense` evaluates a block of rows, so a mask
over 32768 x 32768 pairs need not be stored.

Source of predicates over `(b, h, q, k)`: attention-gym and torch's flex_attention.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from operator import and_
from typing import ClassVar

import numpy as np

from attention_conformance.suite.spec.sizes import PairIndex, Sizes, uniform


class Mask:
    """Base class of masks. Subclasses are frozen dataclasses with `token` and `allowed`."""

    @property
    def token(self) -> str:
        """The mask in a case id; `parse_mask` reads it."""
        raise NotImplementedError

    def allowed(self, ix: PairIndex) -> np.ndarray:
        """Returns a boolean array, broadcastable to (B, H, rows, Lk): True where the query attends the
        key."""
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The conjuncts: the masks that must all allow a pair."""
        return (self,)

    @property
    def rank(self) -> int:
        """Rank of the dense mask in calls: 2 for (Lq, Lk), else 4."""
        return 4

    def dense(self, sizes: Sizes, seed: int = 0, rows: slice = slice(None)) -> np.ndarray:
        """Returns the evaluated mask, boolean, of the rank `rank`. Axes that the mask does not depend on
        have size 1."""
        block = np.asarray(self.allowed(PairIndex.of(sizes, seed, rows)))
        return block.reshape(block.shape[2:]) if self.rank == 2 else block

    def __and__(self, other: Mask) -> Mask:
        return And(self.parts + other.parts)

    def __or__(self, other: Mask) -> Mask:
        return Or(_alternatives(self) + _alternatives(other))


@dataclass(frozen=True)
class Joined(Mask):
    """Several masks, joined by `word` in the token, and by `join`, a function of two boolean arrays."""

    masks: tuple[Mask, ...]
    word: ClassVar[str]
    join: ClassVar[Callable[..., np.ndarray]]

    @property
    def token(self) -> str:
        return self.word.join(m.token for m in self.masks)

    @property
    def rank(self) -> int:
        return max(m.rank for m in self.masks)

    def allowed(self, ix: PairIndex) -> np.ndarray:
        return reduce(type(self).join, (m.allowed(ix) for m in self.masks))


class And(Joined):
    """Every part must allow the pair."""

    word = "+"
    join = np.logical_and

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.masks


class Or(Joined):
    """One of the masks must allow the pair."""

    word = "or"
    join = np.logical_or


def _alternatives(mask: Mask) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, Or) else (mask,)


@dataclass(frozen=True)
class Causal(Mask):
    """Keys up to the position of the query.

    Top-left aligns the first query with the first key, bottom-right the last query with the last key.
    With bottom-right and Lq > Lk the first Lq - Lk rows are fully masked.
    """

    bottom_right: bool = False
    rank = 2

    @property
    def token(self) -> str:
        return "causalbr" if self.bottom_right else "causal"

    def allowed(self, ix: PairIndex) -> np.ndarray:
        offset = ix.sizes.Lk - ix.sizes.Lq if self.bottom_right else 0
        return ix.k <= ix.q + offset


@dataclass(frozen=True)
class Window(Mask):
    """Sliding window: from `left` keys before the query to `right` keys after; None is unbounded.

    The window (w, 0) has w + 1 keys, because it includes the position of the query, as in
    flash-attention and `jax.nn.dot_product_attention`.
    """

    left: int | None
    right: int | None
    rank = 2

    @property
    def token(self) -> str:
        def side(n: int | None) -> str:
            return "x" if n is None else str(n)

        return f"win{side(self.left)}.{side(self.right)}"

    def allowed(self, ix: PairIndex) -> np.ndarray:
        out = np.ones(np.broadcast_shapes(ix.q.shape, ix.k.shape), bool)
        if self.left is not None:
            out &= ix.k >= ix.q - self.left
        if self.right is not None:
            out &= ix.k <= ix.q + self.right
        return out


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query attends the first `length` keys. With causal: a prefix LM."""

    length: int
    rank = 2

    @property
    def token(self) -> str:
        return f"prefix{self.length}"

    def allowed(self, ix: PairIndex) -> np.ndarray:
        return (ix.k < self.length) & (ix.q >= 0)


@dataclass(frozen=True)
class Padding(Mask):
    """Key lengths per sample: sample b attends its first (`left`: last) lengths[b] keys.

    Lengths are between 1 and Lk and differ between samples. With `empty` the last sample has length 0,
    so its rows are fully masked.
    """

    left: bool = False
    empty: bool = False

    @property
    def token(self) -> str:
        return "pad" + ("left" if self.left else "") + ("empty" if self.empty else "")

    def lengths(self, sizes: Sizes, seed: int = 0) -> np.ndarray:
        """Returns the number of valid keys per sample, int64 (B,)."""
        if sizes.Lk == 0:
            return np.zeros(sizes.B, np.int64)
        samples = np.arange(sizes.B)
        start = uniform(seed + 101, np.zeros(1, np.int64))[0]
        # A golden-ratio sequence: lengths spread over 1..Lk and differ between samples.
        fraction = (start + samples * 0.618033988749895) % 1.0
        lengths = 1 + np.floor(fraction * sizes.Lk).astype(np.int64)
        if self.empty and sizes.B:
            lengths[-1] = 0
        return lengths

    def allowed(self, ix: PairIndex) -> np.ndarray:
        lengths = self.lengths(ix.sizes, ix.seed)[ix.b]
        return ix.k >= ix.sizes.Lk - lengths if self.left else ix.k < lengths


@dataclass(frozen=True)
class Segments(Mask):
    """`count` packed segments: a query attends the keys of its own segment.

    Segment s ends at the fraction ((s + 1) / count) ** 1.3 of the queries and of the keys. So segments
    have different sizes, and with many queries a segment may have no key.
    """

    count: int
    rank = 2

    @property
    def token(self) -> str:
        return f"seg{self.count}"

    def ids(self, length: int) -> np.ndarray:
        """Returns the segment id of every position, int64 (length,)."""
        ends = np.floor((np.arange(1, self.count + 1) / self.count) ** 1.3 * length)
        return np.searchsorted(ends, np.arange(length), side="right")

    def allowed(self, ix: PairIndex) -> np.ndarray:
        return self.ids(ix.sizes.Lq)[ix.q] == self.ids(ix.sizes.Lk)[ix.k]


@dataclass(frozen=True)
class Tree(Mask):
    """A tree of drafted tokens: a node attends its ancestors, itself, and all keys before the tree.

    The last Lq keys are the nodes. Node n hangs on node n - steps[n]; a negative number is the last key
    before the tree. The steps repeat: `tree1` is a chain, and equals causal bottom-right. With Lq > Lk
    the first Lq - Lk nodes have no key, so their rows may be fully masked.

    Source: Miao et al., SpecInfer, ASPLOS 2024, section 4.
    """

    steps: tuple[int, ...]
    rank = 2

    @property
    def token(self) -> str:
        return f"tree{''.join(map(str, self.steps))}"

    def parents(self, count: int) -> np.ndarray:
        """Returns the parent of each node, int64 (count,); -1 for the last key before the tree."""
        nodes = np.arange(count)
        return np.maximum(nodes - np.resize(self.steps, count), -1)

    def branching(self, count: int) -> np.ndarray:
        """Returns the numbers of the nodes that have a sibling."""
        parents = self.parents(count)
        return np.flatnonzero((parents[:, None] == parents).sum(1) > 1)

    def depths(self, count: int) -> np.ndarray:
        """Returns the number of ancestors of each node, int64 (count,)."""
        return self.paths(count).sum(1) - 1

    def paths(self, count: int) -> np.ndarray:
        """Returns, boolean (count, count), True where the column is the row's node or its ancestor."""
        return _paths(tuple(self.parents(count).tolist()))

    def allowed(self, ix: PairIndex) -> np.ndarray:
        node = ix.k - (ix.sizes.Lk - ix.sizes.Lq)
        return (node < 0) | self.paths(ix.sizes.Lq)[ix.q, np.maximum(node, 0)]


@lru_cache(maxsize=64)
def _paths(parents: tuple[int, ...]) -> np.ndarray:
    """Returns `Tree.paths` for the parents of the nodes (-1: none), as a read-only array."""
    paths = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            paths[node] |= paths[parent]
    paths.flags.writeable = False
    return paths


@dataclass(frozen=True)
class Boolean(Mask):
    """An arbitrary boolean mask of one broadcast rank.

    `axes` names the shape of the dense mask: "qk" (Lq, Lk), "b11k" (B, 1, 1, Lk), "b1qk", "1hqk",
    "bhqk" and "bhq1" (a row attends every key or none). About 40 % of the pairs are hidden, and every
    row has at least one key. With `empty` the first row and about a quarter of the other rows are fully
    masked. The first of several samples of "b11k" attends all keys, as the longest one of a padded batch.
    """

    axes: str
    empty: bool = False

    AXES = ("qk", "b11k", "b1qk", "1hqk", "bhqk", "bhq1")

    @property
    def token(self) -> str:
        return f"bool.{self.axes}" + (".empty" if self.empty else "")

    @property
    def rank(self) -> int:
        return 2 if self.axes == "qk" else 4

    def allowed(self, ix: PairIndex) -> np.ndarray:
        zero = np.zeros((1, 1, 1, 1), np.int64)
        b, h, q, k = (
            index if name in self.axes else zero
            for name, index in zip("bhqk", (ix.b, ix.h, ix.q, ix.k), strict=True)
        )
        row_open = np.ones((1, 1, 1, 1), bool)
        if self.empty:
            first = (b == 0) & (h == 0) & (q == 0)
            row_open = (uniform(ix.seed + 211, b, h, q) >= 0.25) & ~first
        if self.axes == "bhq1":
            return row_open & np.ones(np.broadcast_shapes(b.shape, h.shape, q.shape), bool)
        drawn = uniform(ix.seed + 307, b, h, q, k) < 0.6
        if self.axes == "b11k" and ix.sizes.B > 1:
            drawn |= b == 0
        anchor = np.floor(uniform(ix.seed + 401, b, h, q) * ix.sizes.Lk)
        return row_open & (drawn | (k == anchor))


_ATOMS: tuple[tuple[str, Callable[[re.Match[str]], Mask]], ...] = (
    (r"causalbr", lambda m: Causal(bottom_right=True)),
    (r"causal", lambda m: Causal()),
    (
        r"win(x|\d+)\.(x|\d+)",
        lambda m: Window(*(None if s == "x" else int(s) for s in m.groups())),
    ),
    (r"prefix(\d+)", lambda m: Prefix(int(m[1]))),
    (r"pad(left)?(empty)?", lambda m: Padding(left=bool(m[1]), empty=bool(m[2]))),
    (r"seg(\d+)", lambda m: Segments(int(m[1]))),
    (r"tree([1-9]+)", lambda m: Tree(tuple(map(int, m[1])))),
    (
        r"bool\.(" + "|".join(Boolean.AXES) + r")(\.empty)?",
        lambda m: Boolean(m[1], empty=bool(m[2])),
    ),
)


@cache  # thousands of ids share a few hundred tokens
def parse_mask(token: str) -> Mask | None:
    """Returns the mask of a token; None for "none". Raises ValueError for an unknown token.

    "or" binds tighter than "+": prefix3orcausal+pad is (prefix3 or causal) and pad.
    """
    if token == "none":
        return None
    masks: list[Mask] = []
    for part in token.split("+"):
        atoms = tuple(_parse_atom(atom, token) for atom in part.split("or"))
        masks.append(atoms[0] if len(atoms) == 1 else Or(atoms))
    return masks[0] if len(masks) == 1 else And(tuple(masks))


def _parse_atom(atom: str, token: str) -> Mask:
    for pattern, build in _ATOMS:
        match = re.fullmatch(pattern, atom)
        if match:
            return build(match)
    raise ValueError(
        f"unknown mask {atom!r} in {token!r}; expected none, causal, causalbr, winL.R, "
        "prefixN, pad, padleft, padempty, segN, treeN or "
        f"bool.AXES[.empty] with AXES one of {', '.join(Boolean.AXES)}, joined by + and or"
    )


def is_causal(mask: Mask | None) -> bool:
    """Returns True if a mask has a causal part."""
    return mask is not None and any(isinstance(part, Causal) for part in mask.parts)


def without_right_sides(mask: Mask) -> Mask:
    """Returns the mask with its windows unbounded to the right."""
    parts = (replace(p, right=None) if isinstance(p, Window) else p for p in mask.parts)
    return reduce(and_, parts)


def part_features(mask: Mask, form: str) -> list[str]:
    """Returns the feature that each part of a mask needs, in the order of `mask.parts`. `form`:
    `Case.form`. The form "flag" passes any alignment of a causal mask as a flag, "native" only top-left.
    In other forms every part needs "mask"."""
    if form == "flag":
        return ["causal" if isinstance(part, Causal) else _feature(part) for part in mask.parts]
    return [_feature(part) if form == "native" else "mask" for part in mask.parts]


def _feature(mask: Mask) -> str:
    """Returns the feature that one part of a mask needs in the form "native"."""
    if isinstance(mask, Causal) and not mask.bottom_right:
        return "causal"
    if isinstance(mask, Window):
        return "window"
    if isinstance(mask, Padding) and not mask.left:
        return "padding"
    return "mask"

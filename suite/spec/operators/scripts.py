"""Scripts of attention with a cache: chunks and operations, and what they leave in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from suite.spec.case import Case

ACTION = r"(?:\d+|back\d+|reset|pick\d+)"

SPARE = 2
"""Slots beyond the largest number of tokens, if a case has no capacity."""


@dataclass(frozen=True)
class Chunk:
    """Tokens that arrive, and their queries; None for tokens whose rows nobody asks."""

    tokens: slice
    queries: slice | None


@dataclass(frozen=True)
class Crop:
    """The last `count` tokens leave the cache."""

    count: int


@dataclass(frozen=True)
class Reset:
    """All tokens leave the cache."""


@dataclass(frozen=True)
class Pick:
    """Sample n goes on with the history of sample `samples[n]`."""

    samples: tuple[int, ...]


Action = Chunk | Crop | Reset | Pick


@dataclass(frozen=True)
class View:
    """What one chunk sees.

    - `rows`: its rows of the output.
    - `samples`, `places` (B, n): for each sample of the chunk, the tokens in the cache in the order of
      their positions, the chunk's own ones included: token `places[b, j]` of sample `samples[b, j]`.
    - `mask` (B, rows, n): True attends.
    """

    rows: slice
    samples: np.ndarray
    places: np.ndarray
    mask: np.ndarray

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The keys or values (B, Hkv, n, .) that the chunk sees."""
        return np.moveaxis(array[self.samples, :, self.places], 1, 2)


def actions(case: Case) -> Iterator[Action]:
    """The script of a case. Tokens that are in the cache before the script begins are a first chunk."""
    before, at = case.sizes.Lk - case.sizes.Lq, 0
    if before:
        yield Chunk(slice(0, before), None)
    for word in case.option("script") or ():
        if word == "reset":
            yield Reset()
        elif word.startswith("back"):
            yield Crop(int(word[4:]))
        elif word.startswith("pick"):
            yield Pick(tuple(map(int, word[4:])))
        else:
            queries = slice(at, at + int(word))
            yield Chunk(slice(before + at, before + queries.stop), queries)
            at = queries.stop


def played(case: Case) -> Iterator[tuple[Action, np.ndarray, np.ndarray, np.ndarray]]:
    """Each action with the cache after it: samples and places (B, n) of its tokens, as in `View`, and the
    padding (B,) of its samples."""
    samples = places = np.zeros((case.sizes.B, 0), int)
    padding = np.array(case.option("padding") or (0,) * case.sizes.B)
    own = np.arange(case.sizes.B)[:, None]
    for action in actions(case):
        match action:
            case Chunk(tokens=tokens):
                new = np.arange(tokens.start, tokens.stop)[None] + 0 * own
                samples = np.concatenate([samples, own + 0 * new], 1)
                places = np.concatenate([places, new], 1)
            case Crop(count=count):
                kept = places.shape[1] - count
                samples, places = samples[:, :kept], places[:, :kept]
            case Reset():
                samples, places = samples[:, :0], places[:, :0]
            case Pick(samples=order):
                samples, places = samples[list(order)], places[list(order)]
                padding = padding[list(order)]
        yield action, samples, places, padding


def views(case: Case) -> Iterator[View]:
    """What each chunk sees, in the order of the script."""
    for action, samples, places, padding in played(case):
        if isinstance(action, Chunk) and action.queries is not None:
            count = action.queries.stop - action.queries.start
            of = places.shape[1]
            mask = allowed(case, np.arange(of - count, of), np.arange(of), padding)
            yield View(action.queries, samples, places, mask)


def allowed(case: Case, rows: np.ndarray, keys: np.ndarray, padding: np.ndarray) -> np.ndarray:
    """The mask (B, rows, keys) of positions, True attends. Negative positions of keys are no keys."""
    behind, left = rows[:, None] - keys, case.option("left")
    shown = (behind >= 0) & (keys >= 0)
    if left is not None:
        shown &= behind <= left
    return shown & (keys >= padding[:, None])[:, None]


def held(case: Case) -> int:
    """The largest number of tokens of a sample in the cache, as if nothing left the window."""
    return max(places.shape[1] for _, _, places, _ in played(case))


def capacity(case: Case) -> int:
    """The number of slots of the cache."""
    given: int | None = case.option("capacity")
    return held(case) + SPARE if given is None else given


def is_ring(case: Case) -> bool:
    """True if there are fewer slots than tokens."""
    return capacity(case) < held(case)


def attended(case: Case) -> np.ndarray:
    """The tokens that each row attends, boolean (B, Lq, B, Lk): row (b, q) and token (c, k)."""
    s = case.sizes
    seen = np.zeros((s.B, s.Lq, s.B, s.Lk), bool)
    for view in views(case):
        sample, row, key = np.nonzero(view.mask)
        of = view.samples[sample, key], view.places[sample, key]
        seen[sample, view.rows.start + row, of[0], of[1]] = True
    return seen

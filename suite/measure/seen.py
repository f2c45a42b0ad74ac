"""Answers of timed calls: a digest of each that is looked at, and of a few different ones their values.

A kernel may compute something else while the clock runs, or be wrong in a few of its calls. So the last
answer of every sample is taken here, beside the clock, and judged when there is time.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from backends.protocol import Backend

T = TypeVar("T")

KEPT = 16
"""Different answers whose values are kept; of more, as where sums have no order, a random few."""


class Seen(Generic[T]):
    """The answers that were looked at: how often each came, and the values of those that are kept."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[int] = Counter()
        self._kept: dict[int, T] = {}
        self._random = random.Random(seed)

    def take(self, digest: int, read: Callable[[], T]) -> None:
        """Count an answer; `read` gives its values, which are read where they are kept."""
        self.counts[digest] += 1
        if self.counts[digest] > 1:
            return
        if len(self._kept) == KEPT:
            # Each of n different answers is kept with the same probability (Vitter 1985, algorithm R).
            place = self._random.randrange(len(self.counts))
            if place >= KEPT:
                return
            del self._kept[list(self._kept)[place]]
        self._kept[digest] = read()

    def kept(self) -> list[tuple[int, T]]:
        """How often an answer came, and its values; of each that is kept."""
        return [(self.counts[digest], values) for digest, values in self._kept.items()]


def digest_of(out: Any, backend: Backend) -> int:
    """A checksum of all arrays of an output."""
    checksum = 0
    for array in arrays_of(out, backend):
        checksum = zlib.crc32(np.ascontiguousarray(backend.to_numpy(array)).tobytes(), checksum)
    return checksum


def arrays_of(out: Any, backend: Backend) -> Iterator[Any]:
    """The arrays of an output: itself, or those of a pair and of a dictionary."""
    if isinstance(out, Mapping):
        out = list(out.values())
    if isinstance(out, Sequence):
        for part in out:
            yield from arrays_of(part, backend)
    elif backend.is_array(out):
        yield out

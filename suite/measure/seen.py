"""Recorded answers of timed calls: digests of all, and the values of a few different answers.

A kernel may return wrong values only while the clock runs, or only in some calls. So the last answer of
every sample is recorded outside the timing, and judged later. Of the attacks in
`tests/exploits/on_clock.py`, `hides_behind_noise` needs the values of several answers.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.dtypes import DTYPES

T = TypeVar("T")

MOST_STORED = 16
"""Greatest number of different answers whose values are kept. Of more answers a random sample is kept."""


class RecordedAnswers(Generic[T]):
    """The recorded answers to one set of inputs. `counts`: numbers of answers by digest. The values of up
    to `MOST_STORED` different answers are stored."""

    def __init__(self, seed: int) -> None:
        self.counts: Counter[int] = Counter()
        self._stored: dict[int, T] = {}
        self._random = random.Random(seed)

    def add(self, digest: int, read: Callable[[], T]) -> None:
        """Count an answer. `read()` returns its values, and is called only if they are stored."""
        self.counts[digest] += 1
        if self.counts[digest] > 1:
            return
        if len(self._stored) == MOST_STORED:
            # Each of n different answers is kept with the same probability (Vitter 1985, algorithm R).
            index = self._random.randrange(len(self.counts))
            if index >= MOST_STORED:
                return
            del self._stored[list(self._stored)[index]]
        self._stored[digest] = read()

    def answers(self) -> list[tuple[int, T]]:
        """Returns pairs of the count and the values of each stored answer."""
        return [(self.counts[digest], values) for digest, values in self._stored.items()]


def digest_of(out: Any, backend: Backend) -> int:
    """Returns a checksum (CRC-32) of the values of all arrays of an output."""
    checksum = 0
    for array in arrays_of(out, backend):
        checksum = zlib.crc32(np.ascontiguousarray(backend.to_numpy(array)).tobytes(), checksum)
    return checksum


def arrays_of(out: Any, backend: Backend) -> Iterator[Any]:
    """Yields the arrays of an output: an array, or nested sequences and dictionaries of arrays."""
    if isinstance(out, Mapping):
        out = list(out.values())
    if isinstance(out, Sequence):
        for part in out:
            yield from arrays_of(part, backend)
    elif backend.is_array(out):
        yield out


def plain_copies(out: Any, backend: Backend) -> list[Any]:
    """Returns new arrays of the framework with the values and dtypes of an output's arrays. Raises the
    framework's errors."""
    formats = {fmt.long_name: fmt for fmt in DTYPES.values()}
    copies = [
        backend.array(backend.to_numpy(array), formats.get(backend.dtype_name(array)))
        for array in arrays_of(out, backend)
    ]
    backend.sync(copies)
    return copies

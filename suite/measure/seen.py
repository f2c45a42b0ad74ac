"""Recorded answers of timed calls: digests of all, and the values of a few different answers.

A kernel may return wrong values only while the clock runs, or only in some calls. So the last answer of
every sample is recorded outside the timing, and judged later.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Backend

MOST_STORED = 16
"""Greatest number of different answers to a set of inputs whose values are stored, the first ones."""


class RecordedAnswers:
    """The recorded answers to one set of inputs, by digest.

    - `counts`: the number of each answer
    - `values`: the values of the first `MOST_STORED` different answers
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.values: dict[int, Any] = {}

    def add(self, digest: int, read: Callable[[], Any]) -> None:
        """Count an answer. `read()` returns its values, and is called only if they are stored."""
        self.counts[digest] += 1
        if digest not in self.values and len(self.values) < MOST_STORED:
            self.values[digest] = read()


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

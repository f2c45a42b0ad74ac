"""Costs: what judging a cell takes, as far as that was measured; batches are sized by it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

USUAL = 0.02
"""Seconds of a cell of which nothing is known."""


class Costs:
    """Seconds by cell of the runs of a series. A cell that was not measured takes what cells of its check
    and backend took on average. `kinds` say which each cell is."""

    def __init__(self, kinds: Sequence[tuple[str, str]]) -> None:
        self.kinds = kinds
        self._sums = np.zeros(len(kinds))
        self._times = np.zeros(len(kinds), int)
        self._of_kind: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._count: Counter[tuple[str, str]] = Counter()

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._count)

    def learn(self, first: int, seconds: Sequence[float]) -> None:
        """Take in what neighbouring cells took."""
        end = first + len(seconds)
        self._sums[first:end] += seconds
        self._times[first:end] += 1
        for kind, took in zip(self.kinds[first:end], seconds, strict=True):
            self._of_kind[kind] += took
            self._count[kind] += 1

    def of(self, first: int, end: int) -> np.ndarray:
        """Seconds of the cells `first` to `end` - 1."""
        total, count = sum(self._of_kind.values()), self._count.total()
        usual = total / count if count else USUAL
        guess = {k: self._of_kind[k] / n for k, n in self._count.items()}
        guessed = np.array([guess.get(kind, usual) for kind in self.kinds[first:end]])
        times = self._times[first:end]
        return np.where(times > 0, self._sums[first:end] / np.maximum(times, 1), guessed)


def batch_end(
    costs: np.ndarray, places: Sequence[tuple[int, int]], first: int, seconds: float, most: int
) -> int:
    """Where a batch ends that begins at the cell `first` and takes about `seconds`.

    `costs` and `places` are those of the cells from `first` on. Neighbours of one place stay together; a
    batch has at most `most` cells, and at least those of one place.
    """
    total, end = 0.0, 0
    for n, cost in enumerate(costs):
        begins = n == 0 or places[n] != places[n - 1]
        if n and begins and (total >= seconds or n >= most):
            break
        total += float(cost)
        end = n + 1
    return first + end

"""Costs: what judging a cell takes, as far as that was measured; batches are sized by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

USUAL = 0.02
"""Seconds of a cell of which nothing is known."""


class Costs:
    """Seconds by cell of the runs of a series. A cell that was not measured takes what cells of its check
    and backend took on average. `kinds` say which each cell is.

    `left` is kept up to date as cells are owed and measured: it is asked for every task, and runs owe
    millions of cells.
    """

    def __init__(self, kinds: Sequence[tuple[str, str]]) -> None:
        numbers: dict[tuple[str, str], int] = {}
        self._kinds = np.array([numbers.setdefault(kind, len(numbers)) for kind in kinds], int)
        self._sums, self._times = np.zeros(len(kinds)), np.zeros(len(kinds), int)
        self._of_kind, self._count = np.zeros(len(numbers)), np.zeros(len(numbers), int)
        # How many runs owe each cell; of those owed, seconds of measured ones, and how many are not.
        self._owed = np.zeros(len(kinds), int)
        self._seconds, self._unmeasured = 0.0, np.zeros(len(numbers), int)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._count.any())

    @property
    def left(self) -> float:
        """Seconds of all cells that are owed."""
        return max(0.0, self._seconds + float(self._unmeasured @ self._guesses()))

    def owe(self, first: int, end: int, runs: int = 1) -> None:
        """The cells `first` to `end` - 1 are owed by so many more runs; by fewer where `runs` is
        negative."""
        span = slice(first, end)
        self._count_owed(span, -1)
        self._owed[span] += runs
        self._count_owed(span, 1)

    def learn(self, first: int, seconds: Sequence[float]) -> None:
        """Take in what neighbouring cells took."""
        span = slice(first, first + len(seconds))
        self._count_owed(span, -1)
        self._sums[span] += seconds
        self._times[span] += 1
        self._count_owed(span, 1)
        np.add.at(self._of_kind, self._kinds[span], seconds)
        np.add.at(self._count, self._kinds[span], 1)

    def of(self, first: int, end: int) -> np.ndarray:
        """Seconds of the cells `first` to `end` - 1."""
        span = slice(first, end)
        guessed = self._guesses()[self._kinds[span]]
        return np.where(self._times[span] > 0, self._means(span), guessed)

    def _means(self, span: slice) -> np.ndarray:
        return self._sums[span] / np.maximum(self._times[span], 1)

    def _guesses(self) -> np.ndarray:
        """Seconds of a cell of each kind that was not measured."""
        usual = self._of_kind.sum() / self._count.sum() if self.known else USUAL
        return np.where(self._count > 0, self._of_kind / np.maximum(self._count, 1), usual)

    def _count_owed(self, span: slice, sign: int) -> None:
        """Count what is owed of some cells, or take it away."""
        owed, measured = sign * self._owed[span], self._times[span] > 0
        self._seconds += float((owed * self._means(span))[measured].sum())
        np.add.at(self._unmeasured, self._kinds[span][~measured], owed[~measured])


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

"""A cache of the most recently used results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Cache(Generic[Result]):
    """Up to `entries` results by key. The least recently used result is removed first."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._results: OrderedDict[Hashable, Result] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Returns the result under `key`, by `compute()` if it is missing."""
        if key not in self._results:
            self._results[key] = compute()
        self._results.move_to_end(key)
        while len(self._results) > self.entries:
            self._results.popitem(last=False)
        return self._results[key]

    def clear(self) -> None:
        """Forgets all results."""
        self._results.clear()

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        """Yields the results, the most recently used last."""
        return iter(self._results.values())

"""Faults of caches that answer what they must refuse: rollbacks, capacities, samples and padding that
cannot be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.scripts import capacity

FAMILY = "cache"


@fault("bad_problem", "`max(length - n, 0)`; refuse more tokens than there are")
class CachedRollbackBeyondTheLength(CachedKernel):
    """A rollback of more tokens than there are empties the cache."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        return super().crop(state, min(count, state.total), *samples)


@fault("bad_problem", "`if n > 0`; refuse a negative number of tokens")
class CachedRollbackOfNegative(CachedKernel):
    """A rollback of a negative number of tokens does nothing."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        return super().crop(state, max(count, 0), *samples)


@fault("bad_problem", "`max(capacity, 1)`; refuse a cache without slots")
class CachedOfOneSlotAtLeast(CachedKernel):
    """A cache without slots, or with a negative number of them, has one slot."""

    def room(self, inputs: Inputs) -> int:
        return max(capacity(inputs.case), 1)


@fault("bad_problem", "`cache[samples]`, in which -1 is the last sample; raise for negative ones")
class CachedHistoryFromTheEnd(CachedKernel):
    """A negative sample whose history goes on is counted from the end of the batch."""

    def reorder(self, state: Held, samples: Rounded) -> Held:
        count = len(state.totals)
        return super().reorder(
            state, Rounded(np.where(samples.values < 0, count - 1, samples.values), None)
        )


@fault("bad_problem", "an index unchecked; raise unless `0 <= sample < batch`")
class CachedHistoryClamped(CachedKernel):
    """A sample beyond the batch goes on with the history of the last one."""

    def reorder(self, state: Held, samples: Rounded) -> Held:
        last = len(state.totals) - 1
        return super().reorder(state, Rounded(np.minimum(samples.values, last), None))


@fault("bad_problem", "`lengths[samples % batch] = 0`; raise unless `0 <= sample < batch`")
class CachedResetOfAnother(CachedKernel):
    """A reset or a rollback of a sample beyond the batch is one of another sample."""

    def chosen(self, held: Held, samples: Sequence[Rounded]) -> list[int] | slice:
        count = len(held.totals)
        return super().chosen(held, [Rounded(x.values % count, None) for x in samples])


@fault("bad_problem", "a signed `key >= padding`; raise for negative padding")
class CachedPaddingUnhidesSlots(CachedKernel):
    """With negative left padding slots that hold no token are attended."""

    def exists(self, held: Held, keys: np.ndarray) -> np.ndarray:
        return keys >= np.minimum(held.padding, 0)[:, None]


@fault("bad_problem", "a flat index beyond the sample; raise if padding exceeds the length")
class CachedPaddingRunsOn(CachedKernel):
    """A sample with more left padding than tokens attends the next sample."""

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        beyond = held.padding > rows[:, -1]
        key, value = (
            np.where(beyond[:, None, None, None], np.roll(x, -1, 0), x) for x in (key, value)
        )
        padding, held.padding = held.padding, np.where(beyond, 0, held.padding)
        out = super().attend(held, query, key, value, rows, keys)
        held.padding = padding
        return out

"""Faults of caches that answer what they must refuse: rollbacks, capacities, samples and padding that
cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.operators.scripts import capacity


def cached_history_from_the_end(right: CachedKernel, state: Held, samples: Rounded) -> Held:
    count = len(state.totals)
    return right.reorder(
        state, Rounded(np.where(samples.values < 0, count - 1, samples.values), None)
    )


def cached_history_clamped(right: CachedKernel, state: Held, samples: Rounded) -> Held:
    last = len(state.totals) - 1
    return right.reorder(state, Rounded(np.minimum(samples.values, last), None))


def cached_reset_of_another(
    right: CachedKernel, held: Held, samples: Sequence[Rounded]
) -> list[int] | slice:
    count = len(held.totals)
    return right.chosen(held, [Rounded(x.values % count, None) for x in samples])


def cached_padding_runs_on(
    right: CachedKernel,
    held: Held,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    beyond = held.padding > rows[:, -1]
    key, value = (np.where(beyond[:, None, None, None], np.roll(x, -1, 0), x) for x in (key, value))
    padding, held.padding = held.padding, np.where(beyond, 0, held.padding)
    out = right.attend(held, query, key, value, rows, keys)
    held.padding = padding
    return out


row = partial(deviation, family="cache", right=CachedKernel)

DEVIATIONS = [
    row("cached-rollback-beyond-the-length", "bad_problem",
        "A rollback of more tokens than there are empties the cache.",
        "`max(length - n, 0)`; refuse more tokens than there are",
        crop=lambda right, state, count, *samples: right.crop(state, min(count, state.total), *samples)),
    row("cached-rollback-of-negative", "bad_problem",
        "A rollback of a negative number of tokens does nothing.",
        "`if n > 0`; refuse a negative number of tokens",
        crop=lambda right, state, count, *samples: right.crop(state, max(count, 0), *samples)),
    row("cached-of-one-slot-at-least", "bad_problem",
        "A cache without slots, or with a negative number of them, has one slot.",
        "`max(capacity, 1)`; refuse a cache without slots",
        room=lambda right, inputs: max(capacity(inputs.case), 1)),
    row("cached-history-from-the-end", "bad_problem",
        "A negative sample whose history goes on is counted from the end of the batch.",
        "`cache[samples]`, in which -1 is the last sample; raise for negative ones",
        reorder=cached_history_from_the_end),
    row("cached-history-clamped", "bad_problem",
        "A sample beyond the batch goes on with the history of the last one.",
        "an index unchecked; raise unless `0 <= sample < batch`", reorder=cached_history_clamped),
    row("cached-reset-of-another", "bad_problem",
        "A reset or a rollback of a sample beyond the batch is one of another sample.",
        "`lengths[samples % batch] = 0`; raise unless `0 <= sample < batch`",
        chosen=cached_reset_of_another),
    row("cached-padding-unhides-slots", "bad_problem",
        "With negative left padding slots that hold no token are attended.",
        "a signed `key >= padding`; raise for negative padding",
        exists=lambda right, held, keys: keys >= np.minimum(held.padding, 0)[:, None]),
    row("cached-padding-runs-on", "bad_problem",
        "A sample with more left padding than tokens attends the next sample.",
        "a flat index beyond the sample; raise if padding exceeds the length",
        attend=cached_padding_runs_on),
]  # fmt: skip

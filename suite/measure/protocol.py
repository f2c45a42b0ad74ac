"""The measuring protocol, version 2: number and length of samples, and limits that refuse a time.

- A sample is the time of one call, averaged over the calls that fill `SAMPLE_SECONDS`.
- Calls rotate through `SETS` sets of inputs.
- Every call is synchronised before the next one starts: a sample is a latency.
- The warm-up takes at least `WARM_CALLS` calls and `WARM_SECONDS`, and ends when the medians of two
  consecutive batches agree within `SETTLED`. After `WARM_LIMIT` the time is marked unsettled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

VERSION = 2
"""Stored with every result. Results of different versions are not compared."""

WARM_CALLS = 3
WARM_SECONDS = 0.2
BATCH = 3
SETTLED = 0.05
WARM_LIMIT = 2.0
"""Greatest seconds of the warm-up, which has at least two batches."""

SAMPLE_SECONDS = 0.01
LEAST_SECONDS = 1e-9
"""The least seconds of a call."""

SAMPLES = 20

SETS, SETS_BYTES = 8, 2**28
"""Sets of inputs of the timed calls, and the most bytes of all sets. There are two sets at least."""

JUDGED_SHARE = 1 / 3
"""Share of the sets whose answers are judged. They are drawn after the timing by the system's random
numbers, so that no seed predicts them."""

NEW_SETS = 3
"""Sets of new inputs of a trial after the timing."""

EXTRA_CALLS, EXTRA_SECONDS = 100, 0.3
"""Number of calls after the timing whose answers are recorded, and the greatest seconds for them."""

STALE_RATIO, STALE_SAMPLE_RATIO, STALE_SECONDS = 1.5, 2.0, 1e-4
"""A time is stale if in a trial the fastest call with new inputs takes `STALE_RATIO` times as long as the
fastest one with old inputs, or `STALE_SAMPLE_RATIO` times the median sample, and `STALE_SECONDS` more.
The answer of the fastest call is judged."""

CLOCK_RATIO, CLOCK_SECONDS = 3.0, 1.0
"""Greatest time of all samples by the clock of the parent process: the worker's seconds times
`CLOCK_RATIO`, and `CLOCK_SECONDS` more. A worker runs user code, which may stop its clock."""

TRIALS, TRIAL_PAUSE = 7, 0.05
"""Number of trials that must all exceed the limit `STALE_RATIO`, and the seconds after the first. Each
pause is twice the one before, 3 s together: other work keeps a machine busy for seconds."""

MOST_OF_LIMIT = 1.05
"""Greatest believable share of the measured limit, which is known to a few percent."""


class RefusedTime(Exception):
    """A time must not be reported: `kind` is the reason in one word, the message explains it."""

    def __init__(self, kind: str, message: str, error_ratio: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.error_ratio = kind, message, error_ratio


class UnsupportedCall(Exception):
    """The implementation does not support the case in this direction; the message says why."""


now, pause = time.perf_counter, time.sleep
"""The clock and the pause, bound before a user's file is imported, which may replace them in `time`."""


def wait(seconds: float) -> None:
    """Wait in a busy loop, so that no other process gets the CPU."""
    end = now() + seconds
    while now() < end:
        pass


def timed(
    call: Callable[[], Any], sync: Callable[[Any], None], inner: int, slow: float = 0.0
) -> tuple[float, Any]:
    """Returns the seconds of one call, averaged over `inner` calls, and the output of the last call, or
    None if `inner` is 0. `sync(out)` waits until an output is computed. A wait of the fraction `slow` of
    the calls' time is added, and counts."""
    out = None
    start = now()
    for _ in range(inner):
        out = call()
        sync(out)
    wait((now() - start) * slow)
    return (now() - start) / max(inner, 1), out


def calls_per_sample(seconds: float) -> int:
    """Returns the number of calls of `seconds` each that fill a sample."""
    return max(1, math.ceil(SAMPLE_SECONDS / max(seconds, LEAST_SECONDS)))


def warm(sample: Callable[[int], float], first: float) -> tuple[int, bool, int]:
    """Call until times settle, or for `WARM_LIMIT` seconds. Returns the calls per sample, True if times
    settled, and the number of calls.

    `sample(inner)` returns the seconds of one call, averaged over `inner` calls. `first`: the seconds of
    one call without compilation.
    """
    inner, calls, batches = calls_per_sample(first), 0, []
    start = now()
    while True:
        batch = [sample(inner) for _ in range(BATCH)]
        calls += BATCH * inner
        batches.append(statistics.median(batch))
        inner = calls_per_sample(min(batch))
        seconds = now() - start
        has_settled = len(batches) > 1 and abs(batches[-1] / batches[-2] - 1) <= SETTLED
        if has_settled and calls >= WARM_CALLS and seconds >= WARM_SECONDS:
            return inner, True, calls
        if len(batches) > 1 and seconds > WARM_LIMIT:
            return inner, False, calls


def interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """Returns an interval (low, high) that contains the median with a probability of at least
    `confidence`, from order statistics.

    The limits are the k-th smallest and k-th largest value, where k is the largest number with
    P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2 (David and Nagaraja 2003, section 7.1). The interval
    is infinite if there are too few values."""
    from scipy.special import bdtr

    n = len(values)
    sorted_values = sorted(values)
    k = int((bdtr(np.arange(n), n, 0.5) <= (1.0 - confidence) / 2.0).sum())
    if k == 0:
        return -math.inf, math.inf
    return sorted_values[k - 1], sorted_values[n - k]

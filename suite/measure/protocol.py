"""The measuring protocol: how often, how long, and when a figure is not to be trusted.

Version 1. A sample is the time of one call, averaged over as many as fill `SAMPLE_SECONDS`; every call
is synchronised before the next one starts, so that a sample is a latency. Before the first sample there
are at least `WARM_CALLS` calls and `WARM_SECONDS`, until the medians of two consecutive batches agree
within `SETTLED`; where they never do, the figure is marked unsettled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

VERSION = 1
"""Stored with every result; results of different versions are not compared."""

WARM_CALLS = 3
WARM_SECONDS = 0.2
BATCH = 3
SETTLED = 0.05
WARM_LIMIT = 2.0
"""Seconds after which warming up ends, settled or not (after two batches at least)."""

SAMPLE_SECONDS = 0.01
SAMPLES = 20

FRESH = 3
"""Sets of fresh inputs that an answer is asked for after the timing."""

MORE, MORE_SECONDS = 100, 0.3
"""Calls after the timing whose answers are looked at beside the last one of every sample, as long as
they fit into these seconds."""

STALE_FACTOR, STALE_SECONDS = 3.0, 1e-4
"""A call with fresh inputs that takes this many times the slowest sample, and this many seconds more,
was not what was timed."""

UNSYNCED = 0.25
"""Reading an output may not take this share of a sample longer than reading one that is known to be
finished: the clock had stopped before the work."""

TRIALS = 5
"""In how many trials in a row that has to be seen."""

OVER_CEILING = 1.05
"""Share of the ceiling beyond which a time cannot be true; the ceiling itself is known to a few
percent."""


def timed(call: Callable[[], Any], sync: Callable[[Any], None], inner: int) -> tuple[float, Any]:
    """Seconds of one call, averaged over `inner` of them, and the last one's outputs."""
    out = None
    start = time.perf_counter()
    for _ in range(inner):
        out = call()
        sync(out)
    return (time.perf_counter() - start) / inner, out


def calls_per_sample(seconds: float) -> int:
    """Calls that fill a sample where one takes `seconds`."""
    return max(1, math.ceil(SAMPLE_SECONDS / max(seconds, 1e-9)))


def warm(sample: Callable[[int], float], first: float) -> tuple[int, bool, int]:
    """Call until times settle: calls per sample, whether they settled, and the number of calls.

    `sample(inner)` gives the seconds of one call; `first` is what one took, compilation left out.
    """
    inner, calls, batches = calls_per_sample(first), 0, []
    start = time.perf_counter()
    while True:
        batch = [sample(inner) for _ in range(BATCH)]
        calls += BATCH * inner
        batches.append(statistics.median(batch))
        inner = calls_per_sample(min(batch))
        spent = time.perf_counter() - start
        agree = len(batches) > 1 and abs(batches[-1] / batches[-2] - 1) <= SETTLED
        if agree and calls >= WARM_CALLS and spent >= WARM_SECONDS:
            return inner, True, calls
        if len(batches) > 1 and spent > WARM_LIMIT:
            return inner, False, calls


def interval(values: Sequence[float], confidence: float = 0.99) -> tuple[float, float]:
    """An interval that holds the median with at least `confidence`, from order statistics.

    The k-th smallest and k-th largest value, where k is the largest number for which a binomial of n
    fair coins is below k with probability (1 - confidence) / 2 at most (David and Nagaraja 2003, section
    7.1). Infinite where there are too few values to say anything.
    """
    from scipy.special import bdtr

    n = len(values)
    ordered = sorted(values)
    k = int((bdtr(np.arange(n), n, 0.5) <= (1.0 - confidence) / 2.0).sum())
    if k == 0:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[n - k]

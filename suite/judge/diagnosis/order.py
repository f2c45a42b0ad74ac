"""The order in which an implementation adds over keys: a fact, not a fault.

Equal weights, and values that are M, -M and otherwise 1, with M so large that 1 is lost beside M: what
remains of the sum counts the values that are added after M and -M have met (FPRev: Xie et al., FPRev:
Revealing the Order of Floating-Point Summation, USENIX ATC 2025).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from suite.judge.diagnosis.instrument import Instrument
from suite.spec.case import Case

KEYS = 32
"""Keys of the sum that is revealed."""

LOST = 2.0**100
"""Beside it 1 is lost, also in float64 inside."""


def read(tool: Instrument, case: Case) -> str:
    """The order of sums over keys in the plain `case`, in words; "" if it is not revealed."""
    pairs = list(combinations(range(KEYS), 2))
    met = _met(tool, case, pairs)
    if met is None:
        return ""
    meets = np.zeros((KEYS, KEYS), int)
    for (i, j), size in zip(pairs, met, strict=True):
        meets[i, j] = meets[j, i] = size
    text = named(meets)
    few = [(0, j) for j in range(1, KEYS)]
    alone = _met(tool, replace(case, sizes=replace(case.sizes, B=1, Lq=1)), few)
    if alone is None:
        return text
    same = np.array_equal(alone, meets[0, 1:])
    return f"{text}; {'the same' if same else 'another order'} for one sample and one query"


def _met(tool: Instrument, case: Case, pairs: list[tuple[int, int]]) -> np.ndarray | None:
    """For every pair of keys, how many values are added up when both have met; None if sums say
    nothing."""
    case = replace(case, sizes=replace(case.sizes, Lk=KEYS))
    if tool.implementation.unsupported(case) is not None:
        return None
    inputs, s = tool.drawn(case), case.sizes
    found: list[float] = []
    batch = s.B * s.Hkv * s.Dv
    for start in range(0, len(pairs), batch):
        value = np.ones((batch, KEYS))
        for place, (i, j) in enumerate(pairs[start : start + batch]):
            value[place, i], value[place, j] = LOST, -LOST
        shaped = value.reshape(s.B, s.Hkv, s.Dv, KEYS).swapaxes(-1, -2)
        got = tool.output(inputs.replace(query=np.zeros_like(inputs.query), value=shaped))
        if got is None:
            return None
        found += (got[:, :: s.group, 0] * KEYS).ravel().tolist()
    left = np.array(found[: len(pairs)])
    whole = np.isfinite(left) & (left == np.rint(left)) & (left >= 0) & (left <= KEYS - 2)
    return (KEYS - left).astype(int) if whole.all() else None


def named(meets: np.ndarray) -> str:
    """The name of an order, from the numbers of summands with which pairs meet, (n, n)."""
    n = len(meets)
    i, j = np.indices((n, n))
    apart, first, last = i != j, np.minimum(i, j), np.maximum(i, j)

    def all_equal(want: np.ndarray, where: np.ndarray = apart) -> bool:
        return bool((meets == want)[where & apart].all())

    if all_equal(np.full((n, n), 2)):
        return "exact, or wider than any M"
    if all_equal(last + 1):
        return "one after the other"
    if all_equal(n - first):
        return "one after the other, from the last"
    if all_equal(2 ** np.array([[int(x).bit_length() for x in row] for row in i ^ j])):
        return "pairwise"
    if all_equal(np.full((n, n), n)):
        return "all at once"
    for size in (16, 8, 4, 2):
        lanes = (i % size == j % size) & apart
        if all_equal(last // size + 1, lanes):
            return f"in {size} lanes: every {size}th one after the other, then the lanes"
    for size in (2, 4, 8, 16):
        inside = (i // size == j // size) & apart
        if (meets[inside] <= size).all() and (meets[~inside & apart] > size).all():
            inner = (
                "one after the other" if all_equal(last % size + 1, inside) else "in another order"
            )
            return f"in blocks of {size}, {inner} within a block"
    depth = len({*meets[apart].tolist()})
    return f"as another tree ({depth} levels)"

"""The order in which an implementation adds over keys: a fact, not a fault.

Equal weights, and values that are M, -M and otherwise 1, with M so large that 1 is lost beside M: what
remains of the sum counts the values that are added after M and -M have met (FPRev: Xie et al., FPRev:
Revealing the Order of Floating-Point Summation, USENIX ATC 2025).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.judge.diagnosis.instrument import Instrument
from suite.spec.case import Case

KEYS = 32
"""Keys of the sum that is revealed."""

LOST = 2.0**100
"""Beside it 1 is lost, also in float64 inside."""


def read(tool: Instrument, case: Case) -> str:
    """The order of sums over keys in the plain `case`, in words; "" if it is not revealed."""
    first = [(0, j) for j in range(1, KEYS)]
    met = _met(tool, case, first + [(i, i + 1) for i in range(1, KEYS - 1)])
    if met is None:
        return ""
    names: dict[str, list[int]] = {}
    for component, row in enumerate(met):
        beside = np.array([row[0], *row[KEYS - 1 :]])
        names.setdefault(named(row[: KEYS - 1], beside), []).append(component)
    of = {name: f" ({len(which)} of {len(met)} components)" for name, which in names.items()}
    text = ", ".join(name + (of[name] if len(names) > 1 else "") for name in names)
    alone = _met(tool, replace(case, sizes=replace(case.sizes, B=1, Lq=1)), first)
    if alone is None:
        return text
    same = np.array_equal(alone[0], met[0, : KEYS - 1])
    return f"{text}; {'the same' if same else 'another order'} for one sample and one query"


def _met(tool: Instrument, case: Case, pairs: list[tuple[int, int]]) -> np.ndarray | None:
    """For every pair of keys, how many values are added up when both have met, (Dv, pairs); None if sums
    say nothing."""
    case = replace(case, sizes=replace(case.sizes, Lk=KEYS))
    if tool.implementation.unsupported(case) is not None:
        return None
    inputs, s = tool.drawn(case), case.sizes
    found: list[np.ndarray] = []
    batch = s.B * s.Hkv
    for start in range(0, len(pairs), batch):
        value = np.ones((batch, KEYS, s.Dv))
        for place, (i, j) in enumerate(pairs[start : start + batch]):
            value[place, i], value[place, j] = LOST, -LOST
        shaped = value.reshape(s.B, s.Hkv, KEYS, s.Dv)
        got = tool.output(inputs.replace(query=np.zeros_like(inputs.query), value=shaped))
        if got is None:
            return None
        found += list(got[:, :: s.group, 0].reshape(batch, s.Dv) * KEYS)
    left = np.array(found[: len(pairs)]).T
    whole = np.isfinite(left) & (left == np.rint(left)) & (left >= 0) & (left <= KEYS - 2)
    return (KEYS - left).astype(int) if whole.all() else None


def named(first: np.ndarray, beside: np.ndarray) -> str:
    """The name of an order of n summands. `first` (n - 1,): how many are added up when summand 0 and
    every other one have met; `beside` (n - 1,): the same of neighbours."""
    n, j = len(first) + 1, np.arange(1, len(first) + 1)

    def grown(x: np.ndarray) -> np.ndarray:
        return 2 ** np.array([int(number).bit_length() for number in x])

    for text, of_first, of_neighbours in (
        ("without loss: M and 1 are both kept", 0 * j + 2, 0 * j + 2),
        ("one after the other", j + 1, j + 1),
        ("one after the other, from the last", 0 * j + n, n + 1 - j),
        ("pairwise", grown(j), grown(j ^ (j - 1))),
        ("all at once", 0 * j + n, 0 * j + n),
    ):
        if np.array_equal(first, of_first) and np.array_equal(beside, of_neighbours):
            return text
    for lanes in (16, 8, 4, 2):
        inside = j % lanes == 0
        if (
            np.array_equal(first[inside], j[inside] // lanes + 1)
            and (first[~inside] > n // lanes).all()
        ):
            return f"in {lanes} lanes, each one after the other, then the lanes"
    for size in (2, 4, 8, 16):
        inside = j % size != 0
        if (beside[inside] <= size).all() and (beside[~inside] > size).all():
            one = np.array_equal(first[: size - 1], j[: size - 1] + 1)
            return (
                f"in blocks of {size}, each {'one after the other' if one else 'in another order'}"
            )
    return "as another tree"

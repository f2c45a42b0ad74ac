"""The order in which an implementation adds over keys: a fact, not a fault.

Equal weights, and values that are M, -M and otherwise 1: what is lost beside M tells the order (see
`suite.judge.elections.trees`). Every component of every head and sample asks about another pair of keys.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backends.protocol import Implementation
from suite.judge.elections.probe import Probe
from suite.judge.elections.trees import Name, NoTree, Pair, named, reveal
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs

PROBE = "sdpa/{{mask}}/mha/{{dt}}/b2h4q16k{keys}d64"
"""Rows and components fill whole vectors and tiles, so that all are added in one order."""

ALONE = "sdpa/{{mask}}/mha/{{dt}}/b1h4q1k{keys}d64"
"""One sample and one query."""

KEYS = 256
"""Keys of the elections: blocks of up to 128 show."""

HUGE = 2.0**100
"""Beside it 1 is lost, also in float64 inside."""

WHOLE = 0.25
"""Counts are this near whole numbers: 2,048 roundings in float32 move a count of up to 2,048 by
2048**2 * 2**-24 at most."""

VARIES = "varies"
"""The name of orders that are not the same in all rows, components and calls."""

Ask = Callable[[Inputs], np.ndarray]
"""Answers inputs: the output (B, H, Lq, Dv) in float64."""


class Unread(Exception):
    """Sums that tell nothing of their order."""


def read(ask: Ask, inputs: Inputs) -> Name:
    """The order of sums over keys in calls like `inputs`, which have no mask.

    Raises Unread, and what `ask` raises.
    """
    n, s = inputs.sizes.Lk, inputs.sizes
    random = np.random.default_rng(0)
    try:
        tree = reveal(n, lambda pairs: met(ask, inputs, pairs))
        # Other pairs in other places, in one call more.
        pairs = [
            (i, j) for i, j in random.integers(0, n, (s.B * s.Hkv * s.Dv, 2)).tolist() if i < j
        ]
        again = met(ask, inputs, pairs)
        if (again != (2 if tree is None else tree.met(pairs))).any():
            raise NoTree("other places tell of another order")
    except NoTree:
        return Name(VARIES, "in orders that differ between rows, components or calls")
    return named(tree)


def alike(ask: Ask, inputs: Inputs, others: Inputs) -> bool:
    """True if sums over as many keys are added in one order in calls like `inputs` and like `others`, as
    far as the first key and neighbours tell. Raises Unread, and what `ask` raises."""
    n = inputs.sizes.Lk
    pairs = [(0, j) for j in range(1, n)] + [(i, i + 1) for i in range(1, n - 1)]
    try:
        return np.array_equal(met(ask, inputs, pairs), met(ask, others, pairs))
    except NoTree:
        return False


def met(ask: Ask, inputs: Inputs, pairs: list[Pair]) -> np.ndarray:
    """For every pair of keys, how many values are added up when both have met. Raises NoTree if rows
    differ, and Unread."""
    s = inputs.sizes
    found = []
    most = s.B * s.Hkv * s.Dv
    for start in range(0, len(pairs), most):
        some = np.array(pairs[start : start + most])
        sample, head, component = np.unravel_index(np.arange(len(some)), (s.B, s.Hkv, s.Dv))
        value = np.ones((s.B, s.Hkv, s.Lk, s.Dv))
        value[sample, head, some[:, 0], component] = HUGE
        value[sample, head, some[:, 1], component] = -HUGE
        got = ask(inputs.replace(query=np.zeros_like(inputs.query), value=value))
        rows = got.reshape(s.B, s.Hkv, s.group * s.Lq, s.Dv)[sample, head, :, component] * s.Lk
        # M and -M of parts with weights that differ in their last bits leave more than any count.
        left = np.rint(np.where(np.abs(rows) > s.Lk, 0, rows))
        if not (np.isfinite(rows) & (np.abs(rows - left) <= WHOLE) | (np.abs(rows) > s.Lk)).all():
            raise Unread("sums that are not finite, or no multiples of the weights")
        if (left != left[:, :1]).any():
            raise NoTree("rows are added in different orders")
        found.append(s.Lk - left[:, 0])
    return np.concatenate(found).astype(int)


def drawn(implementation: Implementation, probe: str, keys: int) -> Inputs | None:
    """The inputs of a probe with so many keys, in the nearest other sizes that an implementation
    supports; None if it supports none."""
    p = Probe(implementation, DTYPES["f32"])
    inputs = p.drawn(probe.format(keys=keys))
    return None if implementation.refuses(inputs) or inputs.sizes.Lk != keys else inputs


def _asking(p: Probe) -> Ask:
    """How a probe asks its implementation. Rounding explains what is lost, and no more."""

    def ask(inputs: Inputs) -> np.ndarray:
        got = p.values(inputs)
        if got is None:
            raise Deviation("election", "values of 2**100 raised")
        if np.isfinite(got).all() and not p.matches(got, inputs):
            raise Deviation(
                "election", "no order of a sum of equal weights explains what values of 2**100 give"
            )
        return got

    return ask


def _order_of_sums(p: Probe) -> str:
    try:
        return read(_asking(p), p.drawn(PROBE.format(keys=KEYS))).name
    except Unread as error:
        raise NotApplicable(f"{error}") from error


def _sums_of_one_row(p: Probe) -> str:
    many, one = (p.drawn(probe.format(keys=KEYS)) for probe in (PROBE, ALONE))
    if one.sizes.Lq >= many.sizes.Lq or one.sizes.Lk != many.sizes.Lk:
        raise NotApplicable("takes no single query")
    try:
        return "in-the-same-order" if alike(_asking(p), many, one) else "in-another-order"
    except Unread as error:
        raise NotApplicable(f"{error}") from error


PROBES: dict[str, Callable[[Probe], str]] = {
    "order-of-sums": _order_of_sums,
    "sums-of-one-row": _sums_of_one_row,
}
"""How each of these questions is put to an implementation."""

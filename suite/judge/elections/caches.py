"""Questions about caches: NaN in slots that were freed, and tokens beyond the capacity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

import numpy as np

from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.scripts import actions, freed_tokens
from attention_conformance.suite.spec.operators.steps import Chunk, Crop
from attention_conformance.suite.spec.operators.views import attended, views

FREED = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.2.back2.1.3",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.reset.1.4",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.tree1121.keep3.2",
)
"""Scripts after whose operation slots hold tokens that left the cache."""

SLOTS = 6
"""The capacity of the scripts below."""

BEYOND = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.1.1.1.1.1/room6",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.1of0.1of0.1of0.1.1.1of1.1of1.1of1/room6",
)
"""Steps beyond the capacity, of all samples together, and of one sample beside another one."""

REFUSED = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.3.back3.2/room6",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.3of0.back3of0.3of1.back3of1.2/room6",
)
"""Chunks beyond the capacity: a cache that raises has the tokens that it had before, and takes others.
The rollbacks are for the reference alone."""


def poisoned(inputs: Inputs) -> Inputs:
    """The inputs with NaN in the tokens that leave the cache."""
    gone = freed_tokens(inputs.case)[:, None, :, None]
    arrays = {name: np.where(gone, np.nan, inputs.arrays[name]) for name in ("key", "value")}
    return inputs.replace(**arrays)


def unpoisoned(inputs: Inputs) -> np.ndarray:
    """The rows (B, Lq) that attend no token that leaves the cache, and came in no chunk with one."""
    gone = freed_tokens(inputs.case)
    rows = ~np.asarray((attended(inputs.case) & gone).any((2, 3)))
    before = inputs.sizes.Lk - inputs.sizes.Lq
    for view in views(inputs.case):
        beside = gone[view.own_samples[:, None], before + view.rows].any()
        rows[view.own_samples[:, None], view.rows] &= not beside
    return rows


def _nan_in_freed_slot(p: Probe) -> str:
    answers = set()
    for inputs in _supported(p, FREED):
        rows = unpoisoned(inputs)[:, None]
        got = p.values(poisoned(inputs))
        if got is None:
            raise Deviation("election", "a NaN in a token that leaves the cache raised")
        where = np.broadcast_to(rows, got.shape[:3])
        if np.isnan(got[where]).any():
            answers.add("leaks")
        elif p.matches(got, inputs, where=where):
            answers.add("blocked")
        else:
            raise Deviation("election", "a NaN in a freed slot makes finite rows wrong")
    return max(answers)  # leaks if any script leaks


def _beyond_capacity(p: Probe) -> str:
    answers = set()
    for inputs in _supported(p, BEYOND, {"overflow"}):
        slots = inputs.case.option("capacity")
        got = p.values(inputs, lacking=True)
        grown = inputs.replace(capacity=None)
        # A ring may be written before or after a step attends.
        rings = (grown.replace(left=slots - n) for n in (1, 0))
        if got is None:
            answers.add("raises")
        elif p.matches(got, grown):
            answers.add("grows")
        elif any(p.matches(got, ring) for ring in rings):
            answers.add("ring")
        else:
            raise Deviation(
                "election",
                "tokens beyond the capacity give neither more slots, nor a ring, nor an error",
            )
    if len(answers) > 1:
        raise Deviation(
            "election", f"tokens beyond the capacity give {' and '.join(sorted(answers))}"
        )
    if answers == {"raises"}:
        _read_after_refusal(p)
    return answers.pop()


def _read_after_refusal(p: Probe) -> None:
    """Raise Deviation "election" unless a cache that raises beyond its capacity goes on as if it had not
    been asked."""
    for inputs in _supported(p, REFUSED, {"overflow", "rollback"}):
        call = p.implementation.refusing(inputs)
        if call is None:
            continue
        rows = np.ones((inputs.sizes.B, inputs.sizes.Lq), bool)
        for action, after in pairwise(actions(inputs.case)):
            if isinstance(action, Chunk) and isinstance(after, Crop):
                rows[np.array(action.own)[:, None], action.rows] = False
        got = p.values(inputs, lacking=True, prepared=call)
        shape = (len(rows), inputs.sizes.H, rows.shape[1])
        where = np.broadcast_to(rows[:, None], shape)
        if got is None or not p.matches(got, inputs.replace(capacity=None), where=where):
            raise Deviation(
                "election",
                "a cache that raises for tokens beyond its capacity does not go on with those before",
            )


def _supported(
    p: Probe, scripts: tuple[str, ...], lacking: Collection[str] = ()
) -> Iterator[Inputs]:
    """The inputs of the scripts that the implementation takes, apart from features that it may lack.

    Raises NotApplicable without any.
    """
    reasons = []
    for script in scripts:
        inputs = p.drawn(script)
        # The nearest case has more slots. On a GPU an index beyond them would end the process.
        if "overflow" in lacking and p.implementation.backend.device == "cpu":
            inputs = inputs.replace(capacity=SLOTS)
        needed = [word for word in inputs.needs if word not in lacking]
        reason = p.implementation.missing(needed)
        if reason is None:
            yield inputs
        else:
            reasons.append(reason)
    if len(reasons) == len(scripts):
        raise NotApplicable(reasons[0])


PROBES: dict[str, Callable[[Probe], str]] = {
    "nan-in-freed-slot": _nan_in_freed_slot,
    "beyond-capacity": _beyond_capacity,
}
"""How each of these questions is put to an implementation."""

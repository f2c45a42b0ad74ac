"""Questions about caches: NaN in slots that were freed, and tokens beyond the capacity."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

import numpy as np

from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.scripts import actions, freed_tokens
from attention_conformance.suite.spec.operators.steps import Chunk, Crop
from attention_conformance.suite.spec.operators.views import attended_pairs, views

FREED = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.2.back2.1.3",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.reset.1.4",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.tree1121.keep3.2",
)
"""Scripts after which slots still hold tokens that left the cache."""

SLOTS = 6
"""The capacity of the scripts below."""

BEYOND = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.1.1.1.1.1/room6",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.1of0.1of0.1of0.1.1.1of1.1of1.1of1/room6",
)
"""Scripts whose steps exceed the capacity: steps of all samples together, and of one sample alone."""

REFUSED = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.3.back3.2/room6",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.3of0.back3of0.3of1.back3of1.2/room6",
)
"""Scripts with chunks beyond the capacity: a cache that raises must keep its former tokens, and take
later ones. The rollbacks stand for the refused chunks in the reference."""


def with_nan_in_freed(inputs: Inputs) -> Inputs:
    """Returns the inputs with NaN in the tokens that leave the cache."""
    is_freed = freed_tokens(inputs.case)[:, None, :, None]
    arrays = {name: np.where(is_freed, np.nan, inputs.arrays[name]) for name in ("key", "value")}
    return inputs.replace(**arrays)


def rows_without_freed(inputs: Inputs) -> np.ndarray:
    """Returns a boolean array (B, Lq). True if the row attends no token that leaves the cache, and the
    row's chunk contains no such token."""
    is_freed = freed_tokens(inputs.case)
    rows = ~np.asarray((attended_pairs(inputs.case) & is_freed).any((2, 3)))
    first_row = inputs.sizes.Lk - inputs.sizes.Lq
    for view in views(inputs.case):
        has_freed = is_freed[view.own_samples[:, None], first_row + view.rows].any()
        rows[view.own_samples[:, None], view.rows] &= not has_freed
    return rows


def _probe_nan_in_freed_slot(p: Probe) -> str:
    answers = set()
    for inputs in _supported_inputs(p, FREED):
        rows = rows_without_freed(inputs)[:, None]
        got = p.values(with_nan_in_freed(inputs))
        if got is None:
            raise WrongAnswer("election", "a NaN in a token that leaves the cache raised")
        where = np.broadcast_to(rows, got.shape[:3])
        if np.isnan(got[where]).any():
            answers.add("leaks")
        elif p.matches(got, inputs, where=where):
            answers.add("blocked")
        else:
            raise WrongAnswer("election", "a NaN in a freed slot makes finite rows wrong")
    return max(answers)  # "leaks" if any script leaks


def _probe_beyond_capacity(p: Probe) -> str:
    answers = set()
    for inputs in _supported_inputs(p, BEYOND, {"overflow"}):
        slots = inputs.case.option("capacity")
        got = p.values(inputs, may_lack=True)
        grown_inputs = inputs.replace(capacity=None)
        # A ring may be written before or after a step attends.
        rings = (grown_inputs.replace(left=slots - n) for n in (1, 0))
        if got is None:
            answers.add("raises")
        elif p.matches(got, grown_inputs):
            answers.add("grows")
        elif any(p.matches(got, ring) for ring in rings):
            answers.add("ring")
        else:
            raise WrongAnswer(
                "election",
                "tokens beyond the capacity give neither more slots, nor a ring, nor an error",
            )
    if len(answers) > 1:
        raise WrongAnswer(
            "election", f"tokens beyond the capacity give {' and '.join(sorted(answers))}"
        )
    if answers == {"raises"}:
        _require_use_after_refusal(p)
    return answers.pop()


def _require_use_after_refusal(p: Probe) -> None:
    """Raise WrongAnswer "election" if a refused chunk changes later answers: a cache that raises beyond
    its capacity must keep its former tokens, and take later ones."""
    for inputs in _supported_inputs(p, REFUSED, {"overflow", "rollback"}):
        call = p.implementation.refusing(inputs)
        if call is None:
            continue
        judged_rows = np.ones((inputs.sizes.B, inputs.sizes.Lq), bool)
        for action, next_action in pairwise(actions(inputs.case)):
            if isinstance(action, Chunk) and isinstance(next_action, Crop):
                judged_rows[np.array(action.sample_ids)[:, None], action.rows] = False
        got = p.values(inputs, may_lack=True, prepared=call)
        shape = (len(judged_rows), inputs.sizes.H, judged_rows.shape[1])
        where = np.broadcast_to(judged_rows[:, None], shape)
        if got is None or not p.matches(got, inputs.replace(capacity=None), where=where):
            raise WrongAnswer(
                "election",
                "a cache that raises for tokens beyond its capacity does not go on with those before",
            )


def _supported_inputs(
    p: Probe, scripts: tuple[str, ...], allowed: Collection[str] = ()
) -> Iterator[Inputs]:
    """Yields the inputs of the scripts that the implementation supports. The features `allowed` need not
    be supported. Raises NotApplicable if no script is supported."""
    reasons = []
    for script in scripts:
        inputs = p.draw(script)
        # The nearest case has more slots. On a GPU an index beyond them would end the process.
        if "overflow" in allowed and p.implementation.backend.device == "cpu":
            inputs = inputs.replace(capacity=SLOTS)
        needs = [word for word in inputs.needs if word not in allowed]
        reason = p.implementation.missing(needs)
        if reason is None:
            yield inputs
        else:
            reasons.append(reason)
    if len(reasons) == len(scripts):
        raise NotApplicable(reasons[0])


PROBES: dict[str, Callable[[Probe], str]] = {
    "nan-in-freed-slot": _probe_nan_in_freed_slot,
    "beyond-capacity": _probe_beyond_capacity,
}
"""The probe of each question: it returns the name of the implementation's answer."""

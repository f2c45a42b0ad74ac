"""The choice of how the variables of a user's layer are read, if they fit the canonical parameters in
several ways.

Only the reference distinguishes the ways: each is tried on one case, and the first right one is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import ENDS
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw


def settle(
    layer: Any, cases: Sequence[Case], call_context: Callable[[Case], AbstractContextManager[None]]
) -> None:
    """Choose the way in which the variables of a layer are read: the first way that gives a right answer
    to the first of the cases, or else the way whose answer is closest (`choose(way, False)`). Does
    nothing if there are fewer than two ways. `call_context` makes the context of the calls on a case. May
    raise TimeOver."""
    ways = getattr(layer, "choices", 0)
    if ways < 2 or not cases:
        return
    errors = []
    for way in range(ways):
        layer.choose(way)
        with call_context(cases[0]):
            errors.append(mean_error(layer, cases[0]))
        if not errors[-1]:
            return
    layer.choose(errors.index(min(errors)), False)


def mean_error(layer: Any, case: Case) -> float:
    """The mean error of the output for a case: 0.0 if the output is right, infinite if a call raises.
    Raises TimeOver."""
    inputs, probe = draw(case), Probe(layer, case.dtype)
    try:
        got = probe.values(inputs)
    except ENDS:
        raise
    except BaseException:
        return np.inf
    if got is None:
        return np.inf
    if probe.matches(got, inputs):
        return 0.0
    expected = Oracle.forward(inputs, probe.rounding).expected["output"].value
    error = float(np.abs(got - expected.astype(np.float64)).mean())
    return error if np.isfinite(error) else np.inf

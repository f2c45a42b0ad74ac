"""Choose which variable of a user's layer is which canonical parameter, if several assignments fit.

Only the reference distinguishes the assignments: each is tried on one case, and the first right one is
chosen.
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
    """Choose the assignment of a layer's variables to parameters: the first one with a right answer to
    `cases[0]`, or else the one with the closest answer (`layer.choose(number, False)`). Does nothing for
    fewer than two assignments, or without cases. `call_context` makes the context of the calls on a
    case. Raises TimeOver if the context does."""
    assignment_count = getattr(layer, "choices", 0)
    if assignment_count < 2 or not cases:
        return
    errors = []
    for number in range(assignment_count):
        layer.choose(number)
        with call_context(cases[0]):
            errors.append(mean_error(layer, cases[0]))
        if not errors[-1]:
            return
    layer.choose(errors.index(min(errors)), False)


def mean_error(layer: Any, case: Case) -> float:
    """Returns the mean absolute error of the output for a case: 0.0 if the output is right, infinity if
    the call raises or the error is not finite. Raises TimeOver."""
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

"""How a user's layer is read whose variables may be the canonical parameters in several ways.

Only the reference tells these ways apart: each is tried on one case, and the first right one is taken.
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
    layer: Any, cases: Sequence[Case], calling: Callable[[Case], AbstractContextManager[None]]
) -> None:
    """Choose how the variables of a layer are read: in the first way that gives a right answer to the
    first of the cases. If none does, in the way whose answer is closest, and `choose` is told so. Does
    nothing for implementations without such a choice. May raise TimeOver."""
    count = getattr(layer, "choices", 0)
    if count < 2 or not cases:
        return
    errors = []
    for number in range(count):
        layer.choose(number)
        with calling(cases[0]):
            errors.append(error_of(layer, cases[0]))
        if not errors[-1]:
            return
    layer.choose(errors.index(min(errors)), False)


def error_of(layer: Any, case: Case) -> float:
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

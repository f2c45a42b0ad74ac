"""How a user's layer is read whose variables may be the canonical parameters in several ways.

Only the reference tells these ways apart: each is tried on one case, and the first right one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from backends.protocol import ENDS, TimeOver
from suite.judge.elections.probe import Probe
from suite.spec.case import Case
from suite.spec.inputs import draw


def settle(
    layer: Any, cases: Sequence[Case], calling: Callable[[Case], AbstractContextManager[None]]
) -> None:
    """Choose how the variables of a layer are read: in the first way that gives a right answer to the
    first of the cases. If none does, the likeliest way stays, and `choose` is told so. Does nothing for
    implementations without such a choice. May raise TimeOver."""
    count = getattr(layer, "choices", 0)
    if count < 2 or not cases:
        return
    for number in range(count):
        layer.choose(number)
        with calling(cases[0]):
            if answers(layer, cases[0]):
                return
    layer.choose(0, False)


def answers(layer: Any, case: Case) -> bool:
    """True if the output for a case is right. Raises TimeOver."""
    inputs, probe = draw(case), Probe(layer, case.dtype)
    try:
        got = probe.values(inputs)
    except (TimeOver, *ENDS):
        raise
    except BaseException:
        return False
    return got is not None and probe.matches(got.reshape(inputs.full_shape("output")), inputs)

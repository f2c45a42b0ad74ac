"""Refusals: by which errors a person's function refuses a case. Any other error is a failure."""

from __future__ import annotations

import re

from backends.protocol import Implementation
from suite.judge.verdict import Deviation, Refused, first_line

ACCIDENT = re.compile(
    r"\(\) (got|missing|takes|received) |\(\): argument '|truth value|interpret value of type"
)
"""What Python and the frameworks say of calls inside a function, by words that its own arguments are
called, too."""

RULE = "only NotImplementedError, or a {} that names an argument ({}), refuses a case"


def refuses(implementation: Implementation, error: BaseException) -> bool:
    """Whether an error refuses the call: NotImplementedError, or an error of validation. One that a
    person's function raises names an argument; arguments of one letter have names of axes, and count for
    none."""
    error = implementation.backend.raised_inside(error)
    if isinstance(error, NotImplementedError):
        return True
    if not isinstance(error, implementation.backend.validation_errors):
        return False
    if not implementation.declared.is_user_code:
        return True
    text = first_line(error).partition(": ")[2]
    names = (name for name in implementation.argument_names if len(name) > 1)
    return not ACCIDENT.search(text) and any(re.search(rf"\b{n}\b", text) for n in names)


def outcome(implementation: Implementation, error: BaseException) -> Deviation | Refused:
    """What a cell raises whose call raised an error: Refused where a person's function refuses by it."""
    if implementation.declared.is_user_code and refuses(implementation, error):
        inside = implementation.backend.raised_inside(error)
        return Refused(f"the function refuses: {first_line(inside)}")
    return accident(implementation, error)


def accident(implementation: Implementation, error: BaseException) -> Deviation:
    """The failure of a call that raised what is no refusal."""
    line = first_line(error)
    if not implementation.declared.is_user_code:
        return Deviation("raised", line)
    types = " or ".join(kind.__name__ for kind in implementation.backend.validation_errors)
    names = ", ".join(name for name in implementation.argument_names if len(name) > 1)
    return Deviation("raised", f"{line}; {RULE.format(types, names)}")

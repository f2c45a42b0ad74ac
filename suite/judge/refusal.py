"""Refusals: the errors by which a user function refuses a case. Any other error is a failure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from attention_conformance.backends.protocol import ENDS, ForbiddenCall, Implementation, NoKernel
from attention_conformance.suite.judge.verdict import Refused, WrongAnswer, first_line

INSIDE_ERROR = re.compile(
    r"\(\) (got|missing|takes|received) |\(\): argument '|truth value|interpret value of type"
)
"""Messages of Python and of frameworks about calls inside a function. They are no refusals, though they
may contain names of the function's arguments."""

REFUSAL_RULE = "only NotImplementedError, or a {} that names an argument ({}), refuses a case"


def refuses(implementation: Implementation, error: BaseException) -> bool:
    """True if an error refuses the call: NotImplementedError, or a validation error. A user function's
    validation error must name an argument. Arguments of one letter do not count, because messages name
    axes so."""
    error = implementation.backend.raised_inside(error)
    if isinstance(error, NotImplementedError):
        return True
    if not isinstance(error, implementation.backend.validation_errors):
        return False
    if not implementation.declared.is_user_code:
        return True
    text = first_line(error).partition(": ")[2]
    names = (name for name in implementation.argument_names if len(name) > 1)
    return not INSIDE_ERROR.search(text) and any(re.search(rf"\b{n}\b", text) for n in names)


def outcome(implementation: Implementation, error: BaseException) -> WrongAnswer | Refused:
    """Returns the exception that a check raises for a call that raised `error`:

    - WrongAnswer "forbidden" if the function made a forbidden call
    - Refused if a forced kernel cannot answer, or a user function refuses by this error
    - WrongAnswer "raised" for any other error
    """
    inside = implementation.backend.raised_inside(error)
    if isinstance(inside, ForbiddenCall):
        return WrongAnswer("forbidden", str(inside))
    if isinstance(inside, NoKernel):
        return Refused(str(inside))
    if implementation.declared.is_user_code and refuses(implementation, error):
        return Refused(f"the function refuses: {first_line(inside)}")
    return raised_deviation(implementation, error)


def call_returns(call: Callable[[], Any]) -> bool:
    """Calls `call`. True if it returns, False if it raises."""
    try:
        call()
    except ENDS:
        raise
    except BaseException:
        return False
    return True


def stale_deviation(refused: Refused) -> WrongAnswer:
    """WrongAnswer "stale", for a call that is refused once and answered once."""
    return WrongAnswer(
        "stale", f"the same call was answered, and refused ({refused}): do one of both"
    )


def raised_deviation(implementation: Implementation, error: BaseException) -> WrongAnswer:
    """WrongAnswer "raised", for an error that is no refusal."""
    line = first_line(error)
    if not implementation.declared.is_user_code:
        return WrongAnswer("raised", line)
    types = " or ".join(kind.__name__ for kind in implementation.backend.validation_errors)
    names = ", ".join(name for name in implementation.argument_names if len(name) > 1)
    return WrongAnswer("raised", f"{line}; {REFUSAL_RULE.format(types, names)}", what=line)

"""Verdicts: the result of judging one cell, and the exceptions that end a check."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from attention_conformance.backends.protocol import ENDS
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import KINDS, STATUSES


class WrongAnswer(Exception):
    """A broken promise.

    - `kind`: one of `KINDS`
    - `measured`: the figures of the comparison that failed, if there was one
    - `where`: the names of the wrong parts, if a check tests several parts
    - `what`, `advice`: the fault, and how to correct it, if the message has both
    """

    def __init__(
        self,
        kind: str,
        message: str,
        measured: Measured | None = None,
        where: tuple[str, ...] = (),
        what: str = "",
        advice: str = "",
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; valid: {', '.join(KINDS)}")
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.measured = measured or Measured()
        self.where, self.what, self.advice = where, what or message, advice


class HarnessError(Exception):
    """The harness or an adapter broke: the implementation was not judged."""


class NotApplicable(Exception):
    """The implementation lacks a needed feature, or elects to give no answer: the cell is
    unsupported."""


class Refused(NotApplicable):
    """A user function refuses a case that its signature and its claims allow."""


def text_of(value: object) -> str:
    """Returns `str(value)`, or a replacement if `__str__` raises."""
    try:
        return str(value)
    except ENDS:
        raise
    except BaseException as raised:
        return f"(its text raises {type(raised).__name__})"


def first_line(error: BaseException) -> str:
    """Returns an exception in one line: its type, and up to 300 characters of its first line. Further
    lines are notes and tracebacks. Errors of TensorFlow's functions end with the cause, so of these the
    last line is taken."""
    lines = text_of(error).strip().splitlines() or [""]
    text = lines[-1].strip() if lines[0].endswith("in user code:") else lines[0]
    return f"{type(error).__name__}: {text[:300]}"


@dataclass
class Measured:
    """Figures of a cell, filled in while it is judged; None or "" for figures that were not measured.

    - `ratios`: error ratios of gradients, by operand
    - `kernels`: the kernels that ran, in the framework's own words
    - `observed`: the answer to an election question, or a grade of invariance
    """

    error_ratio: float | None = None
    rms: float | None = None
    max_abs_error: float | None = None
    grade: str = ""
    observed: str = ""
    native: str = ""
    kernels: str = ""
    ratios: dict[str, float] = field(default_factory=dict)

    def worst_of(self, other: Measured) -> None:
        """Replace the figures by those of another comparison of the same cell if its error ratio is
        larger."""
        if other.error_ratio is not None and (
            self.error_ratio is None or not other.error_ratio <= self.error_ratio
        ):
            self.error_ratio = other.error_ratio
            self.max_abs_error = other.max_abs_error
            self.rms, self.grade = other.rms, other.grade

    def worst_of_operand(self, operand: str, other: Measured) -> None:
        """As `worst_of`, for the gradient of one operand. Also sets `ratios[operand]` to the larger error
        ratio."""
        self.worst_of(other)
        ratio = other.error_ratio
        if ratio is not None and not ratio <= self.ratios.get(operand, -math.inf):
            self.ratios[operand] = ratio


@dataclass(frozen=True)
class Verdict:
    """The result of judging a cell.

    - `status`, and `kind` of a failure ("" for a pass)
    - `message`: for people, made `printable`
    - `measured`: the figures; `seconds`: the time
    - `inherited`: the finding that makes a failure of a user function known; "" for none
    - `where`: the lines of the check that failed, and then `WrongAnswer.where`
    - `what`, `advice`: as in `WrongAnswer`
    """

    status: str
    kind: str = ""
    message: str = ""
    measured: Measured = field(default_factory=Measured)
    seconds: float = 0.0
    inherited: str = ""
    where: tuple[str, ...] = ()
    what: str = ""
    advice: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; valid: {', '.join(STATUSES)}")
        object.__setattr__(self, "message", printable(self.message))

"""Verdicts: what came out of judging one cell, and the exceptions that carry a deviation."""

from __future__ import annotations

from dataclasses import dataclass, field

STATUSES = ("pass", "fail", "known", "unsupported", "error", "crash")
"""Every cell ends in exactly one of these."""

KINDS = {
    "value": "an element is further from the oracle than rounding explains",
    "non-finite": "NaN or infinity where the oracle is finite, or the reverse",
    "type": "the answer is not an array of the framework under test",
    "shape": "the answer has another shape than the problem asks for",
    "dtype": "the answer has another dtype than the inputs",
    "device": "the answer is on another device than the inputs",
    "mutated-input": "an input was changed by the call",
    "not-deterministic": "a second call on the same inputs gave other bits",
    "overwritten": "a later call changed an earlier answer",
    "leak": "what the mask hides has influence",
    "unequal": "two forms of one problem give answers further apart than rounding explains",
    "no-gradient": "an operand that the answer hangs on got no gradient",
    "dropout": "dropout keeps, scales or repeats otherwise than its rate and seed say",
    "raised": "the framework raised on a problem it does not declare unsupported",
    "no-raise": "a bad problem was answered silently",
    "election": "the observed answer is not the declared one",
    "stale-claim": "a declared refusal that in fact computes the right answer",
    "unexpected-pass": "an expected failure passed",
    "other-failure": "an expected failure failed in another way",
    "crash": "the process running the cell died",
    "timeout": "the cell ran longer than allowed",
    "harness": "the adapter or the harness broke",
}


class Deviation(Exception):
    """An answer that is not what was asked for. `kind` is one of KINDS."""

    def __init__(self, kind: str, message: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; valid: {', '.join(KINDS)}")
        super().__init__(message)
        self.kind = kind
        self.message = message


class HarnessError(Exception):
    """The harness or an adapter broke: the implementation was not judged."""


class NotElected(Exception):
    """The cell asks for what the implementation lacks or elects not to do: it is unsupported."""


@dataclass
class Measured:
    """Figures of a cell, filled in while it is judged; None where nothing was measured."""

    error_ratio: float | None = None
    rms: float | None = None
    max_abs_error: float | None = None
    grade: str = ""
    observed: str = ""

    def worst_of(self, other: Measured) -> None:
        """Take over the larger figures of another comparison of the same cell."""
        if other.error_ratio is not None and (
            self.error_ratio is None or not other.error_ratio <= self.error_ratio
        ):
            self.error_ratio = other.error_ratio
            self.max_abs_error = other.max_abs_error
            self.rms, self.grade = other.rms, other.grade


@dataclass(frozen=True)
class Verdict:
    """Status, kind ("" for pass), message for people, and the figures."""

    status: str
    kind: str = ""
    message: str = ""
    measured: Measured = field(default_factory=Measured)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"unknown status {self.status!r}; valid: {', '.join(STATUSES)}")

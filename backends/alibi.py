"""ALiBi that an implementation makes itself, in place of the bias that a case brings."""

from __future__ import annotations

from suite.spec.case import Case
from suite.spec.catalogue import AnyCase

REFUSED = {
    "gradient-of-bias": "the bias is no argument",
    "other-shapes": "the bias is that of all heads and keys",
}
"""What an implementation that makes its bias cannot be asked, whatever the case."""


def refusal(case: AnyCase) -> str | None:
    """Why an implementation that adds slope (k - Lk + 1), or that and a number, cannot be asked a case;
    None where it can."""
    numbered = isinstance(case, Case) and case.option("bias") == "alibikeys"
    return None if numbered else "its bias is an ALiBi of numbered keys, and no other"

"""Compare two arrays: an answer with its oracle, or two answers to one problem."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.tolerance import ratios
from attention_conformance.suite.judge.verdict import HarnessError, Measured, WrongAnswer
from attention_conformance.suite.spec.dtypes import DType


def first_index(flags: np.ndarray) -> tuple[int, ...]:
    """Returns the index of the first element of a boolean array that is True."""
    return tuple(int(i) for i in np.argwhere(flags)[0])


def against_oracle(
    got: np.ndarray, want: np.ndarray, limit: np.ndarray, judged: np.ndarray, fmt: DType,
    numerics: str, label: str = "", axes: str = "",
) -> tuple[np.ndarray, Measured, WrongAnswer | None]:  # fmt: skip
    """Compare `got` with `want`, with a `limit` of the error of every element. All arrays have one shape.

    Returns the errors (0 where `judged` is False), the figures of the comparison, and a WrongAnswer
    "value" with the worst element; None in its place if every element is within its limit. `label` names
    the answer in messages, `axes` are the letters of its axes. Raises WrongAnswer "non-finite", and
    HarnessError if a judged element of `want` is NaN."""
    unknown = np.isnan(want) & judged
    if unknown.any():
        raise HarnessError(f"the oracle is NaN at {first_index(unknown)}: the case is ill-posed")
    got, want, limit = (np.where(judged, x, 0.0) for x in (got, want, limit))
    # Beyond the largest finite number of the dtype infinity is the right answer.
    with np.errstate(over="ignore"):
        largest_right = np.abs(want) + limit
    wrong = ~np.isfinite(got) & (got != want)
    wrong &= ~(np.isinf(got) & (np.sign(got) == np.sign(want)) & (largest_right > fmt.max))
    if wrong.any():
        index = first_index(wrong)
        raise WrongAnswer(
            "non-finite",
            f"{label}element {index}: got {float(got[index])!r}, want {float(want[index]):.9g}; "
            f"{int(wrong.sum())} of {wrong.size} elements are not finite",
        )
    with np.errstate(invalid="ignore"):
        error = np.where(np.isfinite(got), got - want, 0.0)
    ratio = ratios(error, limit)
    worst = float(ratio.max(initial=0.0))
    measured = Measured(error_ratio=worst, max_abs_error=float(np.abs(error).max(initial=0.0)))
    if not ratio.size or worst <= 1.0:
        return error, measured, None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    letters = axes if len(axes) == ratio.ndim else ""
    place = ", ".join(map("{}={}".format, letters, index)) if letters else str(index)[1:-1]
    digits = 17 if fmt.name == "f64" else 9
    return error, measured, WrongAnswer(
        "value",
        f"{label}element ({place}): got {float(got[index]):.{digits}g}, "
        f"want {float(want[index]):.{digits}g}, |error| {abs(float(error[index])):.3g}, "
        f"bound {float(limit[index]):.3g} ({numerics}), ratio {float(ratio[index]):.3g}; "
        f"{int((ratio > 1).sum())} of {ratio.size} elements beyond their bound",
        measured,
    )  # fmt: skip


def expect_bitwise(got: np.ndarray, want: np.ndarray, kind: str, label: str) -> None:
    """Raise WrongAnswer `kind` unless two arrays are bitwise equal (NaN equals NaN)."""
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    if not equal.all():
        index = first_index(~equal)
        raise WrongAnswer(
            kind,
            f"{label}: element {index} changed from {float(want[index])!r} to {float(got[index])!r}; "
            f"{int((~equal).sum())} of {equal.size} elements differ",
        )


def expect_close(got: np.ndarray, want: np.ndarray, limit: np.ndarray, label: str) -> None:
    """Raise WrongAnswer "unequal" if two answers to one problem differ by more than `limit`, the sum of
    their bounds."""
    both_nan = np.isnan(got) & np.isnan(want)
    difference = np.where(both_nan | (got == want), 0.0, np.abs(got - want))
    unequal = ~(difference <= limit)
    if unequal.any():
        excess = np.where(np.isnan(difference), np.inf, difference - limit)
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        raise WrongAnswer(
            "unequal",
            f"{label}: element {index} is {float(got[index])!r} in one form, {float(want[index])!r} in "
            f"the other; bounds allow a difference of {float(limit[index]):.3g}; "
            f"{int(unequal.sum())} of {unequal.size} elements differ by more",
        )

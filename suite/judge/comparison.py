"""Compare two arrays: an answer with its oracle, or two answers to one problem."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.tolerance import ratios
from attention_conformance.suite.judge.verdict import Deviation, HarnessError, Measured
from attention_conformance.suite.spec.dtypes import DType


def first(where: np.ndarray) -> tuple[int, ...]:
    """The index of the first element that is True."""
    return tuple(int(i) for i in np.argwhere(where)[0])


def against_oracle(
    got: np.ndarray, want: np.ndarray, limit: np.ndarray, judged: np.ndarray, fmt: DType,
    numerics: str, what: str = "", axes: str = "",
) -> tuple[np.ndarray, Measured, Deviation | None]:  # fmt: skip
    """The error of an answer (0 where `judged` is False), its figures, and the Deviation "value" with
    the worst element if an element exceeds its limit.

    `what` names the answer in messages, `axes` are the letters of its axes. Raises Deviation
    "non-finite", and HarnessError if a judged element of `want` is NaN.
    """
    blank = np.isnan(want) & judged
    if blank.any():
        raise HarnessError(f"the oracle is NaN at {first(blank)}: the case is ill-posed")
    got, want, limit = (np.where(judged, x, 0.0) for x in (got, want, limit))
    # Beyond the largest finite number of the dtype infinity is the right answer.
    with np.errstate(over="ignore"):
        reach = np.abs(want) + limit
    wrong = ~np.isfinite(got) & (got != want)
    wrong &= ~(np.isinf(got) & (np.sign(got) == np.sign(want)) & (reach > fmt.max))
    if wrong.any():
        at = first(wrong)
        raise Deviation(
            "non-finite",
            f"{what}element {at}: got {float(got[at])!r}, want {float(want[at]):.9g}; "
            f"{int(wrong.sum())} of {wrong.size} elements are not finite",
        )
    with np.errstate(invalid="ignore"):
        error = np.where(np.isfinite(got), got - want, 0.0)
    ratio = ratios(error, limit)
    worst = float(ratio.max(initial=0.0))
    measured = Measured(error_ratio=worst, max_abs_error=float(np.abs(error).max(initial=0.0)))
    if not ratio.size or worst <= 1.0:
        return error, measured, None
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    named = axes if len(axes) == ratio.ndim else ""
    place = (
        ", ".join(f"{n}={i}" for n, i in zip(named, at, strict=True)) if named else str(at)[1:-1]
    )
    digits = 17 if fmt.name == "f64" else 9
    return error, measured, Deviation(
        "value",
        f"{what}element ({place}): got {float(got[at]):.{digits}g}, "
        f"want {float(want[at]):.{digits}g}, |error| {abs(float(error[at])):.3g}, "
        f"bound {float(limit[at]):.3g} ({numerics}), ratio {float(ratio[at]):.3g}; "
        f"{int((ratio > 1).sum())} of {ratio.size} elements beyond their bound",
        measured,
    )  # fmt: skip


def expect_bitwise(got: np.ndarray, want: np.ndarray, kind: str, what: str) -> None:
    """Raise Deviation `kind` unless two arrays are bitwise equal (NaN equals NaN)."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if not same.all():
        at = first(~same)
        raise Deviation(
            kind,
            f"{what}: element {at} changed from {float(want[at])!r} to {float(got[at])!r}; "
            f"{int((~same).sum())} of {same.size} elements differ",
        )


def expect_close(got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str) -> None:
    """Raise Deviation "unequal" if two answers to one problem differ by more than `limit`, the sum of
    their bounds."""
    both_nan = np.isnan(got) & np.isnan(want)
    difference = np.where(both_nan | (got == want), 0.0, np.abs(got - want))
    beyond = ~(difference <= limit)
    if beyond.any():
        excess = np.where(np.isnan(difference), np.inf, difference - limit)
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
        raise Deviation(
            "unequal",
            f"{what}: element {at} is {float(got[at])!r} in one form, {float(want[at])!r} in "
            f"the other; bounds allow a difference of {float(limit[at]):.3g}; "
            f"{int(beyond.sum())} of {beyond.size} elements differ by more",
        )

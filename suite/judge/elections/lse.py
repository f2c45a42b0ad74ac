"""The log-sum-exp of fully masked rows: names of its values, and which of them agree with an output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LOWEST = -6e4
"""A lower log-sum-exp comes from scores that a mask replaced by the lowest number of a dtype (-65504 in
float16), or added to it. In a merge its row weighs nothing."""

MERGES = ("minus-inf", "lowest", "raises")
"""Log-sum-exps with which a fully masked row weighs nothing in a merge, or has none to be merged."""

AGREES = {
    "zeros": MERGES, "uniform": MERGES, "nan": (*MERGES, "nan"), "unmasked": (*MERGES, "all-keys"),
    "raises": ("raises",),
}  # fmt: skip
"""The log-sum-exps of a fully masked row that agree with its output."""

VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "minus-inf": np.isneginf,
    "plus-inf": np.isposinf,
    "nan": np.isnan,
    "lowest": lambda lse: np.isfinite(lse) & (lse < LOWEST),
    "zero": lambda lse: lse == 0,
}
"""Functions that find the elements of a log-sum-exp with a value that depends on no key, by the value's
name."""


def value_name(lse: np.ndarray) -> str:
    """Returns the name in `VALUES` of the value that all elements have, or ""."""
    return next((name for name, has in VALUES.items() if has(lse).all()), "")

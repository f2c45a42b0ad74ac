"""What every reference takes and returns: arrays in the precision of the reference, and `Outputs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from references.rounding import Bounded, precision_for
from suite.spec.inputs import Inputs

EMPTY_ROWS = ("zeros", "nan", "uniform")
"""What a row without keys answers: zeros, NaN, or the mean of all values."""

EMPTY_ROW_GRADIENTS = ("zeros", "uniform", "scores")
"""What a row without keys is to a derivative: zeros, which take no gradient; the mean of all values, with
weights that are constants, so that values alone take its cotangent; or the same mean with scores that are
equal, since what hides them absorbed them, and that take gradients like any others."""


@dataclass(frozen=True)
class Outputs:
    """What an operator returns, or its gradients by the names of the arrays, each with its bound.

    `keys` (B, H, Lq) counts the keys that a row attends, sinks not among them; ones where nothing is
    attended to. `sunk` (H, 1) says which heads have a finite sink: their rows without keys answer 0 and
    follow no election. `deviation` is the standard deviation of the output's error where every rounding
    is random; only plain attention in 16 bits has one.
    """

    arrays: dict[str, Bounded]
    keys: np.ndarray
    deviation: np.ndarray | None = None
    sunk: np.ndarray = field(default_factory=lambda: np.zeros((1, 1), bool))

    @property
    def empty(self) -> np.ndarray:
        """Rows (B, H, Lq) that have no key, and are what the implementation elects."""
        return (self.keys == 0) & ~self.sunk


def wide(inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Arrays by name, the inputs' own by default, in the precision of their reference.

    Raises NoExtendedPrecision where float64 cannot be judged on this platform.
    """
    precision = precision_for(inputs.dtype)
    taken = inputs.arrays if arrays is None else arrays
    return {name: np.asarray(array).astype(precision) for name, array in taken.items()}


def moving(inputs: Inputs, tangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tangents by name, wide.

    Raises ValueError for the tangent of an array that the inputs do not have, or of a statistic.
    """
    for name in tangents:
        if name in inputs.operator.array_kinds.constants:
            raise ValueError(f"{name} is a constant of {inputs.operator}: it has no tangent")
        if name not in inputs.arrays:
            raise ValueError(
                f"{inputs.operator} has no array {name!r} to move; it has {', '.join(inputs.arrays)}"
            )
    return wide(inputs, tangents)


def check_empty_rows(empty_rows: str, valid: tuple[str, ...]) -> None:
    """Raises ValueError where `empty_rows` is none of `valid`."""
    if empty_rows not in valid:
        raise ValueError(f"empty_rows must be one of {', '.join(valid)}, got {empty_rows!r}")

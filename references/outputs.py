"""The arrays that every reference takes, in its precision, and the `Outputs` that it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attention_conformance.references.rounding import Bounded, precision_for
from attention_conformance.suite.spec.inputs import Inputs

EMPTY_ROWS = ("zeros", "nan", "uniform")
"""Output of a fully masked row, which is implementation-defined (an election): zeros, NaN, or the mean
of all values."""

EMPTY_ROW_GRADIENTS = ("zeros", "uniform", "scores")
"""How derivatives treat a fully masked row:

- zeros: the row takes no gradient.
- uniform: the mean of all values with constant weights. Only the values receive gradients.
- scores: the mean of all values with equal scores, which receive gradients, too.
"""


@dataclass(frozen=True)
class Outputs:
    """Outputs of an operator, or gradients by array name, each with its bound.

    - `keys` (B, H, Lq): number of attended keys per row, without a sink (a key of value 0); ones for
      operators without keys.
    - `has_sink` (H, 1): True for heads with a finite score of a sink. Rows of these heads
      without other keys give 0 and follow no election.
    - `deviation`: standard deviation of the output's error for random rounding; only for sdpa, merge
      and packed in 16 bits.
    """

    arrays: dict[str, Bounded]
    keys: np.ndarray
    deviation: np.ndarray | None = None
    has_sink: np.ndarray = field(default_factory=lambda: np.zeros((1, 1), bool))

    @property
    def empty(self) -> np.ndarray:
        """Fully masked rows (B, H, Lq) that follow the implementation's election."""
        return (self.keys == 0) & ~self.has_sink


def in_precision(
    inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Returns `arrays` by name (default: the arrays of the inputs) in the precision of the reference.

    Raises NoExtendedPrecision if float64 cannot be judged on this platform.
    """
    precision = precision_for(inputs.dtype)
    arrays = inputs.arrays if arrays is None else arrays
    return {name: np.asarray(array).astype(precision) for name, array in arrays.items()}


def checked_tangents(inputs: Inputs, tangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tangents by name, in the precision of the reference.

    Raises ValueError for tangents of arrays that the inputs lack, and of constants.
    """
    for name in tangents:
        if name in inputs.operator.array_kinds.constants:
            raise ValueError(f"{name} is a constant of {inputs.operator}: pass no tangent for it")
        if name not in inputs.arrays:
            raise ValueError(
                f"{inputs.operator} has no array {name!r}; choose from {', '.join(inputs.arrays)}"
            )
    return in_precision(inputs, tangents)


def check_empty_rows(empty_rows: str, valid: tuple[str, ...]) -> None:
    """Raises ValueError unless `empty_rows` is one of `valid`."""
    if empty_rows not in valid:
        raise ValueError(f"empty_rows must be one of {', '.join(valid)}, got {empty_rows!r}")

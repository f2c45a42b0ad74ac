"""What every reference takes and returns: arrays in the precision of the reference, and `Outputs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from references.rounding import Bounded, Roundoffs, gamma, precision_for, stored
from suite.spec.inputs import Inputs


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


class Reference(Protocol):
    """What a module of an operator has (see `references.of`)."""

    def forward(
        self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros"
    ) -> Outputs: ...

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
    ) -> Outputs: ...

    def jvp(
        self,
        inputs: Inputs,
        tangents: Mapping[str, np.ndarray],
        rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs: ...


def wide(inputs: Inputs, arrays: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Arrays by name, the inputs' own by default, in the precision of their reference.

    Raises NoExtendedPrecision where float64 cannot be judged on this platform.
    """
    precision = precision_for(inputs.dtype)
    taken = inputs.arrays if arrays is None else arrays
    return {name: np.asarray(array).astype(precision) for name, array in taken.items()}


def moving(inputs: Inputs, tangents: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tangents by name, wide; where query, key and value are one tensor, the query's is all three's.

    Raises ValueError for the tangent of an array that the inputs do not have, or of a statistic.
    """
    for name in tangents:
        if name in inputs.operator.constants:
            raise ValueError(f"{name} is a constant of {inputs.operator}: it has no tangent")
        if name not in inputs.arrays:
            raise ValueError(
                f"{inputs.operator} has no array {name!r} to move; it has {', '.join(inputs.arrays)}"
            )
    moved = wide(inputs, tangents)
    if inputs.self_attention and "query" in moved:
        moved |= {"key": moved["query"], "value": moved["query"]}
    return moved


def layer_outputs(
    inputs: Inputs, output: Bounded, weights: Bounded, keys: np.ndarray, u: Roundoffs
) -> Outputs:
    """Those of a layer with weights (B, H, Lq, Lk), returned where they are asked for, averaged over the
    heads where that is asked."""
    arrays = {"output": output}
    if inputs.returned == "average":
        weights = averaged(weights, 1, u)
    if inputs.returned != "none":
        arrays["weights"] = weights.reshape(*inputs.full_shape("weights"))
    return Outputs(arrays, keys)


def averaged(x: Bounded, axis: int, u: Roundoffs) -> Bounded:
    """The mean over an axis, summed in the accumulator or stored step by step in the case's dtype."""
    n = x.shape[axis]
    unit = max(u.accumulate, u.step)
    error = x.error.mean(axis) + gamma(n + 1, unit) * x.size.mean(axis)
    return stored(Bounded(x.value.mean(axis), error), u.output, u.floor)

"""Steps on scores: what the features of attention reduce to (`suite.spec.features.feature.STEPS`).

A step y = f(x) multiplies the errors of the scores x by its slope |f'(x)|, and adds its own roundings,
which are relative to a size: |y|, or the size of an added bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from references.rounding import Roundoffs
from suite.spec.features import FEATURES
from suite.spec.features.feature import STEPS

Stepped = tuple[np.ndarray, np.ndarray, np.ndarray]
"""New scores, slope and size, all broadcastable to (B, H, Lq, Lk)."""


def factor(x: np.ndarray, f: np.ndarray) -> Stepped:
    y = x * f
    return y, np.abs(f), np.abs(y)


def cap(x: np.ndarray, c: float) -> Stepped:
    h = np.tanh(x / c)
    y = c * h
    return y, 1 - np.square(h), np.abs(y)


def bias(x: np.ndarray, b: np.ndarray) -> Stepped:
    return x + b, np.ones(()), np.abs(b)


ON_SCORES: Mapping[str, Callable[[np.ndarray, Any], Stepped]] = {
    "factor": factor, "cap": cap, "bias": bias,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """The step of the feature `name`: `to`, `accumulate` and `score` of its `Reduction`, and the operand,
    a number or an array that broadcasts to (B, H, Lq, Lk)."""

    name: str
    to: str
    accumulate: int
    score: int
    operand: Any

    def on(self, x: np.ndarray, rows: slice) -> Stepped:
        """The step on the scores x of a block of rows."""
        operand = self.operand
        if isinstance(operand, np.ndarray) and operand.shape[2] != 1:
            operand = operand[:, :, rows]
        return ON_SCORES[self.to](x, operand)

    def unit(self, u: Roundoffs) -> float:
        """The relative size of the step's own roundings."""
        return self.accumulate * u.accumulate + self.score * u.score


def steps(
    features: Mapping[str, Any], rows: int, keys: int, precision: type[np.floating[Any]]
) -> list[Step]:
    """The steps of features with their values by name, in the order of the computation. Features that
    are masks or outputs have none."""
    made = []
    for name, value in features.items():
        reduction = FEATURES[name].reduction
        if reduction.to in (*ON_SCORES, "key"):
            wide = value.astype(precision) if isinstance(value, np.ndarray) else value
            operand = reduction.operand(wide, rows, keys)
            made.append(Step(name, reduction.to, reduction.accumulate, reduction.score, operand))
    return sorted(made, key=lambda step: list(STEPS).index(step.to))

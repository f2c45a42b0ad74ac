"""Steps on scores: what the features of attention reduce to (`suite.spec.features.feature.STEPS`).

A step y = f(x) multiplies the errors of the scores x by its slope |f'(x)|, and adds its own roundings,
which are relative to a size: |y|, or the size of an added bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.references.rounding import Roundoffs
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.features.feature import STEPS, Reduction

Stepped = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A step's new scores, its slope, and the size to which its roundings are relative; all broadcastable to
(B, H, Lq, Lk)."""


def factor(x: np.ndarray, f: np.ndarray) -> Stepped:
    """Scores x times an array f."""
    y = x * f
    return y, np.abs(f), np.abs(y)


def cap(x: np.ndarray, c: float) -> Stepped:
    """Returns the softcap c of scores x."""
    h = np.tanh(x / c)
    y = c * h
    return y, 1 - np.square(h), np.abs(y)


def bias(x: np.ndarray, b: np.ndarray) -> Stepped:
    """Scores x plus an array b."""
    return x + b, np.ones(()), np.abs(b)


ON_SCORES: Mapping[str, Callable[[np.ndarray, Any], Stepped]] = {
    "factor": factor, "cap": cap, "bias": bias,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """The step that the feature `name` reduces to. The operand is a number, or an array that broadcasts
    to (B, H, Lq, Lk)."""

    name: str
    reduction: Reduction
    operand: Any

    def on(self, x: np.ndarray, rows: slice) -> Stepped:
        """Returns the step applied to the scores x (B, H, rows, Lk) of the query rows `rows`."""
        operand = self.operand
        if isinstance(operand, np.ndarray) and operand.shape[2] != 1:
            operand = operand[:, :, rows]
        return ON_SCORES[self.reduction.to](x, operand)

    def unit(self, u: Roundoffs) -> float:
        """Returns the relative error of the roundings that the step adds."""
        return self.reduction.accumulate * u.accumulate + self.reduction.score * u.score


def split_steps(
    features: Mapping[str, Any], rows: int, keys: int, precision: type[np.floating[Any]]
) -> tuple[list[Step], Step | None]:
    """Returns the steps on scores, in the order of the computation, and the step of a sink or None.
    `features`: values by name; a value of rank 4 already is the operand of its step. `rows`, `keys`: Lq,
    Lk.
    """
    score_steps = []
    for name, value in features.items():
        reduction = FEATURES[name].reduction
        if reduction.to in (*ON_SCORES, "key"):
            precise = value.astype(precision) if isinstance(value, np.ndarray) else value
            is_operand = np.ndim(precise) == 4
            operand = precise if is_operand else reduction.operand(precise, rows, keys)
            score_steps.append(Step(name, reduction, operand))
    score_steps.sort(key=lambda step: list(STEPS).index(step.reduction.to))
    sink = score_steps.pop() if score_steps and score_steps[-1].reduction.to == "key" else None
    return score_steps, sink

"""Dropout steps that right kernels and layers share."""

from __future__ import annotations

from typing import Any

import numpy as np


class DropoutSteps:
    """Each weight is dropped independently, by random numbers from the call's seed; kept weights are
    divided by 1 - rate. A call has a `rate` and a `seed`."""

    def validate_rate(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate of dropout lies between 0 and 1, got {rate}")

    def random(self, call: Any) -> np.random.Generator:
        """Returns the generator of the dropout pattern."""
        return np.random.default_rng(call.seed)

    def pattern(self, shape: tuple[int, ...], rate: float, call: Any) -> np.ndarray:
        """Returns the dropout pattern of weights of this shape: True for weights that are not dropped."""
        return self.random(call).random(shape) >= rate

    def rescale(self, rate: float) -> float:
        """Returns the factor of weights that are not dropped."""
        return 1.0 / (1.0 - rate) if rate < 1 else 0.0

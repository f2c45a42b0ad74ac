"""How honest kernels and layers drop weights."""

from __future__ import annotations

from typing import Any

import numpy as np


class Drops:
    """Each weight is dropped alone, by numbers from the seed of the call; what is kept is divided by
    1 - rate. A call has a `rate` and a `seed`."""

    def validate_rate(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate of dropout lies between 0 and 1, got {rate}")

    def random(self, call: Any) -> np.random.Generator:
        return np.random.default_rng(call.seed)

    def pattern(self, shape: tuple[int, ...], rate: float, call: Any) -> np.ndarray:
        """Which weights are kept."""
        return self.random(call).random(shape) >= rate

    def rescale(self, rate: float) -> float:
        return 1.0 / (1.0 - rate) if rate < 1 else 0.0

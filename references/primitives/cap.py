"""The softcap of scores, S = cap tanh(T / cap), and the derivative of tanh.

    dT = dS (1 - tanh(T / cap)^2),   S' = T' (1 - tanh(T / cap)^2)

Bounds, in the notation of `references.rounding`; delta bounds an error:

    S        delta T times the slope of the cap (at most 1), plus the roundings of the step, relative to
             |S| (`suite.spec.features.softcap`).
    dT, S'   The slope 1 - h^2 comes from the stored tanh h. If h has the error e, the slope has the error
             (2 |h| + e) e, and rounds. Frameworks multiply and divide by the cap, or compute
             (x + x h) (1 - h), with each step stored like a score.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.rounding import Bounded, Roundoffs, Store, magnitude, stored
from attention_conformance.references.tape import Gradients, Node


class Cap(Node):
    """cap tanh(T / cap), elementwise. `unit`: the relative error of its roundings."""

    def __init__(self, u: Roundoffs, scores: Node, cap: float, unit: float) -> None:
        super().__init__(u, scores)
        self.scores, self.cap, self.unit = scores, cap, unit

    @property
    def shape(self) -> tuple[int, ...]:
        return self.scores.shape

    @cached_property
    def output(self) -> Bounded:
        return self._capped(self.scores.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self._capped(self.scores.recomputed)

    def _capped(self, x: Bounded) -> Bounded:
        h = np.tanh(x.value / self.cap)
        slope = 1 - np.square(magnitude(h))
        # Within the error the slope of tanh grows by at most 2 error / cap, and never above 1.
        slope = np.minimum(slope + 2 * x.error / self.cap, 1.0)
        return stored(Bounded(h * self.cap, x.error * slope), Store(self.unit))

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (self._times_derivative(cotangent),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (scores,) = tangents
        return None if scores is None else self._times_derivative(scores)

    def _times_derivative(self, x: Bounded) -> Bounded:
        tanh = np.tanh(self.scores.recomputed.value / self.cap)
        h = Bounded(tanh, self.recomputed.error / self.cap)
        return times_slope(x, h, self.u, self.u.score_floor)


def times_slope(x: Bounded, h: Bounded, u: Roundoffs, floor: float) -> Bounded:
    """Returns x (1 - h^2), stored: x times the derivative of tanh, for values h of tanh. Each step loses
    up to `floor` by underflow."""
    slope = 1 - np.square(h.value)
    slope_error = (2 * magnitude(h.value) + h.error) * h.error + 2 * u.score + 5 * u.accumulate
    error = x.error * (magnitude(slope) + slope_error) + magnitude(x.value) * slope_error
    return stored(Bounded(x.value * slope, error), Store(5 * (u.score + u.accumulate), 2 * floor))

"""The softcap of scores, S = cap tanh(T / cap), and the derivative of tanh.

    dT = dS (1 - tanh(T / cap)^2),   S' = T' (1 - tanh(T / cap)^2)

Bounds, in the notation of `references.rounding`; delta bounds an error:

    S        delta T times the slope of the cap (at most 1), plus 4 u_acc + u_s of |S|.
    dT, S'   The slope comes from the stored tanh h with error e: 1 - (h + e)^2 has an error of
             (2 |h| + e) e, and rounds. It is computed with a factor before and after (the cap), or as
             (x + x h) (1 - h), each step stored like a score.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.rounding import Bounded, Roundoffs, magnitude, stored
from references.tape import Gradients, Node


class Cap(Node):
    """cap tanh(T / cap), elementwise."""

    def __init__(self, u: Roundoffs, scores: Node, cap: float) -> None:
        super().__init__(u, scores)
        self.scores, self.cap = scores, cap

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
        bend = np.tanh(x.value / self.cap)
        slope = 1 - np.square(magnitude(bend))
        # Within the error the slope of tanh grows by at most 2 error / cap, and never above 1.
        slope = np.minimum(slope + 2 * x.error / self.cap, 1.0)
        out = bend * self.cap
        error = x.error * slope + (4 * self.u.accumulate + self.u.score) * magnitude(out)
        return Bounded(out, error)

    def gradients(self, received: Bounded) -> Gradients:
        return (self._times_derivative(received),)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        (scores,) = moved
        return None if scores is None else self._times_derivative(scores)

    def _times_derivative(self, x: Bounded) -> Bounded:
        bend = np.tanh(self.scores.recomputed.value / self.cap)
        near = Bounded(bend, self.recomputed.error / self.cap)
        return times_slope(x, near, self.u, self.u.score_floor)


def times_slope(x: Bounded, bend: Bounded, u: Roundoffs, floor: float) -> Bounded:
    """x (1 - bend^2), the derivative of tanh from its value `bend`. Each step loses up to `floor`."""
    near = bend.error
    slope = 1 - np.square(bend.value)
    off = (2 * magnitude(bend.value) + near) * near + 2 * u.score + 5 * u.accumulate
    error = x.error * (magnitude(slope) + off) + magnitude(x.value) * off
    return stored(Bounded(x.value * slope, error), 5 * (u.score + u.accumulate), 2 * floor)

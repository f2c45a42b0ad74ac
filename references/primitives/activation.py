"""Elementwise activations y = g(h). Derivatives multiply by g'(h), and store the product in the case's
dtype.

    relu        Exact, with an error of at most that of h. Its derivative is 0 or 1, and unknown if h may
                have either sign.
    sigmoid     1 / (1 + e^-h). Its slope s (1 - s) is at most 1/4, and changes by at most 0.1 per unit.
                Three steps (exp, sum of two positive numbers, quotient), each rounded in u_acc and u_e.
    gelu        h Phi(h). Its derivative Phi(h) + h phi(h) is between -0.13 and 1.13, and changes by
                phi(h) (2 - h^2), at most 0.8. Phi = (1 + erf) / 2 has an absolute error of 4 u_acc,
                because two numbers cancel if h is negative. Three steps and the result are stored.

Source of gelu: Hendrycks, Gimpel 2016.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.rounding import Bounded, Roundoffs, magnitude, stored
from attention_conformance.references.tape import Gradients, Node


class Activation(Node):
    """The activation g(h) named "relu", "gelu" or "sigmoid"."""

    def __init__(self, u: Roundoffs, h: Node, name: str) -> None:
        super().__init__(u, h)
        self.h, self.function = h, {"relu": relu, "gelu": gelu, "sigmoid": sigmoid}[name]

    @cached_property
    def _value_and_slope(self) -> tuple[Bounded, Bounded]:
        return self.function(self.h.output, self.u)

    @property
    def output(self) -> Bounded:
        return self._value_and_slope[0]

    def gradients(self, cotangent: Bounded) -> Gradients:
        return (self._times_derivative(cotangent),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (h,) = tangents
        return None if h is None else self._times_derivative(h)

    def _times_derivative(self, x: Bounded) -> Bounded:
        """Returns x g'(h), stored."""
        return stored(x * self._value_and_slope[1], self.u.results)


def relu(h: Bounded, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """Returns max(h, 0) and its derivative."""
    positive = h.value > 0
    output = Bounded(np.where(positive, h.value, 0), h.error)
    sign_unknown = magnitude(h.value) <= h.error
    slope = positive.astype(h.value.dtype)
    return output, Bounded(slope, np.where(sign_unknown, 1.0, 0.0))


def sigmoid(h: Bounded, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """Returns 1 / (1 + e^-h), stored, and its derivative."""
    value = 1 / (1 + np.exp(-h.value))
    slope = value * (1 - value)
    roundings = 4 * u.accumulate + 3 * u.step
    steepest = np.minimum(magnitude(slope) + 0.1 * h.error, 0.25)
    output = Bounded(value, h.error * steepest + roundings * magnitude(value))
    derivative = Bounded(slope, 0.1 * h.error + 2 * roundings * magnitude(value))
    return stored(output, u.results), derivative


def gelu(h: Bounded, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """Returns h Phi(h), stored, and its derivative."""
    probability = normal_distribution(h.value)
    density = np.exp(-np.square(h.value) / 2) / np.sqrt(2 * np.pi)
    slope = probability + h.value * density
    roundings = 4 * u.accumulate + 3 * u.step
    steepest = np.minimum(magnitude(slope) + 0.8 * h.error, 1.13)
    output = Bounded(h.value * probability, h.error * steepest + roundings * h.magnitude)
    derivative = Bounded(slope, 0.8 * h.error + 2 * roundings * (1 + h.magnitude))
    return stored(output, u.results), derivative


def normal_distribution(x: np.ndarray) -> np.ndarray:
    """Returns Phi(x) = (1 + erf(x / sqrt 2)) / 2 in the precision of x. The terms of its series have one
    sign (Abramowitz and Stegun 1964, 26.2.11)."""
    clipped = np.clip(x, -12, 12)
    term = total = clipped
    for n in range(3, 401, 2):
        term = term * np.square(clipped) / n
        total = total + term
    half = total * np.exp(-np.square(clipped) / 2) / np.sqrt(2 * np.asarray(np.pi, x.dtype))
    return np.clip(x.dtype.type(0.5) + half, 0, 1)

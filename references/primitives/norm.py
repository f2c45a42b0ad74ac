"""Norms: y = N g + b, N = (x - mean) r, r = 1 / sqrt(variance + epsilon).

With D = dy g in a VJP, and D = x' in a JVP:

    gain, offset    dg = sum over samples and positions of dy N;  db = sum of dy
    learned         mean and variance are constants (batch norm in evaluation):  J D = r D
    taken from x    over the n features of a token (layer norm), or the n samples and positions of a
                    feature (batch norm in training):
                    J D = r (D - mean(D) - N mean(D N))
    both            J is symmetric: dx = J (dy g), and y' = (J x') g + N g' + b'

Sources: Ioffe, Szegedy, ICML 2015, section 3 (batch norm, step by step); Ba, Kiros, Hinton 2016,
section 3 (layer norm, over other axes); Chan, Golub, LeVeque, Algorithms for computing the sample
variance, The American Statistician 37(3), 1983 (errors of the variance).

Bounds by running error analysis in the notation of `references.rounding`; u is u_acc, or u_e if every
step is stored. They cover two computations of derivatives: the closed form, and the chain through mean,
variance and root (automatic differentiation). Roundings are relative to |x| + |mean| (`reach`), not |x
- mean|, because libraries sum D x and mean D separately.

    mean            g = gamma_{n+4}(u_acc) and four stored steps, of the magnitudes: e = g mean(|x|).
    variance        Two passes: 2 g of the squares of x - mean, and (1 + g) e^2; e has no part of first
                    order, because the mean of x - mean is 0. Means and squares that are updated or merged
                    (Welford, Chan): also 2 e sqrt(variance). The mean of squares minus the square of
                    the mean has errors of g mean(x^2), which no bound covers.
    both            An error delta x of x adds mean(delta x) to the mean and mean((2 |x - mean| + delta
                    x) delta x) to the variance.
    r               d(t^-1/2) = t^-3/2 / 2, largest at the least argument of the root.
    N, y            x r - mean r or (x - mean) r; product, sum, and the store in the case's dtype.
    D, r D          Products, each stored.
    mean(D N)       The chain has four products and quotients before the sum (z / s, again / s, times D
                    in TF and torch; -D z and s^-2 apart in JAX). The closed form has one, and after the
                    sum the difference sum D x - mean sum D. Six roundings relative to |D| reach, and a
                    mean.
    r N mean(D N)   The chain has the derivative of the root (2), the quotient by n, the product with z;
                    the closed form r^3 / n (4, and 1 / n) and the product with x: six roundings.
    mean(r D)       gamma_{n+4}(u_acc) and four stored steps (as in the forward pass). In the chain a sum
                    over broadcast axes, which a framework may compute in the case's dtype (gamma_n(u_o)).
    J D             The sum r D - mean(r D) - r N mean(D N) and, in the chain, the mean of the last term,
                    which is zero except for rounding: four additions, each relative to at most all
                    parts. A forward-mode chain has the same products of x' with z and r, and the
                    same means.
    statistics      If derivatives take mean and r as stored in the case's dtype, each has another
                    relative error of u_o.
    dg              Six roundings of every dy N as in mean(D N), and their sum, stored once.
    N g' + b'       A product and two sums, each stored like a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.linear import bias_gradient
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    gamma,
    magnitude,
    nan_to_inf,
    perturbed,
    stored,
    sum_of_present,
)
from attention_conformance.references.tape import Gradients, Node

Statistics = tuple[Bounded, Bounded]
"""Mean and variance: learned (E,), or computed from x, with the reduced axes of size 1."""


def statistics(x: Bounded, axes: tuple[int, ...], u: Roundoffs) -> Statistics:
    """Returns mean and variance of x over `axes`, which keep size 1, with errors inherited from x."""
    n = int(np.prod([x.shape[axis] for axis in axes]))
    mean = x.value.mean(axes, keepdims=True)
    variance = np.square(x.value - mean).mean(axes, keepdims=True)
    spread = np.sqrt(magnitude(variance))
    unit = gamma(n + 4, u.accumulate) + 4 * u.step
    mean_error = unit * magnitude(x.value).mean(axes, keepdims=True)
    variance_error = 2 * spread * (unit * spread + mean_error) + (1 + unit) * mean_error**2
    inherited = (2 * magnitude(x.value - mean) + x.error) * x.error
    mean_error = mean_error + x.error.mean(axes, keepdims=True)
    variance_error = variance_error + inherited.mean(axes, keepdims=True)
    return Bounded(mean, mean_error), Bounded(variance, variance_error)


@dataclass(frozen=True)
class Standardised:
    """The steps of a norm: mean, `shifted` = x - mean, `root` = 1 / sqrt(variance + epsilon), `normal`
    = shifted root.

    `reach` is (|x| + |mean|) root, the magnitude to which roundings are relative.
    """

    mean: Bounded
    shifted: Bounded
    root: Bounded
    normal: Bounded
    reach: np.ndarray

    @classmethod
    def of(
        cls,
        x: Bounded,
        axes: tuple[int, ...],
        learned: Statistics | None,
        epsilon: float,
        u: Roundoffs,
    ) -> Standardised:
        """Returns the steps for x (B, L, E), with `learned` mean and variance, or else those of x over
        `axes`."""
        unit = _step_unit(u)
        moments = learned or [perturbed(moment) for moment in statistics(x, axes, u)]
        (mean, mean_error), (variance, variance_error) = (moment.parts for moment in moments)
        if learned is None:
            variance = np.maximum(variance, 0)
        shifted = stored(Bounded(x.value - mean, x.error + mean_error), Store(unit))
        total = (variance + epsilon).astype(np.float64)
        # The bound is infinite if the argument of the root may be zero.
        least = total - variance_error - unit * total
        positive = least > 0
        least = np.where(positive, least, 1.0)
        slope = 0.5 * (variance_error + unit * total) / least * np.sqrt(total / least)
        relative = np.where(positive, slope + 3 * unit, np.inf)
        root = 1 / np.sqrt(variance + epsilon)
        reciprocal = perturbed(Bounded(root, relative * root.astype(np.float64)))
        root, relative = reciprocal.value, reciprocal.error / reciprocal.value.astype(np.float64)
        value = shifted.value * root
        size = magnitude(value)
        scaled_error = shifted.error * root.astype(np.float64) * (1 + relative) + relative * size
        mean_rounding = 3 * unit * magnitude(mean * root)
        bounded_mean = Bounded(mean, np.broadcast_to(mean_error, mean.shape))
        reach = (x.magnitude + bounded_mean.magnitude) * reciprocal.magnitude
        normal = stored(Bounded(value, scaled_error + mean_rounding), Store(unit))
        return cls(bounded_mean, shifted, reciprocal, normal, reach)

    def narrow(self, u: Roundoffs) -> Standardised:
        """Returns these steps for a mean and a root that are stored in the case's dtype."""
        mean, root = (stored(x, u.results) for x in (self.mean, self.root))
        mean_store = mean.error - self.mean.error
        root_store = root.error - self.root.error
        shifted = Bounded(self.shifted.value, self.shifted.error + mean_store)
        error = (
            self.normal.error + mean_store * root.magnitude + self.shifted.magnitude * root_store
        )
        normal = Bounded(self.normal.value, error)
        return Standardised(mean, shifted, root, normal, self.reach + mean_store * root.magnitude)


class Norm(Node):
    """A norm of x (B, L, E), with `learned` mean and variance, or else those of x over `axes`; gain and
    offset (E,) or None."""

    def __init__(
        self, u: Roundoffs, x: Node, gain: Node | None, offset: Node | None,
        axes: tuple[int, ...], epsilon: float, learned: Statistics | None = None,
    ) -> None:  # fmt: skip
        super().__init__(u, x, gain, offset)
        self.x, self.gain, self.offset = x, gain, offset
        self.over_axes, self.epsilon, self.learned = axes, epsilon, learned
        self.axes = axes if learned is None else ()

    @cached_property
    def parts(self) -> Standardised:
        """The steps of the norm in the forward pass."""
        return Standardised.of(self.x.output, self.over_axes, self.learned, self.epsilon, self.u)

    @cached_property
    def backward_steps(self) -> Standardised:
        """The steps of the norm that VJP and JVP use: mean and root are rounded to the case's dtype if
        `u.narrow_statistics`."""
        return self.parts.narrow(self.u) if self.u.narrow_statistics else self.parts

    @cached_property
    def output(self) -> Bounded:
        """y (B, L, E)."""
        u, unit, out = self.u, _step_unit(self.u), self.parts.normal
        if self.gain is not None:
            gain = self.gain.output
            error = out.error * magnitude(gain.value) + gain.error * out.magnitude
            out = stored(Bounded(out.value * gain.value, error), Store(unit))
        if self.offset is not None:
            out = stored(out + stored(self.offset.output, Store(unit)), Store(unit))
        return nan_to_inf(stored(out, u.results))

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dx, dg, db."""
        u, parts, dy = self.u, self.backward_steps, cotangent
        D, dg, db = dy, None, None
        if self.gain is not None:
            summands, sizes = self._by_normal(dy), dy.magnitude * parts.reach
            n = sizes[..., 0].size
            unit = _sum_unit(n, u) + (gamma(n, u.output) if "gain" in u.narrow_biases else 0.0)
            error = summands.error.sum((0, 1)) + unit * sizes.sum((0, 1))
            dg = nan_to_inf(stored(Bounded(summands.value.sum((0, 1)), error), u.results))
            D = self._product(dy, self.gain.output)
        if self.offset is not None:
            db = bias_gradient(dy, u, "offset")
        return nan_to_inf(stored(self.apply_jacobian(D), u.results)), dg, db

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, normal, (x, gain, offset) = self.u, self.backward_steps.normal, tangents
        by_x = None if x is None else self.apply_jacobian(x)
        if by_x is not None and self.gain is not None:
            by_x = self._product(by_x, self.gain.output)
        by_gain = None if gain is None else self._product(normal, gain)
        if offset is not None:
            offset = offset.broadcast_to(normal.shape)
        total = sum_of_present([by_x, by_gain, offset], Store(_step_unit(u)))
        return None if total is None else nan_to_inf(stored(total, u.results))

    def apply_jacobian(self, D: Bounded) -> Bounded:
        """Returns J D (B, L, E) before the store. J is the Jacobian of N."""
        u, parts, unit = self.u, self.backward_steps, _step_unit(self.u)
        rD = self._product(D, parts.root)
        if not self.axes:
            return rD
        mean_DN = self._mean(self._by_normal(D), D.magnitude * parts.reach)
        scaled = mean_DN.value * parts.root.value
        inherited = (
            mean_DN.error * parts.root.magnitude + magnitude(mean_DN.value) * parts.root.error
        )
        size = mean_DN.magnitude * parts.root.magnitude * parts.reach
        error = inherited * parts.normal.magnitude
        error = error + magnitude(scaled) * parts.normal.error + 6 * unit * size
        error = error + _product_floor(u) * (1 + parts.shifted.magnitude)
        rN_mean = Bounded(scaled * parts.normal.value, error)  # r N mean(D N)
        mean_rD = self._mean(rD, rD.magnitude)
        last_mean = self._mean(Bounded(np.zeros(rN_mean.shape), rN_mean.error), size)
        sizes = rD.magnitude + size + mean_rD.magnitude + last_mean.magnitude
        error = rD.error + rN_mean.error + mean_rD.error + last_mean.error + 4 * unit * sizes
        return Bounded(rD.value - mean_rD.value - rN_mean.value, error)

    def _by_normal(self, x: Bounded) -> Bounded:
        """Returns x N, elementwise."""
        u, parts = self.u, self.backward_steps
        exact = x * parts.normal
        error = exact.error + 6 * _step_unit(u) * x.magnitude * parts.reach + _product_floor(u)
        return perturbed(Bounded(exact.value, error))

    def _product(self, a: Bounded, b: Bounded) -> Bounded:
        """Returns a b, elementwise, stored like a step."""
        return stored(a * b, Store(_step_unit(self.u), _product_floor(self.u)))

    def _mean(self, x: Bounded, sizes: np.ndarray) -> Bounded:
        """Returns the mean of x over `self.axes`, which keep size 1. `sizes` has the shape of x: the
        rounding of the sum is relative to the sum of `sizes`."""
        axes = self.axes
        n = int(np.prod([x.shape[axis] for axis in axes]))
        rounding = _sum_unit(n, self.u) * sizes.mean(axes, keepdims=True)
        error = x.error.mean(axes, keepdims=True) + rounding
        return perturbed(Bounded(x.value.mean(axes, keepdims=True), error))


def _sum_unit(n: int, u: Roundoffs) -> float:
    """Returns the relative error of a sum of n products in a derivative."""
    return gamma(n + 4, u.accumulate) + 4 * u.step + gamma(n, u.reduction)


def _step_unit(u: Roundoffs) -> float:
    """Returns the unit roundoff of a step of a norm: u_acc, or u_e if every step is stored."""
    return max(u.accumulate, u.step)


def _product_floor(u: Roundoffs) -> float:
    """Returns the underflow loss of a product of steps."""
    return u.floor if u.step else u.product_underflow

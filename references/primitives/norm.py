"""Norms: y = N g + b, N = (x - mean) r, r = 1 / sqrt(variance + epsilon), forward, backward and along
tangents, with how far rounding can move them.

With D = dy g, and D = x' along a tangent:

    gain, offset    dg = sum over samples and positions of dy N;  db = sum of dy
    learned         mean and variance are constants (batch norm in evaluation):  J D = r D
    taken from x    over the n features of a token (layer norm), or the n samples and positions of a
                    feature (batch norm in training):
                    J D = r (D - mean(D) - N mean(D N))
    both ways       J is symmetric: dx = J (dy g), and y' = (J x') g + N g' + b'

Sources: Ioffe, Szegedy, ICML 2015, section 3 (batch norm, with the last line written out step by step);
Ba, Kiros, Hinton 2016, section 3 (layer norm, which differs in the axes alone).

Bounds, by running error analysis, in the notation of `references.rounding`; u is that of a step:
u_acc, or u_e where every step is stored. Two ways of computing are covered: the closed form, and the
chain through mean, variance and root, as frameworks differentiate single steps. For x - mean stands
|x| + |mean| wherever rounding makes an error, since libraries sum D x and mean D apart: `reach`.

    mean, variance  gamma_{n+4}(u_acc) and four stored steps, of the magnitudes and the squares: two
                    passes, or the mean of squares less the square of the mean. Where x carries an
                    error delta x, mean(delta x) and mean((2 |x - mean| + delta x) delta x) more: the
                    mean of x - mean is 0, so that an error of the mean alone moves no variance.
    r               d(t^-1/2) = t^-3/2 / 2, at most at the least argument of the root.
    N, y            x r - mean r as well as (x - mean) r; product, sum, and the store in the case's dtype.
    D, r D          Products, each stored.
    mean(D N)       The chain makes four products and quotients before the sum (z / s, again / s, times D
                    in TF and torch; -D z and s^-2 apart in JAX), the closed form one and, behind the sum,
                    the difference sum D x - mean sum D: six roundings relative to |D| reach, and a mean.
    r N mean(D N)   The chain has the derivative of the root (2), the quotient by n, the product with z;
                    the closed form r^3 / n (4, and that of 1 / n) and the product with x: six.
    mean(r D)       gamma_{n+4}(u_acc) and four stored steps (as in the forward pass); over broadcast axes
                    in the chain, so that a framework may sum in the case's dtype (gamma_n(u_o)).
    J D             The sum r D - mean(r D) - r N mean(D N) and, in the chain, the mean of the last, which
                    is zero but for rounding: four additions, each relative to no more than all parts.
                    Forward-mode chains make the same products of x' with z and r, and the same means.
    statistics      Where derivatives are handed mean and r as they were stored in the case's dtype,
                    each is off by another u_o of itself.
    dg              Six roundings of every dy N as in mean(D N), and their sum, stored once.
    N g' + b'       A product and two sums, each stored like a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from references.primitives.linear import bias_gradient
from references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    known,
    magnitude,
    perturbed,
    stored,
    together,
)
from references.tape import Gradients, Node

Statistics = tuple[Bounded, Bounded]
"""A mean and a variance: learned, (E,), or of x, with the axes they are taken over of size 1."""


def statistics(x: Bounded, axes: tuple[int, ...], u: Roundoffs) -> Statistics:
    """Those of x over axes."""
    n = int(np.prod([x.shape[axis] for axis in axes]))
    mean = x.value.mean(axes, keepdims=True)
    variance = np.square(x.value - mean).mean(axes, keepdims=True)
    squares = np.square(magnitude(x.value)).mean(axes, keepdims=True)
    sums = gamma(n + 4, u.accumulate) + 4 * u.step
    mean_error = sums * magnitude(x.value).mean(axes, keepdims=True)
    variance_error = sums * 2 * squares + 2 * np.sqrt(squares) * mean_error
    inherited = (2 * magnitude(x.value - mean) + x.error) * x.error
    mean_error = mean_error + x.error.mean(axes, keepdims=True)
    variance_error = variance_error + inherited.mean(axes, keepdims=True)
    return Bounded(mean, mean_error), Bounded(variance, variance_error)


@dataclass(frozen=True)
class Standardised:
    """The mean, x - mean, 1 / sqrt(variance + epsilon), and the product of the last two. `reach` is
    (|x| + |mean|) root: what those round by who never make the difference."""

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
        """x (B, L, E) with the mean and variance over `axes`, or those that were `learned`."""
        unit = _unit(u)
        if learned is None:
            own = (perturbed(statistic) for statistic in statistics(x, axes, u))
            (mean, mean_error), (variance, variance_error) = (each.parts for each in own)
            variance = np.maximum(variance, 0)
        else:
            (mean, mean_error), (variance, variance_error) = (each.parts for each in learned)
        shifted = stored(Bounded(x.value - mean, x.error + mean_error), unit)
        total = (variance + epsilon).astype(np.float64)
        # Nothing is known where the least argument of the root may be zero.
        least = total - variance_error - unit * total
        sure = least > 0
        least = np.where(sure, least, 1.0)
        slope = 0.5 * (variance_error + unit * total) / least * np.sqrt(total / least)
        relative = np.where(sure, slope + 3 * unit, np.inf)
        root = 1 / np.sqrt(variance + epsilon)
        reciprocal = perturbed(Bounded(root, relative * root.astype(np.float64)))
        root, relative = reciprocal.value, reciprocal.error / reciprocal.value.astype(np.float64)
        value = shifted.value * root
        size = magnitude(value)
        scaled_error = shifted.error * root.astype(np.float64) * (1 + relative) + relative * size
        folded = 3 * unit * magnitude(mean * root)
        level = Bounded(mean, np.broadcast_to(mean_error, mean.shape))
        reach = (x.size + level.size) * reciprocal.size
        normal = stored(Bounded(value, scaled_error + folded), unit)
        return cls(level, shifted, reciprocal, normal, reach)

    def narrow(self, u: Roundoffs) -> Standardised:
        """The same with mean and root stored in the case's dtype."""
        mean, root = (stored(x, u.output, u.floor) for x in (self.mean, self.root))
        away = mean.error - self.mean.error
        relative = root.error - self.root.error
        shifted = Bounded(self.shifted.value, self.shifted.error + away)
        error = self.normal.error + away * root.size + self.shifted.size * relative
        normal = Bounded(self.normal.value, error)
        return Standardised(mean, shifted, root, normal, self.reach + away * root.size)


class Norm(Node):
    """A norm of x (B, L, E) whose mean and variance are taken over `axes`, or are `learned`; gain and
    offset (E,), or None."""

    def __init__(
        self, u: Roundoffs, x: Node, gain: Node | None, offset: Node | None,
        axes: tuple[int, ...], epsilon: float, learned: Statistics | None = None,
    ) -> None:  # fmt: skip
        super().__init__(u, x, gain, offset)
        self.x, self.gain, self.offset = x, gain, offset
        self.over, self.epsilon, self.learned = axes, epsilon, learned
        self.axes = axes if learned is None else ()

    @cached_property
    def parts(self) -> Standardised:
        """The steps of the norm as the answer has them."""
        return Standardised.of(self.x.output, self.over, self.learned, self.epsilon, self.u)

    @cached_property
    def handed(self) -> Standardised:
        """The same as derivatives are handed them."""
        return self.parts.narrow(self.u) if self.u.narrow_statistics else self.parts

    @cached_property
    def output(self) -> Bounded:
        """y (B, L, E)."""
        u, unit, out = self.u, _unit(self.u), self.parts.normal
        if self.gain is not None:
            gain = self.gain.output
            error = out.error * magnitude(gain.value) + gain.error * out.size
            out = stored(Bounded(out.value * gain.value, error), unit)
        if self.offset is not None:
            offset = self.offset.output
            error = out.error + offset.error + unit * magnitude(offset.value)
            out = stored(Bounded(out.value + offset.value, error), unit)
        return known(stored(out, u.output, u.floor))

    def gradients(self, received: Bounded) -> Gradients:
        """dx, dg, db."""
        u, parts, dy = self.u, self.handed, received
        D, dg, db = dy, None, None
        if self.gain is not None:
            each, sizes = self._by_normal(dy), dy.size * parts.reach
            n = sizes[..., 0].size
            sums = _sums(n, u) + (gamma(n, u.output) if "gain" in u.narrow_biases else 0.0)
            error = each.error.sum((0, 1)) + sums * sizes.sum((0, 1))
            dg = known(stored(Bounded(each.value.sum((0, 1)), error), u.output, u.floor))
            D = self._product(dy, self.gain.output)
        if self.offset is not None:
            db = bias_gradient(dy, u, "offset")
        return known(stored(self.through(D), u.output, u.floor)), dg, db

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        u, normal, (x, gain, offset) = self.u, self.handed.normal, moved
        through = None if x is None else self.through(x)
        if through is not None and self.gain is not None:
            through = self._product(through, self.gain.output)
        by_gain = None if gain is None else self._product(normal, gain)
        if offset is not None:
            offset = offset.broadcast_to(normal.shape)
        total = together([through, by_gain, offset], _unit(u))
        return None if total is None else known(stored(total, u.output, u.floor))

    def through(self, D: Bounded) -> Bounded:
        """J D, (B, L, E), not yet stored."""
        u, parts, unit = self.u, self.handed, _unit(self.u)
        direct = self._product(D, parts.root)  # r D
        if not self.axes:
            return direct
        share = self._mean(self._by_normal(D), D.size * parts.reach)  # mean(D N)
        scaled = share.value * parts.root.value
        inherited = share.error * parts.root.size + magnitude(share.value) * parts.root.error
        size = share.size * parts.root.size * parts.reach
        error = inherited * parts.normal.size
        error = error + magnitude(scaled) * parts.normal.error + 6 * unit * size
        error = error + _floor(u) * (1 + parts.shifted.size)
        bent = Bounded(scaled * parts.normal.value, error)  # r N mean(D N)
        level = self._mean(direct, direct.size)
        nothing = self._mean(Bounded(np.zeros(bent.shape), bent.error), size)
        sizes = direct.size + size + level.size + nothing.size
        error = direct.error + bent.error + level.error + nothing.error + 4 * unit * sizes
        return Bounded(direct.value - level.value - bent.value, error)

    def _by_normal(self, x: Bounded) -> Bounded:
        """x N, element by element."""
        u, parts = self.u, self.handed
        exact = x * parts.normal
        error = exact.error + 6 * _unit(u) * x.size * parts.reach + _floor(u)
        return perturbed(Bounded(exact.value, error))

    def _product(self, a: Bounded, b: Bounded) -> Bounded:
        return stored(a * b, _unit(self.u), _floor(self.u))

    def _mean(self, x: Bounded, sizes: np.ndarray) -> Bounded:
        """The mean over the axes, which stay with size 1; its parts are summed as numbers of `sizes`."""
        axes = self.axes
        n = int(np.prod([x.shape[axis] for axis in axes]))
        sums = _sums(n, self.u) * sizes.mean(axes, keepdims=True)
        error = x.error.mean(axes, keepdims=True) + sums
        return perturbed(Bounded(x.value.mean(axes, keepdims=True), error))


def _sums(n: int, u: Roundoffs) -> float:
    return gamma(n + 4, u.accumulate) + 4 * u.step + gamma(n, u.reduction)


def _unit(u: Roundoffs) -> float:
    return max(u.accumulate, u.step)


def _floor(u: Roundoffs) -> float:
    return u.floor if u.step else u.product_underflow

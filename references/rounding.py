"""Bounded numbers: arrays that carry a bound on what rounding can do to them.

Model. Inputs are exact in their dtype. An implementation rounds in a few places, each with a unit
roundoff of its own (`Roundoffs`): u_acc (sums, exp, scaling), u_s (scores as stored), u_e (the steps of
the softmax as stored), u_p (weights as stored before the product with the values) and u_o (what is handed
on in the case's dtype). n roundings in a row are off by at most

    gamma_n(u) = n u / (1 - n u)

relative to the sum of the magnitudes that they round.

Within `drawn` the same steps draw their errors instead: whatever is stored is off by a random part of
the bound of its own step, and n roundings in a row count as sqrt(n) of them (Higham and Mary 2019:
roundings that are independent and have the mean zero). This is Monte Carlo arithmetic (Parker 1997): the
answers of many such passes show what rounding does where it is random, with all that hangs together in
them.

Every step takes operands that come with bounds, hands on the error it inherits, and adds the one it makes
(running error analysis). Values are computed in the precision the operands come in, float64 or
longdouble; errors are float64, and of first order wherever `references.primitives.softmax` does not say
otherwise.

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 and 3.3; Higham,
Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019; Parker,
Monte Carlo Arithmetic, UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from suite.spec.dtypes import DType


class NoExtendedPrecision(ArithmeticError):
    """The platform has no floating-point numbers that are wider than float64."""


@dataclass(frozen=True)
class Roundoffs:
    """Where an implementation rounds: unit roundoffs of one numerics class in one dtype, what underflow
    may take away, and what the implementation declares of itself.

    `accumulate` of sums, products, exp and scaling; `score` of scores as stored; `step` of the steps
    of the softmax as stored; `weight` of weights as stored; `output` of everything handed on in the
    case's dtype. Absolute: `weight_underflow` of a stored weight, `exp_underflow` of an exponential,
    `product_underflow` of a product in the accumulator, `floor` of a stored output; an operand of a
    product that is smaller than `operand_underflow` may be taken for zero. `reduction` is that of sums
    over broadcast axes, where a gradient makes them with less precision than its other sums.

    `exp_error` is the relative error of an exponential that is approximated, not rounded.
    `gradient_blocks` are the rows and the keys after which a backward pass stores its running sums; None
    where these stay in the accumulator. The gradients of `narrow_biases` are sums in the case's dtype.
    `narrow_statistics`: derivatives of a norm are handed its mean and root in the case's dtype.
    """

    accumulate: float
    score: float
    step: float
    weight: float
    output: float
    weight_underflow: float
    exp_underflow: float
    product_underflow: float
    floor: float
    operand_underflow: float = 0.0
    reduction: float = 0.0
    exp_error: float = 0.0
    gradient_blocks: tuple[int, int] | None = None
    narrow_biases: frozenset[str] = frozenset()
    narrow_statistics: bool = False

    @property
    def input(self) -> float:
        """The unit roundoff of inputs: zero, but where the working precision is less than the dtype's."""
        return self.accumulate if self.accumulate > self.output else 0.0

    @property
    def sum(self) -> float:
        """The unit roundoff of sums over broadcast axes."""
        return max(self.accumulate, self.reduction)

    @property
    def score_floor(self) -> float:
        """What underflow may take away of a stored score."""
        return self.floor if self.score >= self.output else self.product_underflow

    @property
    def step_floor(self) -> float:
        """What underflow may take away of a stored step of the softmax, or of its derivative."""
        return self.floor if self.step else self.product_underflow


NO_ROUNDING = Roundoffs(0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Roundoffs of exact arithmetic: the errors stay zero."""


@dataclass(frozen=True)
class Bounded:
    """An array and a bound, element by element, on the error of a computed version of it.

    Its arithmetic is exact: it hands on the errors of the operands, and rounds nothing. An operand that
    is no `Bounded` is exact.
    """

    value: np.ndarray
    error: np.ndarray

    __array_ufunc__ = None  # array * Bounded is refused; it would be an array of objects

    @classmethod
    def exact(cls, value: np.ndarray) -> Bounded:
        """An array that everybody has with the same bits."""
        return cls(value, np.zeros(value.shape))

    @property
    def size(self) -> np.ndarray:
        """The largest magnitude a computed version can have, float64."""
        return magnitude(self.value) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Value and error."""
        return self.value, self.error

    @property
    def swapped(self) -> Bounded:
        """The array with its last two axes exchanged."""
        return Bounded(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))

    def __getitem__(self, index: Any) -> Bounded:
        return Bounded(self.value[index], self.error[index])

    def __add__(self, other: Bounded) -> Bounded:
        return Bounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Bounded | np.ndarray | float | np.floating) -> Bounded:
        if isinstance(other, Bounded):
            error = self.error * other.size + magnitude(self.value) * other.error
            return Bounded(self.value * other.value, error)
        return Bounded(self.value * other, self.error * magnitude(np.asarray(other)))

    def __matmul__(self, other: Bounded) -> Bounded:
        value = self.value @ other.value
        error = np.zeros(value.shape)
        if self.error.any():
            error += self.error @ other.size
        if other.error.any():
            error += magnitude(self.value) @ other.error
        return Bounded(value, error)

    def reshape(self, *shape: int) -> Bounded:
        return Bounded(self.value.reshape(*shape), self.error.reshape(*shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> Bounded:
        return Bounded(np.broadcast_to(self.value, shape), np.broadcast_to(self.error, shape))

    def moved(self, source: int, destination: int) -> Bounded:
        """The array with one axis at another place."""
        return Bounded(
            np.moveaxis(self.value, source, destination),
            np.moveaxis(self.error, source, destination),
        )

    def repeated(self, times: int, axis: int) -> Bounded:
        """Every slice along `axis` repeated in place: 0, 0, 1, 1."""
        if times == 1:
            return self
        return Bounded(np.repeat(self.value, times, axis), np.repeat(self.error, times, axis))

    def beside(self, other: Bounded, axis: int) -> Bounded:
        """The array, and another behind it along an axis."""
        return Bounded(
            np.concatenate([self.value, other.value], axis),
            np.concatenate([self.error, other.error], axis),
        )

    def where(self, condition: np.ndarray) -> Bounded:
        """The array with exact zeros where `condition` is False."""
        return Bounded(np.where(condition, self.value, 0), np.where(condition, self.error, 0.0))

    def sum(self, axes: int | tuple[int, ...]) -> Bounded:
        """The sum over axes, which are gone."""
        return Bounded(self.value.sum(axes), self.error.sum(axes))


def magnitude(x: np.ndarray) -> np.ndarray:
    """|x| in float64."""
    return np.abs(x).astype(np.float64)


@overload
def gamma(n: float, u: float) -> float: ...
@overload
def gamma(n: np.ndarray, u: float) -> np.ndarray: ...
def gamma(n: np.ndarray | float, u: float) -> np.ndarray | float:
    """gamma_n(u) = n u / (1 - n u); infinite where n u reaches 1. Where errors are drawn sqrt(n) u, for n
    random roundings in a row."""
    if drawing():
        return np.sqrt(n) * u
    nu = n * u
    if not isinstance(nu, np.ndarray):
        return nu / (1 - nu) if nu < 1 else np.inf
    return np.where(nu < 1, nu / np.where(nu < 1, 1 - nu, 1), np.inf)


def precision_for(dtype: DType) -> type[np.floating[Any]]:
    """What a reference computes in: float64, for float64 cases extended precision, since there the
    rounding of a float64 reference is as large as what is judged.

    Raises NoExtendedPrecision where the platform has none.
    """
    if dtype.name != "f64":
        return np.float64
    if np.finfo(np.longdouble).nmant < 63:
        raise NoExtendedPrecision(
            "float64 cases need an extended-precision numpy.longdouble (x86-64 Linux has one)"
        )
    return np.longdouble


def known(x: Bounded) -> Bounded:
    """`x`, with an infinite bound where nothing is known, as of zero times infinity."""
    return Bounded(x.value, np.where(np.isnan(x.error), np.inf, x.error))


def narrowed(x: np.ndarray, u: Roundoffs) -> Bounded:
    """An input, exact, or rounded to the working precision where that is less than the dtype's."""
    return Bounded(x, u.input * magnitude(x))


_CHANCE: ContextVar[np.random.Generator | None] = ContextVar("chance", default=None)


@contextmanager
def drawn(chance: np.random.Generator) -> Iterator[None]:
    """Errors are drawn within: every step is off by a random part of its own bound, and hands on a value
    that has no bound (`perturbed`)."""
    token = _CHANCE.set(chance)
    try:
        yield
    finally:
        _CHANCE.reset(token)


def drawing() -> bool:
    """Whether errors are drawn."""
    return _CHANCE.get() is not None


def perturbed(x: Bounded) -> Bounded:
    """`x` as it is where errors are bounded. Where they are drawn, a value within its bound: uniform,
    each element by itself."""
    chance = _CHANCE.get()
    if chance is None:
        return x
    return Bounded.exact(x.value + x.error * chance.uniform(-1.0, 1.0, x.shape))


def stored(x: Bounded, unit: float, floor: float = 0.0) -> Bounded:
    """`x` rounded once with unit roundoff `unit`; `floor` is the smallest subnormal."""
    return perturbed(Bounded(x.value, x.error + unit * x.size + (floor if unit else 0.0)))


def product(a: Bounded, b: Bounded, summands: np.ndarray | int, u: Roundoffs) -> Bounded:
    """a b over the last axis of a, `summands` of whose terms are not zero: (..., n) and (n, ...).

    What is subnormal of an operand may be taken for zero (`Roundoffs.operand_underflow`).
    """
    exact = a @ b
    rounding = gamma(summands + 2, u.accumulate) * (a.size @ b.size)
    error = exact.error + rounding + summands * u.product_underflow
    if u.operand_underflow:
        error = error + subnormal(a, u) @ b.size + a.size @ subnormal(b, u)
    return Bounded(exact.value, error)


def subnormal(x: Bounded, u: Roundoffs) -> np.ndarray:
    """What is lost of x where numbers below `operand_underflow` are taken for zero."""
    near = magnitude(x.value) - x.error < u.operand_underflow
    return np.where(near, np.minimum(x.size, u.operand_underflow), 0.0)


def summed(x: Bounded, axes: tuple[int, ...], u: Roundoffs) -> Bounded:
    """The sum over broadcast axes, which stay with size 1."""
    if not axes:
        return x
    n = int(np.prod([x.shape[axis] for axis in axes]))
    error = x.error.sum(axes, keepdims=True)
    error = error + gamma(n, u.sum) * x.size.sum(axes, keepdims=True)
    return Bounded(x.value.sum(axes, keepdims=True), error)


def together(parts: list[Bounded | None], unit: float, floor: float = 0.0) -> Bounded | None:
    """The sum of the parts there are, with every partial sum stored; None where there is none."""
    total: Bounded | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else stored(total + part, unit, floor)
    return total


def averaged(x: Bounded, axis: int, u: Roundoffs) -> Bounded:
    """The mean over an axis, summed in the accumulator or stored step by step in the case's dtype."""
    n = x.shape[axis]
    unit = max(u.accumulate, u.step)
    error = x.error.mean(axis) + gamma(n + 1, unit) * x.size.mean(axis)
    return stored(Bounded(x.value.mean(axis), error), u.output, u.floor)

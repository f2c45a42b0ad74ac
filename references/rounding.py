"""Bounded numbers: arrays with a bound on their rounding errors.

Inputs are exact in their dtype. An implementation rounds in a few places, each with its own unit
roundoff (`Roundoffs`):

    u_acc   sums, exp, scaling
    u_s     stored scores
    u_e     stored steps of the softmax
    u_p     weights stored before the product with the values
    u_o     results stored in the case's dtype

n successive roundings have an error of at most

    gamma_n(u) = n u / (1 - n u)

relative to the sum of the rounded magnitudes. Every step propagates the errors of its operands and adds
its own (running error analysis). Values are computed in the precision of the operands, float64 or
longdouble. Errors are float64, and first order except where `references.primitives.softmax` says
otherwise.

Inside `random_roundings` every step has a random error within its own bound instead, and n successive
roundings count as sqrt(n) (Higham and Mary 2019: independent roundings with mean zero). Many such passes
show the effect of random rounding with all its correlations (Monte Carlo arithmetic, Parker 1997).

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 and 3.3; Higham,
Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019; Parker,
Monte Carlo Arithmetic, UCLA CSD-970002, 1997.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from attention_conformance.suite.spec.dtypes import DType


class NoExtendedPrecision(ArithmeticError):
    """The platform has no floating-point type wider than float64."""


class Store(NamedTuple):
    """A place where an implementation rounds: the unit roundoff, and the absolute error of a number near
    zero (the smallest subnormal)."""

    unit: float
    floor: float = 0.0


@dataclass(frozen=True)
class Roundoffs:
    """Unit roundoffs of one numerics class in one dtype, underflow losses, and declared properties.

    Unit roundoffs, relative:
      accumulate          sums, products, exp and scaling
      score               stored scores
      step                stored steps of the softmax
      weight              stored weights
      output              results stored in the case's dtype
      reduction           sums over broadcast axes, if a gradient computes these less precisely
      exp_error           relative error of an approximated exponential
      part                answers over parts of the keys, if they are stored
    Underflow, absolute:
      weight_underflow    of a stored weight
      exp_underflow       of an exponential
      product_underflow   of a product in the accumulator
      floor               of a stored output
      operand_underflow   operands of a product below this number may count as zero
    Declared:
      gradient_blocks     rows and keys after which a backward pass stores its running sums; None: never
      narrow_biases       biases whose gradients are summed in the case's dtype
      narrow_statistics   derivatives of a norm take its mean and root in the case's dtype
      centred_keys        a constant is subtracted from the keys (`references.primitives.centred`)
      absorbs             latents are attended themselves (`references.latent`); None: unknown
      codes               the format in which a cache keeps keys and values (`references.cached`)
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
    part: float = 0.0
    gradient_blocks: tuple[int, int] | None = None
    narrow_biases: tuple[str, ...] = ()
    narrow_statistics: bool = False
    centred_keys: bool = False
    absorbs: bool | None = None
    codes: str | None = None

    @property
    def input(self) -> float:
        """The unit roundoff of inputs: zero, unless the working precision is below the dtype's."""
        return self.accumulate if self.accumulate > self.output else 0.0

    @property
    def sum(self) -> float:
        """The unit roundoff of sums over broadcast axes."""
        return max(self.accumulate, self.reduction)

    @property
    def score_floor(self) -> float:
        """The underflow loss of a stored score."""
        return self.floor if self.score >= self.output else self.product_underflow

    @property
    def results(self) -> Store:
        """The rounding of a result stored in the case's dtype: unit roundoff and underflow loss."""
        return Store(self.output, self.floor)

    @property
    def scores(self) -> Store:
        """The rounding of a stored score: unit roundoff and underflow loss."""
        return Store(self.score, self.score_floor)

    @property
    def scaled_scores(self) -> Store:
        """The product and the store of a number that is stored like a score."""
        return Store(self.score + self.accumulate, self.score_floor)

    @property
    def step_floor(self) -> float:
        """The underflow loss of a stored step of the softmax or of its derivative."""
        return self.floor if self.step else self.product_underflow


NO_ROUNDING = Roundoffs(0, 0, 0, 0, 0, 0, 0, 0, 0)
"""Roundoffs of exact arithmetic."""


@dataclass(frozen=True)
class Bounded:
    """The exact value of an array, with an elementwise bound `error` on what an implementation computes.

    Operators propagate the errors of their operands and round nothing. Operands of other types are
    exact.
    """

    value: np.ndarray
    error: np.ndarray

    __array_ufunc__ = None  # refuses array * Bounded, which would give an array of objects

    @classmethod
    def exact(cls, value: np.ndarray) -> Bounded:
        """Returns an array without error."""
        return cls(value, np.zeros(value.shape))

    @property
    def magnitude(self) -> np.ndarray:
        """The largest magnitude that an implementation may compute, float64."""
        return magnitude(self.value) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Value and error."""
        return self.value, self.error

    @property
    def mT(self) -> Bounded:
        """Returns the array with its last two axes exchanged."""
        return Bounded(self.value.swapaxes(-1, -2), self.error.swapaxes(-1, -2))

    def __getitem__(self, index: Any) -> Bounded:
        return Bounded(self.value[index], self.error[index])

    def __add__(self, other: Bounded) -> Bounded:
        return Bounded(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Bounded | np.ndarray | float | np.floating) -> Bounded:
        if isinstance(other, Bounded):
            error = self.error * other.magnitude + magnitude(self.value) * other.error
            return Bounded(self.value * other.value, error)
        return Bounded(self.value * other, self.error * magnitude(np.asarray(other)))

    def __matmul__(self, other: Bounded) -> Bounded:
        value = self.value @ other.value
        error = np.zeros(value.shape)
        if self.error.any():
            error += self.error @ other.magnitude
        if other.error.any():
            error += magnitude(self.value) @ other.error
        return Bounded(value, error)

    def reshape(self, *shape: int) -> Bounded:
        return Bounded(self.value.reshape(*shape), self.error.reshape(*shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> Bounded:
        return Bounded(np.broadcast_to(self.value, shape), np.broadcast_to(self.error, shape))

    def move_axis(self, source: int, destination: int) -> Bounded:
        """Returns the array with one axis moved."""
        return Bounded(
            np.moveaxis(self.value, source, destination),
            np.moveaxis(self.error, source, destination),
        )

    def repeat(self, times: int, axis: int) -> Bounded:
        """Returns the array with every slice along `axis` repeated in place: 0, 0, 1, 1."""
        if times == 1:
            return self
        return Bounded(np.repeat(self.value, times, axis), np.repeat(self.error, times, axis))

    def concatenated(self, other: Bounded, axis: int) -> Bounded:
        """Returns both arrays concatenated along an axis."""
        return Bounded(
            np.concatenate([self.value, other.value], axis),
            np.concatenate([self.error, other.error], axis),
        )

    def where(self, condition: np.ndarray) -> Bounded:
        """Returns the array with exact zeros where `condition` is False."""
        return Bounded(np.where(condition, self.value, 0), np.where(condition, self.error, 0.0))


def magnitude(x: np.ndarray) -> np.ndarray:
    """Returns |x| in float64."""
    return np.abs(x).astype(np.float64)


@overload
def gamma(n: float, u: float) -> float: ...
@overload
def gamma(n: np.ndarray, u: float) -> np.ndarray: ...
def gamma(n: np.ndarray | float, u: float) -> np.ndarray | float:
    """Returns the relative error of n roundings: gamma_n(u) = n u / (1 - n u), infinite where n u reaches
    1; inside `random_roundings` sqrt(n) u."""
    if errors_are_random():
        return np.sqrt(n) * u
    nu = n * u
    if not isinstance(nu, np.ndarray):
        return nu / (1 - nu) if nu < 1 else np.inf
    return np.where(nu < 1, nu / np.where(nu < 1, 1 - nu, 1), np.inf)


def precision_for(dtype: DType) -> type[np.floating[Any]]:
    """Returns the precision of a reference: np.longdouble for float64 cases, else np.float64.

    A float64 reference would round as much as a float64 implementation. Raises NoExtendedPrecision if
    the platform has no extended precision.
    """
    if dtype.name != "f64":
        return np.float64
    if np.finfo(np.longdouble).nmant < 63:
        raise NoExtendedPrecision(
            "float64 cases need an extended-precision numpy.longdouble; run them on x86-64 Linux"
        )
    return np.longdouble


def nan_to_inf(x: Bounded) -> Bounded:
    """Returns `x` with infinity for every NaN in its bound. Such NaN come from zero times infinity."""
    return Bounded(x.value, np.where(np.isnan(x.error), np.inf, x.error))


def rounded_input(x: np.ndarray, u: Roundoffs) -> Bounded:
    """Returns an input array with the error `Roundoffs.input`, which is 0 unless the working precision is
    below the array's."""
    return Bounded(x, u.input * magnitude(x))


_ROUNDING_RNG: ContextVar[np.random.Generator | None] = ContextVar("rounding_rng", default=None)


@contextmanager
def random_roundings(rng: np.random.Generator) -> Iterator[None]:
    """Returns a context in which every step adds a random error within its bound to its value, and has
    the bound 0 (`perturbed`)."""
    token = _ROUNDING_RNG.set(rng)
    try:
        yield
    finally:
        _ROUNDING_RNG.reset(token)


def errors_are_random() -> bool:
    """Returns True inside `random_roundings`."""
    return _ROUNDING_RNG.get() is not None


def perturbed(x: Bounded) -> Bounded:
    """Returns `x`; inside `random_roundings` its value plus a uniform random error within its bound, with
    the bound 0."""
    rng = _ROUNDING_RNG.get()
    if rng is None:
        return x
    return Bounded.exact(x.value + x.error * rng.uniform(-1.0, 1.0, x.shape))


def stored(x: Bounded, store: Store) -> Bounded:
    """Returns `x` after one rounding at `store`."""
    floor = store.floor if store.unit else 0.0
    return perturbed(Bounded(x.value, x.error + store.unit * x.magnitude + floor))


def matrix_product(a: Bounded, b: Bounded, summands: np.ndarray | int, u: Roundoffs) -> Bounded:
    """Returns a @ b with the roundings of products and sums. `summands`: nonzero products per element.

    Subnormal parts of operands may count as zero (`Roundoffs.operand_underflow`).
    """
    exact = a @ b
    rounding = gamma(summands + 2, u.accumulate) * (a.magnitude @ b.magnitude)
    error = exact.error + rounding + summands * u.product_underflow
    if u.operand_underflow:
        error = error + flush_loss(a, u) @ b.magnitude + a.magnitude @ flush_loss(b, u)
    return Bounded(exact.value, error)


def flush_loss(x: Bounded, u: Roundoffs) -> np.ndarray:
    """Returns the absolute error of x if numbers below `u.operand_underflow` count as zero."""
    may_flush = magnitude(x.value) - x.error < u.operand_underflow
    return np.where(may_flush, np.minimum(x.magnitude, u.operand_underflow), 0.0)


def sum_over_axes(x: Bounded, axes: tuple[int, ...], u: Roundoffs) -> Bounded:
    """Returns the sum of x over `axes`, which keep size 1, with the roundings of the sum."""
    if not axes:
        return x
    n = int(np.prod([x.shape[axis] for axis in axes]))
    error = x.error.sum(axes, keepdims=True)
    error = error + gamma(n, u.sum) * x.magnitude.sum(axes, keepdims=True)
    return Bounded(x.value.sum(axes, keepdims=True), error)


def sum_of_present(parts: list[Bounded | None], store: Store) -> Bounded | None:
    """Returns the sum of the parts that are not None; None if all are None. Every partial sum is
    stored."""
    total: Bounded | None = None
    for part in parts:
        if part is not None:
            total = part if total is None else stored(total + part, store)
    return total


def stored_mean(x: Bounded, axis: int, u: Roundoffs) -> Bounded:
    """Returns the mean of x over an axis, which is removed, rounded to the case's dtype. The sum rounds
    in the accumulator, or like stored steps of the softmax: the larger error counts."""
    n = x.shape[axis]
    unit = max(u.accumulate, u.step)
    error = x.error.mean(axis) + gamma(n + 1, unit) * x.magnitude.mean(axis)
    return stored(Bounded(x.value.mean(axis), error), u.results)

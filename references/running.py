"""Running error analysis: arrays that carry a bound on what rounding can do to them.

Where `references.definition` gives terms that serve every numerics class, the layers around attention
are short chains of small arrays: here every operation takes the unit roundoffs of the class, and hands
on the error it inherits together with the one it makes. Values are computed in the precision they
come in (float64 or longdouble); the errors are first-order bounds, with the factor of the perturbed
softmax where first order is not enough (see `suite.judge.tolerance`, whose notation is used).

Source: Higham, Accuracy and Stability of Numerical Algorithms (2002), section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEGLIGIBLE_WEIGHT = 1e-9
"""Keys of a smaller weight do not count towards the largest relevant error of a score: amplified by
e^5 they still stay below the roundoff of any 16-bit answer."""


@dataclass(frozen=True)
class Roundoffs:
    """Unit roundoffs of one numerics class in one dtype, and what underflow may take away.

    `accumulate` of sums, products, exp and scaling; `score` of scores as stored; `step` of the steps
    of the softmax as stored; `weight` of weights as stored; `output` of everything handed on in the
    case's dtype. Absolute: `weight_underflow` of a stored weight, `product_underflow` of a product in
    the accumulator, `floor` of a stored output. `reduction` is that of sums over broadcast axes, where
    a gradient makes them with less precision than its other sums.
    """

    accumulate: float
    score: float
    step: float
    weight: float
    output: float
    weight_underflow: float
    product_underflow: float
    floor: float
    reduction: float = 0.0


NO_ROUNDING = Roundoffs(0, 0, 0, 0, 0, 0, 0, 0)
"""Roundoffs of exact arithmetic: the errors stay zero."""


@dataclass(frozen=True)
class Approx:
    """An array and a bound, element by element, on the error of a computed version of it."""

    value: np.ndarray
    error: np.ndarray

    @classmethod
    def exact(cls, value: np.ndarray) -> Approx:
        """An array that everybody has with the same bits."""
        return cls(value, np.zeros(value.shape))

    @property
    def size(self) -> np.ndarray:
        """The largest magnitude a computed version can have, float64."""
        return np.abs(self.value).astype(np.float64) + self.error

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def reshape(self, *shape: int) -> Approx:
        return Approx(self.value.reshape(*shape), self.error.reshape(*shape))

    def moved(self, source: int, destination: int) -> Approx:
        """The array with one axis at another place."""
        return Approx(
            np.moveaxis(self.value, source, destination),
            np.moveaxis(self.error, source, destination),
        )

    def repeated(self, times: int, axis: int) -> Approx:
        """Every slice along `axis` repeated in place: 0, 0, 1, 1."""
        return Approx(np.repeat(self.value, times, axis), np.repeat(self.error, times, axis))


def gamma(n: np.ndarray | float, u: float) -> np.ndarray:
    """gamma_n(u) = n u / (1 - n u); infinite where n u reaches 1."""
    nu = np.asarray(n, np.float64) * u
    return np.where(nu < 1, nu / np.where(nu < 1, 1 - nu, 1), np.inf)


def narrowed(x: np.ndarray, u: Roundoffs) -> Approx:
    """An input, exact, or rounded to the working precision where that is less than the dtype's."""
    lost = u.accumulate if u.accumulate > u.output else 0.0
    return Approx(x, lost * np.abs(x).astype(np.float64))


def stored(x: Approx, unit: float, floor: float = 0.0) -> Approx:
    """`x` rounded once with unit roundoff `unit`; `floor` is the smallest subnormal."""
    return Approx(x.value, x.error + unit * x.size + (floor if unit else 0.0))


def linear(x: Approx, kernel: np.ndarray, bias: np.ndarray | None, u: Roundoffs) -> Approx:
    """x kernel + bias. x (..., n), kernel (n, ...) exact, bias of kernel.shape[1:] exact or None.

    The product is stored in the case's dtype, and so is its sum with the bias: what adds them before
    storing rounds less.
    """
    n, rest = kernel.shape[0], kernel.shape[1:]
    flat = kernel.reshape(n, -1)
    absolute = np.abs(flat).astype(np.float64)
    value = x.value @ flat
    inherited = x.error @ absolute
    made = gamma(n, u.accumulate) * (x.size @ absolute) + n * u.product_underflow
    if u.accumulate > u.output:
        made += u.accumulate * (x.size @ absolute)  # the kernel, rounded like the input
    out = stored(Approx(value, inherited + made), u.output, u.floor)
    if bias is not None:
        out = stored(Approx(out.value + bias.reshape(-1), out.error), u.output, u.floor)
    return out.reshape(*x.value.shape[:-1], *rest)


def scaled_scores(query: Approx, key: Approx, scale: float, u: Roundoffs) -> Approx:
    """scale query key^T. query (..., Lq, D), key (..., Lk, D) -> (..., Lq, Lk).

    Layers scale the query and store it before the product; scaling the scores rounds less. The scores
    are stored twice (product, scaling), as the bound of `suite.judge.tolerance` has it.
    """
    value = (query.value @ key.value.swapaxes(-1, -2)) * scale
    q, k = np.abs(query.value).astype(np.float64), np.abs(key.value).astype(np.float64)
    k, k_error = k.swapaxes(-1, -2), key.error.swapaxes(-1, -2)
    factor = abs(float(scale))
    inherited = factor * (query.error @ k + q @ k_error + query.error @ k_error)
    products = factor * (query.size @ (k + k_error))
    depth = query.value.shape[-1]
    made = (gamma(depth + 2, u.accumulate) + u.output) * products + depth * u.product_underflow
    return stored(Approx(value, inherited + made), 2 * u.score)


def added(a: Approx, b: Approx, unit: float) -> Approx:
    """a + b, stored with unit roundoff `unit`; shapes broadcast."""
    return stored(Approx(a.value + b.value, a.error + b.error), unit)


def tanh(x: Approx, u: Roundoffs, unit: float) -> Approx:
    """tanh x, whose derivative is at most 1; off by 4 roundoffs as computed, stored with `unit`."""
    value = np.tanh(x.value)
    size = np.abs(value).astype(np.float64)
    return stored(Approx(value, np.minimum(x.error, 2.0) + 4 * u.accumulate * size), unit)


def contracted(x: Approx, vector: np.ndarray, u: Roundoffs) -> Approx:
    """sum_i vector_i x_i over the last axis, as scores: products and sum stored. vector (n,) exact."""
    weight = np.abs(vector).astype(np.float64)
    sums = x.size @ weight
    made = (gamma(len(vector), u.accumulate) + u.score) * sums + len(vector) * u.product_underflow
    return stored(Approx(x.value @ vector, x.error @ weight + made), u.score)


@dataclass(frozen=True)
class Attended:
    """Weights (..., Lq, Lk) and output (..., Lq, Dv), each with its bound, and which rows have keys."""

    weights: Approx
    output: Approx
    keys: np.ndarray


def attend(
    scores: Approx,
    value: Approx,
    allowed: np.ndarray | None,
    u: Roundoffs,
    empty_rows: str = "zeros",
) -> Attended:
    """softmax(scores) value over the pairs that `allowed` (broadcastable, True attends) lets through.

    scores (..., Lq, Lk), value (..., Lk, Dv). Rows without keys give zeros, NaN or the mean over all
    values, as `empty_rows` says. With errors d_j of the scores the perturbed weights give
    o' - o = sum_j p_j (e^{d_j} - 1)(v_j - o) / sum_j p_j e^{d_j}, so that the first-order sum is
    multiplied by e^d expm1(d) / d for the largest d of relevant weight, and errors of the values by
    e^{2 d}.
    """
    s, error = scores.value, scores.error
    Lk = s.shape[-1]
    dtype = s.dtype.type
    with np.errstate(all="ignore"):
        if allowed is not None:
            hidden = ~np.broadcast_to(allowed, s.shape)
            s = np.where(hidden, -np.inf, s)
            error = np.where(hidden, 0.0, error)
        m = s.max(-1, keepdims=True) if Lk else np.full((*s.shape[:-1], 1), -np.inf, s.dtype)
        empty = np.isneginf(m)
        shifted = s - np.where(empty, 0, m)
        p = np.exp(shifted)
        p = p / np.where(empty, 1, p.sum(-1, keepdims=True))
        distance = np.where(np.isfinite(shifted), -shifted, 0.0).astype(np.float64)
    if empty_rows == "uniform" and Lk:
        p = np.where(empty, dtype(1) / Lk, p)
    weight = p.astype(np.float64)
    attended = weight > 0 if allowed is None else np.broadcast_to(allowed | empty, s.shape)
    keys = (attended & ~empty).sum(-1)
    counted = np.where(empty[..., 0], Lk, keys)
    d = error + (u.accumulate + u.step) * distance + 4 * u.accumulate
    d = np.where(empty | (weight == 0), 0.0, d)
    peak = np.where(weight > NEGLIGIBLE_WEIGHT, d, 0.0).max(-1, initial=0.0)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.where(peak > 0, np.exp(peak) * np.expm1(peak) / np.where(peak > 0, peak, 1), 1)
        spread = np.exp(2 * peak)
    moved = growth * weight * d
    products = gamma(counted + 4, u.accumulate)[..., None]
    steps = u.weight + 3 * u.step + products

    weight_error = moved + growth * weight * (weight * d).sum(-1, keepdims=True)
    # Weights that are returned are stored in the case's dtype, whatever they were before the product.
    weight_error += (steps + u.output) * weight + np.where(
        attended, u.weight_underflow + u.floor, 0.0
    )
    weight_error = np.where(weight == 0, np.where(attended, weight_error, 0.0), weight_error)

    output = p @ value.value
    size, v = np.abs(output).astype(np.float64), np.abs(value.value).astype(np.float64)
    total = moved @ v + moved.sum(-1, keepdims=True) * size
    total += spread * (weight @ value.error)
    total += steps * (weight @ (v + value.error)) + products * size
    total += u.weight_underflow * (attended.astype(np.float64) @ v)
    total += u.product_underflow * (counted + 1)[..., None]
    filled = Approx(output, total)
    out = stored(filled, u.output, u.floor)
    exact = empty & (empty_rows == "zeros")
    out = Approx(out.value, np.where(exact, 0.0, out.error))
    if empty_rows == "nan":
        p = np.where(empty, np.nan, p)
        out = Approx(np.where(empty, np.nan, out.value), out.error)
    return Attended(Approx(p, weight_error), out, keys)


def averaged(x: Approx, axis: int, u: Roundoffs) -> Approx:
    """The mean over an axis, summed in the accumulator or stored step by step in the case's dtype."""
    n = x.value.shape[axis]
    unit = max(u.accumulate, u.step)
    error = x.error.mean(axis) + gamma(n + 1, unit) * x.size.mean(axis)
    return stored(Approx(x.value.mean(axis), error), u.output, u.floor)

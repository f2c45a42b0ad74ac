"""Gradients of layer norm and batch norm, with how far rounding can move them.

With y = N g + b, N = (x - mean) r, r = 1 / sqrt(variance + epsilon), and D = dy g:

    gain, offset    dg = sum over samples and positions of dy N;  db = sum of dy
    learned         mean and variance are constants (batch norm in evaluation):  dx = r D
    taken from x    over the n features of a token (layer norm), or the n samples and positions of a
                    feature (batch norm in training):
                    dx = r (D - mean(D) - N mean(D N))

Sources: Ioffe, Szegedy, ICML 2015, section 3 (batch norm, with the last line written out step by step);
Ba, Kiros, Hinton 2016, section 3 (layer norm, which differs in the axes alone).

Bounds, by running error analysis, in the notation of `suite.judge.tolerance`; u is that of a step:
u_acc, or u_e where every step is stored. Two ways of computing are covered: the closed form, and the
chain through mean, variance and root, as frameworks differentiate single steps. For x - mean stands
|x| + |mean| wherever rounding makes an error, since libraries sum D x and mean D apart: `reach`.

    D, r D          Products, each stored.
    mean(D N)       The chain makes four products and quotients before the sum (z / s, again / s, times D
                    in TF and torch; -D z and s^-2 apart in JAX), the closed form one and, behind the sum,
                    the difference sum D x - mean sum D: six roundings relative to |D| reach, and a mean.
    r N mean(D N)   The chain has the derivative of the root (2), the quotient by n, the product with z;
                    the closed form r^3 / n (4, and that of 1 / n) and the product with x: six.
    mean            gamma_{n+4}(u_acc) and four stored steps (as in the forward pass); over broadcast axes
                    in the chain, so that a framework may sum in the case's dtype (gamma_n(u_o)).
    dx              The sum r D - mean(r D) - r N mean(D N) and, in the chain, the mean of the last, which
                    is zero but for rounding: four additions, each relative to no more than all parts.
    statistics      Where the backward pass is handed mean and r as they were stored in the case's dtype,
                    each is off by another u_o of itself.
    dg              Six roundings of every dy N as in mean(D N), and their sum, stored once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from references.gradients import absolute
from references.layer_gradients import bias_gradient
from references.layers import Standardised, standardised
from references.running import Approx, Roundoffs, gamma, narrowed, stored


def layer_norm_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    epsilon: float,
    rounding: Roundoffs,
    training: bool = False,
    narrow_statistics: bool = False,
    narrow_biases: Collection[str] = (),
) -> dict[str, Approx]:
    """Gradients of `references.layers.layer_norm` by query, gain and offset.

    query and cotangent (B, L, E), gain and offset (E,) or absent; gradients have these shapes.
    `narrow_statistics`: the backward pass is handed mean and root in the case's dtype. The gradients of
    `narrow_biases`, gain and offset among them, are sums in that dtype.
    """
    made = standardised(narrowed(query, rounding), (2,), None, epsilon, rounding)
    return _gradients(made, (2,), parameters, cotangent, narrow_statistics, narrow_biases, rounding)


def batch_norm_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    epsilon: float,
    rounding: Roundoffs,
    training: bool = False,
    narrow_statistics: bool = False,
    narrow_biases: Collection[str] = (),
) -> dict[str, Approx]:
    """Gradients of `references.layers.batch_norm` likewise; a learned mean and variance are constants."""
    learned = None if training else (parameters["mean"], parameters["variance"])
    made = standardised(narrowed(query, rounding), (0, 1), learned, epsilon, rounding)
    axes = (0, 1) if training else ()
    return _gradients(made, axes, parameters, cotangent, narrow_statistics, narrow_biases, rounding)


def _narrowed(made: Standardised, u: Roundoffs) -> Standardised:
    """The same with mean and root stored in the case's dtype."""
    mean, root = (stored(x, u.output, u.floor) for x in (made.mean, made.root))
    away = mean.error - made.mean.error
    relative = root.error - made.root.error
    shifted = Approx(made.shifted.value, made.shifted.error + away)
    error = made.normal.error + away * root.size + made.shifted.size * relative
    normal = Approx(made.normal.value, error)
    return Standardised(mean, shifted, root, normal, made.reach + away * root.size)


def _gradients(
    made: Standardised, axes: tuple[int, ...], parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray, narrow_statistics: bool, narrow: Collection[str], u: Roundoffs,
) -> dict[str, Approx]:  # fmt: skip
    """Gradients where mean and variance are taken over `axes`, or are constants where there are none."""
    if narrow_statistics:
        made = _narrowed(made, u)
    with np.errstate(all="ignore"):
        found = _chain(made, axes, parameters, cotangent, narrow, u)
    # Where the root may be that of zero nothing is known: zero times infinity.
    return {
        name: Approx(x.value, np.where(np.isnan(x.error), np.inf, x.error))
        for name, x in found.items()
    }


def _chain(
    made: Standardised, axes: tuple[int, ...], parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray, narrow: Collection[str], u: Roundoffs,
) -> dict[str, Approx]:  # fmt: skip
    found: dict[str, Approx] = {}
    received = narrowed(cotangent, u)
    moved = received
    if "gain" in parameters:
        each = _by_normal(received, made, u)
        sizes = received.size * made.reach
        n = sizes[..., 0].size
        sums = _sums(n, u) + (gamma(n, u.output) if "gain" in narrow else 0.0)
        error = each.error.sum((0, 1)) + sums * sizes.sum((0, 1))
        found["gain"] = stored(Approx(each.value.sum((0, 1)), error), u.output, u.floor)
        found["offset"] = bias_gradient(received, u, "offset" in narrow)
        gain = narrowed(parameters["gain"], u)
        moved = _product(received, gain, u)
    direct = _product(moved, made.root, u)  # r D
    if axes:
        direct = _through_statistics(moved, direct, made, axes, u)
    return found | {"query": stored(direct, u.output, u.floor)}


def _through_statistics(
    moved: Approx, direct: Approx, made: Standardised, axes: tuple[int, ...], u: Roundoffs
) -> Approx:
    """dx where mean and variance hang on x; `moved` is D and `direct` r D."""
    unit = _unit(u)
    share = _mean(_by_normal(moved, made, u), moved.size * made.reach, axes, u)  # mean(D N)
    scaled = share.value * made.root.value
    inherited = share.error * made.root.size + absolute(share.value) * made.root.error
    size = share.size * made.root.size * made.reach
    error = inherited * (absolute(made.normal.value) + made.normal.error)
    error = error + absolute(scaled) * made.normal.error + 6 * unit * size
    error = error + _floor(u) * (1 + made.shifted.size)
    bent = Approx(scaled * made.normal.value, error)  # r N mean(D N)
    level = _mean(direct, direct.size, axes, u)
    nothing = _mean(Approx(np.zeros(bent.shape), bent.error), size, axes, u)
    parts = direct.size + size + level.size + nothing.size
    error = direct.error + bent.error + level.error + nothing.error + 4 * unit * parts
    return Approx(direct.value - level.value - bent.value, error)


def _by_normal(x: Approx, made: Standardised, u: Roundoffs) -> Approx:
    """x N, element by element."""
    normal = made.normal
    error = x.error * normal.size + absolute(x.value) * normal.error
    error = error + 6 * _unit(u) * x.size * made.reach + _floor(u)
    return Approx(x.value * normal.value, error)


def _product(a: Approx, b: Approx, u: Roundoffs) -> Approx:
    made = Approx(a.value * b.value, a.error * b.size + absolute(a.value) * b.error)
    return stored(made, _unit(u), _floor(u))


def _mean(x: Approx, sizes: np.ndarray, axes: tuple[int, ...], u: Roundoffs) -> Approx:
    """The mean over `axes`, which stay with size 1, of parts that are summed as numbers of `sizes`."""
    n = int(np.prod([x.shape[axis] for axis in axes]))
    error = x.error.mean(axes, keepdims=True) + _sums(n, u) * sizes.mean(axes, keepdims=True)
    return Approx(x.value.mean(axes, keepdims=True), error)


def _sums(n: int, u: Roundoffs) -> np.ndarray:
    return gamma(n + 4, u.accumulate) + 4 * u.step + gamma(n, u.reduction)


def _unit(u: Roundoffs) -> float:
    return max(u.accumulate, u.step)


def _floor(u: Roundoffs) -> float:
    return u.floor if u.step else u.product_underflow

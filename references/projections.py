"""Projections y = x W + b: forward, backward and along tangents, with how far rounding can move them.

    dx = dy W^T,   dW = sum over samples and positions of x^T dy,   db = sum of dy
    y' = x' W + x W' + b'

One tensor that is handed in as query, key and value receives the sum of all three dx.

Bounds, in the notation of `references.rounding`:

    y            gamma_n(u_acc) sum |x W|, stored in the case's dtype, and so is its sum with the bias:
                 what adds them before storing rounds less.
    dW, db       Stored for every sample and then summed, or one sum; db over broadcast axes, so that a
                 framework may make it in the case's dtype (gamma_n(u_o)).
    dx of one    Three products, each stored, and their sum, whose partial sums are; or one product
    tensor       over the features of all three.
    y'           Every product stored, and every partial sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    magnitude,
    narrowed,
    product,
    stored,
    summed,
    together,
)


def linear(x: Bounded, kernel: np.ndarray, bias: np.ndarray | None, u: Roundoffs) -> Bounded:
    """x kernel + bias. x (..., n), kernel (n, ...) exact, bias of kernel.shape[1:] exact or None."""
    n, rest = kernel.shape[0], kernel.shape[1:]
    flat = kernel.reshape(n, -1)
    size = magnitude(flat)
    rounding = gamma(n, u.accumulate) * (x.size @ size) + n * u.product_underflow
    if u.input:
        rounding += u.input * (x.size @ size)  # the kernel, rounded like the input
    out = stored(Bounded(x.value @ flat, x.error @ size + rounding), u.output, u.floor)
    if bias is not None:
        out = stored(Bounded(out.value + bias.reshape(-1), out.error), u.output, u.floor)
    return out.reshape(*x.shape[:-1], *rest)


def linear_tangent(
    x: Bounded, kernel: np.ndarray, moved: Bounded | None, moved_kernel: np.ndarray | None,
    moved_bias: np.ndarray | None, u: Roundoffs,
) -> Bounded | None:  # fmt: skip
    """y' as x (..., n), kernel (n, ...) and bias move; None is what stands still."""
    shape = (*x.shape[:-1], *kernel.shape[1:])
    parts = [
        None if moved is None else linear(moved, kernel, None, u),
        None if moved_kernel is None else linear(x, moved_kernel, None, u),
        None if moved_bias is None else narrowed(np.broadcast_to(moved_bias, shape), u),
    ]
    return together(parts, u.output, u.floor)


def input_gradient(dy: Bounded, kernel: np.ndarray, u: Roundoffs) -> Bounded:
    """dx (B, L, n) of dy (B, L, m), kernel (n, ...) with m numbers a feature."""
    return linear(dy, np.ascontiguousarray(kernel.reshape(kernel.shape[0], -1).T), None, u)


def kernel_gradient(x: Bounded, dy: Bounded, u: Roundoffs) -> Bounded:
    """dW, (n, m): sum over samples and positions of x^T dy, x (B, L, n), dy (B, L, m), sample by sample
    or all in one sum."""
    each = product(x.swapped, dy, x.shape[1], u)
    total = _over_samples(each, u)
    whole = (x.swapped.size @ dy.size).sum(0)
    error = total.error + gamma(x.shape[0] * x.shape[1], u.accumulate) * whole
    return stored(Bounded(total.value, error), u.output, u.floor)


def bias_gradient(dy: Bounded, u: Roundoffs, name: str) -> Bounded:
    """db (m,) of the bias called `name`: the sum of dy (B, L, m) over samples and positions likewise."""
    rows = summed(dy, (1,), u)
    total = _over_samples(rows[:, 0], u)
    count = dy.shape[0] * dy.shape[1]
    unit = max(u.sum, u.output) if name in u.narrow_biases else u.sum
    error = total.error + gamma(count, unit) * dy.size.sum((0, 1))
    return stored(Bounded(total.value, error), u.output, u.floor)


def _over_samples(each: Bounded, u: Roundoffs) -> Bounded:
    """The sum over the first axis of parts that are stored in the case's dtype."""
    return summed(stored(each, u.output, u.floor), (0,), u)[0]


def from_one_tensor(
    gradients: Sequence[Bounded],
    dys: Sequence[Bounded],
    kernels: Sequence[np.ndarray],
    u: Roundoffs,
) -> Bounded:
    """The sum of what a tensor receives as query, key and value, each of the `gradients` stored; or one
    product of all of dy (B, L, m) with the kernels (n, ...)."""
    flat = [kernel.reshape(kernel.shape[0], -1).T for kernel in kernels]
    products = np.sum([dy.size @ magnitude(w) for dy, w in zip(dys, flat, strict=True)], 0)
    value = np.sum([part.value for part in gradients], 0)
    error = np.sum([part.error for part in gradients], 0)
    error = error + gamma(sum(map(len, flat)), u.accumulate) * products
    stores = len(gradients) - 1
    size = np.sum([part.size for part in gradients], 0)
    return Bounded(value, error + stores * (u.output * size + u.floor))

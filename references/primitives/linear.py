"""Projections y = x W + b.

    dx = dy W^T,   dW = sum over samples and positions of x^T dy,   db = sum of dy
    y' = x' W + x W' + b'

Bounds, in the notation of `references.rounding`:

    y            gamma_n(u_acc) sum |x W|, stored in the case's dtype, and stored again with the bias.
    dW, db       Stored per sample and then summed, or one sum. db is a sum over broadcast axes, which a
                 framework may compute in the case's dtype (gamma_n(u_o)).
    dx of one    One tensor with several projections receives the sum of all dx: products and partial
    tensor       sums are stored; or one product over all m features, gamma_m(u_acc) sum |dy W^T|.
    y'           Every product and every partial sum is stored.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    matrix_product,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Node


class Linear(Node):
    """x W + b for x (..., n), the `kernel` W (n, ...), and the `offset` b (W.shape[1:]) or None.

    - `bias`: the name of b (`Roundoffs.narrow_biases`).
    - `joint_features`: number of features of all projections if one product computes them, else 0.
    """

    def __init__(
        self, u: Roundoffs, x: Node, kernel: Node, offset: Node | None = None, bias: str = "",
        joint_features: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(u, x, kernel, offset)
        self.x, self.kernel, self.offset = x, kernel, offset
        self.bias, self.joint_features = bias, joint_features

    @property
    def width(self) -> int:
        """Number of features of the projection."""
        return math.prod(self.kernel.shape[1:])

    @cached_property
    def output(self) -> Bounded:
        """y (..., *W.shape[1:])."""
        kernel = self.kernel.output
        y = times_matrix(self.x.output, flat(kernel), self.u)
        if self.offset is not None:
            y = stored(y + self.offset.output.reshape(-1), self.u.results)
        return y.reshape(*y.shape[:-1], *kernel.shape[1:])

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dx, dW, db."""
        u, x, kernel = self.u, self.x.recomputed, self.kernel.output
        dy = cotangent.reshape(*x.shape[:-1], self.width)
        kernel_T = transposed(flat(kernel))
        dx = times_matrix(dy, kernel_T, u)
        if self.joint_features:
            products = dy.magnitude @ kernel_T.magnitude
            dx = Bounded(dx.value, dx.error + gamma(self.joint_features, u.accumulate) * products)
        db = None
        if self.offset is not None:
            db = bias_gradient(dy, u, self.bias).reshape(*kernel.shape[1:])
        return dx, kernel_gradient(x, dy, u).reshape(*kernel.shape), db

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, (x, kernel, offset) = self.u, tangents
        shape = (*self.x.shape[:-1], self.width)
        parts = [
            None if x is None else times_matrix(x, flat(self.kernel.output), u),
            None if kernel is None else times_matrix(self.x.recomputed, flat(kernel), u),
            None if offset is None else offset.reshape(-1).broadcast_to(shape),
        ]
        total = sum_of_present(parts, u.results)
        assert total is not None
        return total.reshape(*shape[:-1], *self.kernel.shape[1:])


def flat(kernel: Bounded) -> Bounded:
    """Returns a kernel (n, ...) as a matrix (n, m)."""
    return kernel.reshape(kernel.shape[0], math.prod(kernel.shape[1:]))


def transposed(kernel: Bounded) -> Bounded:
    """Returns the transpose (m, n) of a matrix (n, m), contiguous in memory."""
    return Bounded(*(np.ascontiguousarray(x.T) for x in kernel.parts))


def times_matrix(x: Bounded, kernel: Bounded, u: Roundoffs) -> Bounded:
    """Returns x W (..., m), stored, for x (..., n) and the `kernel` W (n, m)."""
    exact, n = x @ kernel, kernel.shape[0]
    rounding = gamma(n, u.accumulate) * (x.magnitude @ kernel.magnitude) + n * u.product_underflow
    return stored(Bounded(exact.value, exact.error + rounding), u.results)


def kernel_gradient(x: Bounded, dy: Bounded, u: Roundoffs) -> Bounded:
    """Returns dW (n, m): the sum of x^T dy over samples and positions, for x (B, L, n) and dy (B, L, m).
    The bound covers both orders: sums per sample that are then added, and one joint sum."""
    sample_gradients = matrix_product(x.mT, dy, x.shape[1], u)
    total = _sum_over_samples(sample_gradients, u)
    joint_size = (x.mT.magnitude @ dy.magnitude).sum(0)
    error = total.error + gamma(x.shape[0] * x.shape[1], u.accumulate) * joint_size
    return stored(Bounded(total.value, error), u.results)


def bias_gradient(dy: Bounded, u: Roundoffs, name: str) -> Bounded:
    """Returns db (m,) of the bias `name`: the sum of dy (B, L, m) over samples and positions. The bound
    covers both orders, as in `kernel_gradient`."""
    rows = sum_over_axes(dy, (1,), u)
    total = _sum_over_samples(rows[:, 0], u)
    count = dy.shape[0] * dy.shape[1]
    unit = max(u.sum, u.output) if name in u.narrow_biases else u.sum
    error = total.error + gamma(count, unit) * dy.magnitude.sum((0, 1))
    return stored(Bounded(total.value, error), u.results)


def _sum_over_samples(x: Bounded, u: Roundoffs) -> Bounded:
    """Returns the sum of x over its first axis, the samples. Each summand is stored in the case's
    dtype."""
    return sum_over_axes(stored(x, u.results), (0,), u)[0]

"""Steps of latent attention: projections of every head, scores in two parts, and projected averages.

    y_h = x_h W_h
    S   = scale (Q K^T + Q^R K^R^T)
    O   = (P C) W

Bounds, in the notation of `references.rounding`; |.| is elementwise, delta bounds an error:

    y     gamma_n(u_acc) |x| |W|, stored in the case's dtype. dx and dW as those of a projection
          (`references.primitives.linear`).
    S     sum delta |Q K| and gamma_{D+E+2}(u_acc) |scale| (|Q| |K|^T + |Q^R| |K^R|^T), whether one
          product takes both parts or their sums are added; two stores like scores, and one of each part,
          which kernels with two products may store by itself (u_s |S^R| and u_s |S - S^R|). Derivatives
          recompute S so, with one store more for the scale. Gradients and tangents are those of both
          parts (`references.primitives.scores`).
    O     With v_j = c_j W, G_j = |c_j| |W| and the average a = P C of latents:

              |dO| <= the bound of attention over the v_j (`references.primitives.softmax`)
                      + gamma_{n+4}(u_acc) (sum_j p_j G_j + |a| |W|)
                      + (u_o + gamma_{R+2}(u_acc)) |a| |W|
                      + (e_o + (n + 1) e_acc) sum_m |W_m| + (R + 2) e_acc

          A weight is rounded once for a whole latent. So errors of scores and weights reach the output
          through v_j - o, and not through |c_j| |W|, which may be many times larger. Only the products
          p_j c_jm, their sums and the stored average round in every component m of its own.

A projection that only selects or negates components, with at most one entry of 1 or -1 per column, rounds
nothing: other products are zeros. Latents that come with an error, such as codes times scales, are no
numbers of the dtype, and are rounded when keys and values of them are stored.

Source: the bounds are derived here, with Higham (2002), sections 3.1 and 3.3.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.linear import Linear
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.rounding import (
    Bounded,
    Store,
    gamma,
    magnitude,
    matrix_product,
    perturbed,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Leaf, Node


def selects(kernel: np.ndarray) -> np.ndarray:
    """Returns, boolean (..., 1, m), which columns of matrices (..., n, m) are zeros with at most one
    entry of 1 or -1."""
    entries = np.abs(kernel)
    is_unit_or_zero = ((entries == 0) | (entries == 1)).all(-2, keepdims=True)
    return np.asarray(is_unit_or_zero & ((entries != 0).sum(-2, keepdims=True) <= 1))


class ProjectedLatents(Linear):
    """Keys or values x W, (B, L, H, m), for latents x (B, L, n) and W (n, H, m)."""

    @cached_property
    def output(self) -> Bounded:
        """x W. Columns of W that only select a component (`selects`) round nothing: their error is 0 if
        x and W have none there."""
        y, x, kernel = super().output, self.x.output, self.kernel.output
        flat = kernel.value.reshape(len(kernel.value), -1)
        only_selects = selects(flat).reshape(1, 1, *kernel.shape[1:])
        unrounded = (x @ Bounded(flat, kernel.error.reshape(flat.shape))).reshape(*y.shape)
        return Bounded(y.value, np.where(only_selects & (unrounded.error == 0), 0.0, y.error))


class HeadProjection(Node):
    """x_h W_h, (B, H, L, m), for x (B, H, L, n) and W (H, n, m)."""

    def __init__(self, x: Node, kernel: Node) -> None:
        super().__init__(x.u, x, kernel)
        self.x, self.kernel = x, kernel

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:3], self.kernel.shape[-1])

    def projected(self, x: Bounded, kernel: Bounded) -> Bounded:
        """Returns x W, stored, for x (B, H, L, n) and W (H, n, m)."""
        u, exact = self.u, x @ kernel
        rounded = stored(matrix_product(x, kernel, kernel.shape[-2], u), u.results)
        return Bounded(rounded.value, np.where(selects(kernel.value), exact.error, rounded.error))

    @cached_property
    def output(self) -> Bounded:
        return self.projected(self.x.output, self.kernel.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self.projected(self.x.recomputed, self.kernel.output)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns dx = dy W^T; dW = x^T dy, stored per sample and then summed, or one sum."""
        u, x = self.u, self.x.recomputed
        dx = self.projected(cotangent, self.kernel.output.mT)
        B, _, L, _ = x.shape
        sample_gradients = stored(matrix_product(x.mT, cotangent, L, u), u.results)
        total = sum_over_axes(sample_gradients, (0,), u)[0]
        joint_rounding = gamma(B * L, u.accumulate) * (x.mT.magnitude @ cotangent.magnitude).sum(0)
        dW = stored(Bounded(total.value, total.error + joint_rounding), u.results)
        return dx, dW

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        u, (x, kernel) = self.u, tangents
        parts = [
            None if x is None else self.projected(x, self.kernel.output),
            None if kernel is None else self.projected(self.x.recomputed, kernel),
        ]
        return sum_of_present(parts, u.results)


class ScoreSum(Node):
    """scale (Q K^T + Q^R K^R^T), (B, H, Lq, Lk), from the scores of both parts."""

    def __init__(self, first: Scores, second: Scores) -> None:
        super().__init__(first.u, *first.operands[:2], *second.operands[:2])
        self.parts = (first, second)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    def summed(self, operands: list[tuple[Bounded, Bounded]], stores: int) -> Bounded:
        """Returns the sum of the scores of two (query, key) `operands`, stored `stores` times."""
        u, scale = self.u, self.parts[0].scale
        depth = sum(query.shape[-1] for query, _ in operands)
        first, second = (
            stored(matrix_product(query, key.mT, depth, u) * scale, Store(u.score))
            for query, key in operands
        )
        return stored(first + second, Store(stores * u.score, u.score_floor))

    @cached_property
    def output(self) -> Bounded:
        keys = [part.pairs.without_hidden_nan(part.key.output) for part in self.parts]
        return self.summed(
            [(part.query.output, key) for part, key in zip(self.parts, keys, strict=True)], 2
        )

    @cached_property
    def recomputed(self) -> Bounded:
        return self.summed([(part.query.recomputed, part.attended_keys) for part in self.parts], 3)

    def gradients(self, cotangent: Bounded) -> Gradients:
        return [dx for part in self.parts for dx in part.gradients(cotangent)[:2]]

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        part_tangents = [
            part.tangent(*pair, None) if any(x is not None for x in pair) else None
            for part, pair in zip(self.parts, (tangents[:2], tangents[2:]), strict=True)
        ]
        return sum_of_present(part_tangents, self.u.scaled_scores)


class ProjectedAverage(HeadProjection):
    """The average of latents that `attend` gives, times W (H, R, Dv): (B, H, Lq, Dv)."""

    def __init__(self, attend: Attend, kernel: Node) -> None:
        super().__init__(attend, kernel)
        self.attend = attend

    @cached_property
    def output(self) -> Bounded:
        u, attend, kernel = self.u, self.attend, self.kernel.output
        latents = attend.pairs.without_hidden_nan(attend.value.output)
        unabsorbed = Attend(u, attend.scores, Leaf(u, latents @ kernel), attend.pairs).answer
        weights, W = magnitude(unabsorbed.weights.value), kernel.magnitude
        weights = np.where(np.isnan(weights), 0.0, weights)
        n, R = attend.pairs.keys[..., None], kernel.shape[-2]
        average, spread = (weights @ latents.magnitude) @ W, weights @ (latents.magnitude @ W)
        average_size = magnitude(weights @ latents.value.astype(np.float64)) @ W
        rounding = gamma(n + 4, u.accumulate) * (spread + average)
        underflow = (u.floor + (n + 1) * u.product_underflow) * W.sum(-2, keepdims=True)
        underflow = underflow + (R + 2) * u.product_underflow
        rounding = rounding + u.output * average_size + underflow
        rounding = rounding + np.where(
            selects(kernel.value), 0.0, gamma(R + 2, u.accumulate) * average_size
        )
        bound = perturbed(Bounded(unabsorbed.output.value, rounding))
        return Bounded(bound.value, bound.error + unabsorbed.output.error)

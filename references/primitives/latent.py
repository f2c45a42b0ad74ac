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
    perturbed,
    product,
    stored,
    summed,
    together,
)
from attention_conformance.references.tape import Gradients, Leaf, Node


def selects(kernel: np.ndarray) -> np.ndarray:
    """The columns (..., 1, m) of matrices (..., n, m) that select one component, or none."""
    entries = np.abs(kernel)
    plain = ((entries == 0) | (entries == 1)).all(-2, keepdims=True)
    return np.asarray(plain & ((entries != 0).sum(-2, keepdims=True) <= 1))


class Expanded(Linear):
    """Keys or values x W, (B, L, H, m), for latents x (B, L, n) and W (n, H, m)."""

    @cached_property
    def output(self) -> Bounded:
        y, x, kernel = super().output, self.x.output, self.kernel.output
        flat = kernel.value.reshape(len(kernel.value), -1)
        chosen = selects(flat).reshape(1, 1, *kernel.shape[1:])
        inherited = (x @ Bounded(flat, kernel.error.reshape(flat.shape))).reshape(*y.shape)
        return Bounded(y.value, np.where(chosen & (inherited.error == 0), 0.0, y.error))


class PerHead(Node):
    """x_h W_h, (B, H, L, m), for x (B, H, L, n) and W (H, n, m)."""

    def __init__(self, x: Node, kernel: Node) -> None:
        super().__init__(x.u, x, kernel)
        self.x, self.kernel = x, kernel

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:3], self.kernel.shape[-1])

    def projected(self, x: Bounded, kernel: Bounded) -> Bounded:
        """x W, stored."""
        u, exact = self.u, x @ kernel
        rounded = stored(product(x, kernel, kernel.shape[-2], u), u.results)
        return Bounded(rounded.value, np.where(selects(kernel.value), exact.error, rounded.error))

    @cached_property
    def output(self) -> Bounded:
        return self.projected(self.x.output, self.kernel.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self.projected(self.x.recomputed, self.kernel.output)

    def gradients(self, received: Bounded) -> Gradients:
        """dx = dy W^T; dW = x^T dy, stored per sample and then summed, or one sum."""
        u, x = self.u, self.x.recomputed
        dx = self.projected(received, self.kernel.output.swapped)
        B, _, L, _ = x.shape
        each = stored(product(x.swapped, received, L, u), u.results)
        total = summed(each, (0,), u)[0]
        whole = gamma(B * L, u.accumulate) * (x.swapped.size @ received.size).sum(0)
        dW = stored(Bounded(total.value, total.error + whole), u.results)
        return dx, dW

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        u, (x, kernel) = self.u, moved
        parts = [
            None if x is None else self.projected(x, self.kernel.output),
            None if kernel is None else self.projected(self.x.recomputed, kernel),
        ]
        return together(parts, u.results)


class PartedScores(Node):
    """The sum of two products of queries and keys, (B, H, Lq, Lk)."""

    def __init__(self, one: Scores, two: Scores) -> None:
        super().__init__(one.u, *one.operands[:2], *two.operands[:2])
        self.parts = (one, two)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    def summed(self, pairs: list[tuple[Bounded, Bounded]], stores: int) -> Bounded:
        """The scores of queries and keys, stored `stores` times."""
        u, scale = self.u, self.parts[0].scale
        depth = sum(query.shape[-1] for query, _ in pairs)
        products = [product(query, key.swapped, depth, u) * scale for query, key in pairs]
        one, two = products
        apart = u.score * (magnitude(one.value) + magnitude(two.value))
        whole = Bounded(one.value + two.value, one.error + two.error + apart)
        return stored(whole, Store(stores * u.score, u.score_floor))

    @cached_property
    def output(self) -> Bounded:
        keys = [part.pairs.shown_slots(part.key.output) for part in self.parts]
        return self.summed(
            [(part.query.output, key) for part, key in zip(self.parts, keys, strict=True)], 2
        )

    @cached_property
    def recomputed(self) -> Bounded:
        return self.summed([(part.query.recomputed, part.seen) for part in self.parts], 3)

    def gradients(self, received: Bounded) -> Gradients:
        return [dx for part in self.parts for dx in part.gradients(received)[:2]]

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        moves = [
            part.tangent(*pair, None) if any(x is not None for x in pair) else None
            for part, pair in zip(self.parts, (moved[:2], moved[2:]), strict=True)
        ]
        return together(moves, self.u.scaled_scores)


class Lifted(PerHead):
    """The average of latents over attention, projected: (B, H, Lq, Dv) for W (H, R, Dv)."""

    def __init__(self, attend: Attend, kernel: Node) -> None:
        super().__init__(attend, kernel)
        self.attend = attend

    @cached_property
    def output(self) -> Bounded:
        u, attend, kernel = self.u, self.attend, self.kernel.output
        latents = attend.pairs.shown_slots(attend.value.output)
        through = Attend(u, attend.scores, Leaf(u, latents @ kernel), attend.pairs).answer
        weights, W = magnitude(through.weights.value), kernel.size
        weights = np.where(np.isnan(weights), 0.0, weights)
        n, R = attend.pairs.keys[..., None], kernel.shape[-2]
        average, spread = (weights @ latents.size) @ W, weights @ (latents.size @ W)
        middle = magnitude(weights @ latents.value.astype(np.float64)) @ W
        own = gamma(n + 4, u.accumulate) * (spread + average)
        lost = (u.floor + (n + 1) * u.product_underflow) * W.sum(-2, keepdims=True)
        lost = lost + (R + 2) * u.product_underflow
        own = own + u.output * middle + lost
        own = own + np.where(selects(kernel.value), 0.0, gamma(R + 2, u.accumulate) * middle)
        bound = perturbed(Bounded(through.output.value, own))
        return Bounded(bound.value, bound.error + through.output.error)

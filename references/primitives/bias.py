"""Score bias, S = T + b, and the scores x of one more key of value 0 (a sink): one more column of S.

    dT = dS,   db = dS summed over the axes that b lacks
    dx = sum of the column's cotangent over samples and rows

Bounds, in the notation of `references.rounding`:

    S        The sum is stored like a score.
    db       A sum over broadcast axes in the accumulator, stored once. A framework that sums in the
             case's dtype has gamma_n(u_o) for gamma_n(u_acc).
    S'       The sum of both parts, stored like a score.
    own bias A bias that the call makes has roundings relative to |b| (`suite.spec.features.slopes`).
    column   Its score has no product, but conversions round it (`suite.spec.features.sinks`). With m' the
             maximum and n' the number of keys, |lse| <= |m'| + log n', so the error is relative to
             |x| + |m'| + log n'.

Sources: Press, Smith, Lewis, ICLR 2022 (ALiBi); Xiao et al., Efficient streaming language models with
attention sinks, ICLR 2024.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.softmax import sink_size
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    Store,
    stored,
    sum_of_present,
    sum_over_axes,
)
from attention_conformance.references.tape import Gradients, Node


class Biased(Node):
    """Scores (B, H, Lq, Lk) plus a bias that broadcasts to them. `unit`: the relative error of a bias
    that the call itself computes.

    A bias of -inf hides a pair (`Pairs`), and adds nothing here.
    """

    def __init__(self, u: Roundoffs, scores: Node, bias: Node, unit: float = 0.0) -> None:
        super().__init__(u, scores, bias)
        self.scores, self.bias, self.unit = scores, bias, unit

    @property
    def shape(self) -> tuple[int, ...]:
        return self.scores.shape

    def _finite_bias(self, bias: Bounded) -> Bounded:
        """Returns the bias with the relative error `unit`, and 0 in place of -inf."""
        return stored(bias.where(~np.isneginf(bias.value)), Store(self.unit))

    @cached_property
    def output(self) -> Bounded:
        bias = Bounded.exact(self.bias.output.value)
        return stored(self.scores.output + self._finite_bias(bias), Store(self.u.score))

    @cached_property
    def recomputed(self) -> Bounded:
        bias = self._finite_bias(self.bias.output)
        return stored(self.scores.recomputed + bias, Store(self.u.score))

    def gradients(self, cotangent: Bounded) -> Gradients:
        u, shape = self.u, self.bias.shape
        full = (1,) * (4 - len(shape)) + shape
        axes = tuple(a for a in range(4) if full[a] == 1 and cotangent.shape[a] != 1)
        total = stored(sum_over_axes(cotangent, axes, u), u.results)
        return cotangent, total.reshape(*shape)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        scores, bias = tangents
        if bias is not None:
            bias = bias.broadcast_to(self.scores.shape)
        return sum_of_present([scores, bias], self.u.scores)


class Sink(Node):
    """The column (B, H, Lq, 1) of a sink: the scores (H,) of one more key, whose value is 0. It joins the
    softmax over scores (B, H, Lq, Lk). `unit`: the relative error of the column."""

    def __init__(self, u: Roundoffs, column: Node, scores: Node, pairs: Pairs, unit: float) -> None:
        super().__init__(u, column, scores)
        self.column, self.scores, self.pairs, self.unit = column, scores, pairs, unit

    @cached_property
    def output(self) -> Bounded:
        return self._column_of(self.scores.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self._column_of(self.scores.recomputed)

    def _column_of(self, scores: Bounded) -> Bounded:
        """Returns the column (B, H, Lq, 1). Its error depends on the largest score and the number of keys
        of each row."""
        allowed = self.pairs.allowed
        hidden = np.where(allowed, scores.value, -np.inf)
        largest = hidden.max(-1, keepdims=True, initial=-np.inf)
        keys = allowed.sum(-1, keepdims=True)
        column = self.column.output.value[:, None, None]
        error = self.unit * sink_size(column, largest, keys)
        return Bounded(np.broadcast_to(column, error.shape), error)

    def gradients(self, cotangent: Bounded) -> Gradients:
        """Returns the gradient (H,) of the sink, and None for the scores of the keys, which only set the
        bound."""
        total = sum_over_axes(cotangent[..., -1], (0, 2), self.u)
        return stored(total, self.u.results).reshape(-1), None

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        column, _ = tangents
        if column is None:
            return None
        return column[:, None, None].broadcast_to((*self.scores.shape[:-1], 1))

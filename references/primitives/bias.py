"""Score bias, S = T + b, and sinks, which are a column beside the scores.

    dT = dS,   db = dS summed over the axes that b lacks
    dsink = sum of the column's cotangent over samples and rows

Bounds, in the notation of `references.rounding`:

    S        The sum is stored like a score.
    db       A sum over broadcast axes in the accumulator, stored once. A framework that sums in the
             case's dtype has gamma_n(u_o) for gamma_n(u_acc).
    S'       The sum of both parts, stored like a score.
    slopes   A bias that the call makes from slopes (ALiBi) has the error (4 u_acc + u_s) |b|. A slope is
             multiplied by its distance, and the bias may be stored like a score. Kernels divide the slope
             by the scale, or multiply it by log2 e, and scale the sum with the scores: four roundings.
    sink     Its score has no product. But implementations with powers of 2 multiply it by log2 e; others
             multiply the output of a softmax without sink by sigmoid(lse - sink), with lse stored in the
             accumulator. With m' the maximum and n' the number of keys, |lse| <= |m'| + log n', so the
             error is at most 2 u_acc (|sink| + |m'| + log n').

Sources: Press, Smith, Lewis, ICLR 2022 (ALiBi); Xiao et al., Efficient streaming language models with
attention sinks, ICLR 2024 (sinks).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.primitives.pairs import Pairs
from references.primitives.softmax import sink_error
from references.rounding import Bounded, Roundoffs, magnitude, stored, summed, together
from references.tape import Gradients, Node


class Biased(Node):
    """Scores (B, H, Lq, Lk) plus a bias that broadcasts to them. `own`: the call itself makes the bias.

    A bias of -inf hides a pair (`Pairs`), and adds nothing here.
    """

    def __init__(self, u: Roundoffs, scores: Node, bias: Node, own: bool = False) -> None:
        super().__init__(u, scores, bias)
        self.scores, self.bias, self.own = scores, bias, own

    @property
    def shape(self) -> tuple[int, ...]:
        return self.scores.shape

    def _added(self, bias: Bounded) -> Bounded:
        """The bias with its own roundings, 0 where it is -inf."""
        finite = bias.where(~np.isneginf(bias.value))
        made = 4 * self.u.accumulate + self.u.score if self.own else 0.0
        return Bounded(finite.value, finite.error + made * magnitude(finite.value))

    @cached_property
    def output(self) -> Bounded:
        bias = Bounded.exact(self.bias.output.value)
        return stored(self.scores.output + self._added(bias), self.u.score)

    @cached_property
    def recomputed(self) -> Bounded:
        total = self.scores.recomputed + self._added(self.bias.output)
        return Bounded(total.value, total.error + self.u.score * magnitude(total.value))

    def gradients(self, received: Bounded) -> Gradients:
        u, shape = self.u, self.bias.shape
        full = (1,) * (4 - len(shape)) + shape
        axes = tuple(a for a in range(4) if full[a] == 1 and received.shape[a] != 1)
        total = stored(summed(received, axes, u), u.output, u.floor)
        return received, total.reshape(*shape)

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        scores, bias = moved
        if bias is not None:
            bias = bias.broadcast_to(self.scores.shape)
        return together([scores, bias], self.u.score, self.u.score_floor)


class Sink(Node):
    """The column (B, H, Lq, 1) of sinks (H,), beside scores (B, H, Lq, Lk)."""

    def __init__(self, u: Roundoffs, sinks: Node, scores: Node, pairs: Pairs) -> None:
        super().__init__(u, sinks, scores)
        self.sinks, self.scores, self.pairs = sinks, scores, pairs

    @cached_property
    def output(self) -> Bounded:
        return self._beside(self.scores.output)

    @cached_property
    def recomputed(self) -> Bounded:
        return self._beside(self.scores.recomputed)

    def _beside(self, scores: Bounded) -> Bounded:
        allowed = self.pairs.allowed
        hidden = np.where(allowed, scores.value, -np.inf)
        largest = hidden.max(-1, keepdims=True, initial=-np.inf)
        keys = allowed.sum(-1, keepdims=True)
        sink = self.sinks.output.value[:, None, None]
        error = self.u.accumulate * sink_error(sink, largest, keys)
        return Bounded(np.broadcast_to(sink, error.shape), error)

    def gradients(self, received: Bounded) -> Gradients:
        """The gradient of the sinks. The scores receive nothing: they only set the bound."""
        total = summed(received[..., -1], (0, 2), self.u)
        return stored(total, self.u.output, self.u.floor).reshape(-1), None

    def tangent(self, *moved: Bounded | None) -> Bounded | None:
        sinks, _ = moved
        if sinks is None:
            return None
        column = (*self.scores.shape[:-1], 1)
        return sinks[:, None, None].broadcast_to(column)

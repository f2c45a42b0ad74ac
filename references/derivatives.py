"""Derivatives of softmax(scores) value, with how far rounding can move them.

For a cotangent dO of the output O = P V, P = softmax(S), and for tangents S' and V' (Dao et al., NeurIPS
2022, section 3.1 and appendix B.2; the tangent by the chain rule):

    dV_j  = sum_i P_ij dO_i          summed over the query heads of a group
    dP_ij = dO_i . V_j
    D_i   = sum_j P_ij dP_ij = dO_i . O_i
    dS_ij = P_ij (dP_ij - D_i)       also the gradient of a bias, summed over the axes it lacks
    O'_i  = sum_j P_ij (S'_ij - sum_l P_il S'_il) V_j + sum_j P_ij V'_j

and of a cotangent g of the log-sum-exp L_i = log sum_j e^S_ij, dS_ij = P_ij g_i.

A sink is one more key with V = 0, so that dP = 0: its gradient is -sum_i P_i D_i, with P_i its weight in
row i.

Bounds, by running error analysis, one step at a time, in the notation of `references.rounding`; |.| is
element by element and delta a bound on an error:

    P        See `references.softmax`: weights as a backward pass recomputes them.
    dP       gamma_Dv(u_acc) sum_c |dO_c V_jc|, stored like a score (u_s).
    D        Either sum: sum_j (delta P |dP| + P delta dP) + gamma_n sum_j P |dP|, its products and
             the sum stored where the steps of a softmax are (u_e, and e_e of each of the n + 1); or
             sum_c |dO_c| delta O_c + gamma_Dv sum |dO O| with O as it was handed out (u_o). The larger
             of the two.
    dS       delta P |dP - D| + P (delta dP + delta D) + the roundings of a difference (relative to
             |dP| + |D|, for those who compute P dP - P D), a product and a store: dS is stored like
             a score (`eager`) or narrowed before the products (u_p). P dP and P D are steps,
             too, and lose e_e each. Here cancellation lives: delta dP and delta D stay when dP - D
             vanishes.
    dV       sum_i delta P |dO| + gamma_{n+2}(u_acc) sum_i |P dO|, stored once (u_o); with grouped heads
             every query head's is stored and then their sum.
    sums     Over the axes that a bias lacks, and over the heads of a group, in the accumulator; where a
             framework makes these in the case's dtype, gamma_n(u_o) stands for gamma_n(u_acc).
    blocks   Where running sums are stored in the case's dtype after every block of rows (head after head
             of a group), every store of a running sum, which is never more than sum |P dO|, adds u_o
             times that.
    lse      delta P |g| + the roundings of a product and a store, as of dS.
    sink     Its weight may be computed as one minus that of the keys (the derivative of a sigmoid), which
             adds u_acc times the latter.
    O'       S' - sum P S' stored where the steps of a softmax are, P (S' - sum P S') like dS, both
             products with values, and their sum, in the case's dtype.

Underflow. Everything that is stored loses up to half the smallest subnormal of its dtype, here a whole
one: e_e is that of the dtype where steps are stored in it, else of the accumulator. Sums and
differences of stored numbers lose nothing, since they are multiples of the smallest subnormal.
Gradients are small where values are: with V near the smallest normal number dP is, P dP is some n times
smaller, and what is stored of it may be nothing but its underflow. Where subnormals are flushed the
smallest normal number stands for the smallest subnormal, and a product loses what is subnormal of its
operands, too: of |a b| at most |b| where a is subnormal, and |a| likewise
(`references.rounding.product`).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from references.rounding import (
    Bounded,
    Roundoffs,
    gamma,
    magnitude,
    narrowed,
    perturbed,
    product,
    stored,
    summed,
    together,
)
from references.softmax import check_empty_rows, recomputed_weights, sink_error

EMPTY_ROW_GRADIENTS = ("zeros", "uniform", "scores")
"""What a row without keys is to a derivative: zeros, which take no gradient; the mean of all values, with
weights that are constants, so that values alone take its cotangent; or the same mean with scores that are
equal, since what hides them absorbed them, and that take gradients like any others."""


class Pairs:
    """Which pairs of a query and a key take part in a derivative.

    `allowed` (B, H, Lq, Lk); `blank` (B, H, Lq, 1), rows that the mask leaves without keys and whose
    scores are equal numbers, if `empty_rows` is "scores"; `keys` (B, H, Lq) how many keys a row has
    before that; `bias` (B, H, Lq, Lk), -inf included, or None; `own_bias`: the call makes it itself. Rows
    with a finite sink follow no election.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], mask: np.ndarray | None, bias: np.ndarray | None,
        empty_rows: str, sinks: np.ndarray | None = None, own_bias: bool = False,
    ) -> None:  # fmt: skip
        self.own_bias = own_bias
        check_empty_rows(empty_rows, EMPTY_ROW_GRADIENTS)
        allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        self.bias = None if bias is None else np.broadcast_to(bias, shape)
        shown = np.ones(shape, bool) if self.bias is None else ~np.isneginf(self.bias)
        self.keys = np.asarray((allowed & shown).sum(-1))
        self.averages = empty_rows == "uniform"
        self.blank: np.ndarray = np.zeros((*shape[:3], 1), bool)
        if empty_rows == "scores":
            sunk = False if sinks is None else np.isfinite(sinks)[:, None, None]
            self.blank = np.asarray(~allowed.any(-1, keepdims=True) & ~np.asarray(sunk))
        self.allowed = (allowed | self.blank) & shown

    def moving_bias(self, tangent: Bounded | None) -> Bounded | None:
        """The tangent of a bias as that of every pair, 0 where the bias stands still; None for none."""
        if tangent is None:
            return None
        value, error = (
            np.broadcast_to(x, self.allowed.shape) for x in (tangent.value, tangent.error)
        )
        return self.attended(Bounded(value, error))

    @cached_property
    def rows(self) -> np.ndarray:
        """How many rows attend a key, (B, H, Lk, 1)."""
        return self.allowed.swapaxes(-1, -2).sum(-1)[..., None]

    def seen(self, x: Bounded) -> Bounded:
        """Keys or values (B, H, Lk, .) with zeros for those that no row attends: these may be NaN."""
        return x.where(np.asarray(self.allowed.any(-2))[..., None])

    def attended(self, x: Bounded) -> Bounded:
        """x (B, H, Lq, Lk) with zeros for pairs that do not attend."""
        return x.where(self.allowed)


class Attention:
    """softmax(scores) value with its derivatives, one step a method, to be read beside the derivation.

    scores (B, H, Lq, Lk) before bias and mask, value (B, H, Lk, Dv) with the heads of a group repeated
    (`group` times), sinks (H,) in the precision of the scores.
    """

    def __init__(
        self, scores: Bounded, value: Bounded, pairs: Pairs, u: Roundoffs,
        sinks: np.ndarray | None = None, group: int = 1,
    ) -> None:  # fmt: skip
        self.pairs, self.u, self.group = pairs, u, group
        self.Lk = scores.shape[-1]
        self.allowed, self.value = pairs.allowed, pairs.seen(value)
        self.scores = self._biased(scores)
        self.sunk = sinks is not None
        if sinks is not None:
            self._extend(sinks)

    def _biased(self, scores: Bounded) -> Bounded:
        u, pairs = self.u, self.pairs
        if pairs.bias is not None:
            s = scores.value + pairs.bias
            finite = np.where(pairs.allowed, pairs.bias, 0)
            error = scores.error + u.score * magnitude(s) + narrowed(finite, u).error
            if pairs.own_bias:
                error = error + (4 * u.accumulate + u.score) * magnitude(finite)
            scores = Bounded(s, error)
        return scores.where(~pairs.blank) if pairs.blank.any() else scores

    def _extend(self, sinks: np.ndarray) -> None:
        """One more key, the sink, whose value is 0."""
        column = (*self.scores.shape[:-1], 1)
        hidden = np.where(self.allowed, self.scores.value, -np.inf)
        largest = hidden.max(-1, keepdims=True, initial=-np.inf)
        sink = sinks[:, None, None]
        error = self.u.accumulate * sink_error(sink, largest, self.keys[..., None])
        self.scores = _beside(
            self.scores, Bounded(np.broadcast_to(sink, column), np.broadcast_to(error, column))
        )
        finite = np.broadcast_to(np.isfinite(sink), column)
        self.allowed = np.concatenate([self.allowed, finite], -1)
        row = Bounded.exact(np.zeros_like(self.value.value[..., :1, :]))
        self.value = Bounded(
            np.concatenate([self.value.value, row.value], -2),
            np.concatenate([self.value.error, row.error], -2),
        )

    @property
    def keys(self) -> np.ndarray:
        """How many keys take part, a sink among them, (B, H, Lq)."""
        return self.allowed.sum(-1)

    def real(self, x: Bounded) -> Bounded:
        """x (B, H, Lq, .) without the column of the sink."""
        return x[..., : self.Lk] if self.sunk else x

    @cached_property
    def weights(self) -> Bounded:
        """P as a backward pass has it."""
        with np.errstate(all="ignore"):
            p = recomputed_weights(
                self.scores.value, self.scores.error, self.allowed, self.keys, self.u
            )
        if self.sunk:
            others = np.where(self.allowed[..., -1], 1 - p.value[..., -1].astype(np.float64), 0.0)
            p.error[..., -1] += self.u.accumulate * others
        return p

    @cached_property
    def shared(self) -> tuple[Bounded, np.ndarray]:
        """The weights that values are averaged with, (B, H, Lq, Lk), and which rows (B, H, Lq, 1) average
        them all though they have no keys."""
        u, p = self.u, self.weights
        averaging = (self.keys == 0)[..., None]
        if not self.pairs.averages or not self.Lk:
            return self.real(p), np.zeros_like(averaging)
        share = p.value.dtype.type(1) / self.Lk
        error = 2 * (u.weight + 4 * u.accumulate) * float(share)
        shared = np.where(averaging, share, p.value), np.where(averaging, error, p.error)
        return self.real(Bounded(*shared)), averaging

    def average(self, value: Bounded) -> Bounded:
        """sum_j P_ij V_j of any values (B, H, Lk, .), (B, H, Lq, .), not yet stored."""
        shared, averaging = self.shared
        summands = self.keys[..., None] + averaging * self.Lk
        return product(shared, value, summands, self.u)

    def value_gradient(self, cotangent: Bounded) -> Bounded:
        """dV, (B, Hkv, Lk, Dv), of dO (B, H, Lq, Dv)."""
        received, averaging = self.shared
        rows = self.pairs.rows + averaging.sum(-2, keepdims=True)
        return by_keys(received, cotangent, rows, self.group, self.u)

    def weight_gradient(self, cotangent: Bounded) -> Bounded:
        """dP = dO V^T, stored like a score; zero for pairs that do not attend."""
        u = self.u
        dP = product(cotangent, self.value.swapped, self.value.shape[-1], u)
        return stored(dP, u.score, u.score_floor).where(self.allowed)

    def mean(self, dP: Bounded, cotangent: Bounded) -> Bounded:
        """D, (B, H, Lq, 1), by the worse of the two ways."""
        u, p = self.u, self.weights
        D = self.averaged(dP)
        output = p.size @ self.value.size  # bounds |O|
        error = p.error @ self.value.size + magnitude(p.value) @ self.value.error
        error += (
            gamma(self.keys + 4, u.accumulate)[..., None] * output + u.output * output + u.floor
        )
        width = self.value.shape[-1]
        products = (cotangent.size * output).sum(-1, keepdims=True)
        by_output = (cotangent.size * error + cotangent.error * output).sum(-1, keepdims=True)
        by_output += gamma(width, u.accumulate) * products + (width + 1) * u.step_floor
        return perturbed(Bounded(D.value, np.maximum(D.error, by_output)))

    def averaged(self, x: Bounded) -> Bounded:
        """sum_j P_j x_j over the keys, which stay with size 1."""
        u, p = self.u, self.weights
        inherited = (p.error * x.size + magnitude(p.value) * x.error).sum(-1, keepdims=True)
        sums = (p.size * x.size).sum(-1, keepdims=True)
        rounding = gamma(self.keys + 2, u.accumulate)[..., None] + 2 * u.step
        error = inherited + rounding * sums + (self.keys[..., None] + 1) * u.step_floor
        return Bounded((p.value * x.value).sum(-1, keepdims=True), error)

    def score_gradient(self, cotangent: Bounded) -> Bounded:
        """dS = P (dP - D), as it is stored; the last column is the sink's, if there are sinks."""
        u, p = self.u, self.weights
        dP = self.weight_gradient(cotangent)
        D = self.mean(dP, cotangent)
        difference = dP.value - D.value
        apart = magnitude(difference)
        inherited = dP.error + D.error
        # P (dP - D) by its difference, or as P dP - P D, whose parts are larger.
        parts = np.maximum(apart, dP.size + D.size)
        rounded = (u.accumulate + u.step) * (parts + inherited)
        value = np.where(self.allowed, p.value * difference, 0)
        error = p.error * apart + p.size * (inherited + rounded)
        error += (u.accumulate + u.step) * (magnitude(value) + error) + 2 * u.step_floor
        dS = stored(Bounded(value, error), max(u.score, u.weight), u.score_floor)
        return dS.where(self.allowed)

    def lse_score_gradient(self, cotangent: Bounded) -> Bounded:
        """dS = P g, as it is stored, of g (B, H, Lq, 1)."""
        u, p = self.u, self.weights
        value = np.where(self.allowed, p.value * cotangent.value, 0)
        error = p.error * cotangent.size + p.size * cotangent.error
        error += (u.accumulate + u.step) * (magnitude(value) + error) + u.step_floor
        dS = stored(Bounded(value, error), max(u.score, u.weight), u.score_floor)
        return dS.where(self.allowed)

    def bias_gradient(self, dS: Bounded, shape: tuple[int, ...]) -> Bounded:
        """The gradient of a bias of this shape, which broadcasts to that of the scores: a sum over the
        axes that the bias lacks, stored once."""
        u, full = self.u, (1,) * (4 - len(shape)) + tuple(shape)
        dS = self.real(dS)
        axes = tuple(a for a in range(4) if full[a] == 1 and dS.shape[a] != 1)
        return stored(summed(dS, axes, u), u.output, u.floor).reshape(*shape)

    def sink_gradient(self, dS: Bounded) -> Bounded:
        """The gradient of the sinks, (H,): a sum over samples and rows, stored once."""
        total = summed(dS[..., -1], (0, 2), self.u)
        return stored(total, self.u.output, self.u.floor).reshape(-1)

    def tangent(
        self, scores: Bounded | None, value: Bounded | None, sinks: Bounded | None = None
    ) -> Bounded:
        """O', as scores (B, H, Lq, Lk), bias included, value (B, H, Lk, Dv) and sinks (H,) move; None is
        what stands still."""
        u = self.u
        parts: list[Bounded | None] = []
        if scores is not None or sinks is not None:
            moved = self._moving_scores(scores, sinks)
            dP = self._moving_weights(moved)
            products = product(dP, self.value, self.keys[..., None], u)
            parts.append(stored(products, u.output, u.floor))
        if value is not None:
            parts.append(stored(self.average(value), u.output, u.floor))
        total = together(parts, u.output, u.floor)
        if total is None:
            shape = (*self.scores.shape[:-1], self.value.shape[-1])
            return Bounded.exact(np.zeros(shape, self.scores.value.dtype))
        return total

    def _moving_scores(self, scores: Bounded | None, sinks: Bounded | None) -> Bounded:
        """S' with the column of the sink."""
        column = (*self.scores.shape[:-1], 1)
        if scores is None:
            zeros = np.zeros((*column[:-1], self.Lk), self.scores.value.dtype)
            scores = Bounded.exact(zeros)
        if self.sunk:
            sink = Bounded.exact(np.zeros(column, scores.value.dtype))
            if sinks is not None:
                sink = Bounded(
                    np.broadcast_to(sinks.value[:, None, None], column),
                    np.broadcast_to(sinks.error[:, None, None], column),
                )
            scores = _beside(scores, sink)
        return scores.where(self.allowed)

    def _moving_weights(self, moved: Bounded) -> Bounded:
        """P' = P (S' - sum P S')."""
        u, p = self.u, self.weights
        mean = self.averaged(moved)
        apart = moved.value - mean.value
        distance, inherited = magnitude(apart), moved.error + mean.error
        inherited = inherited + (u.accumulate + u.step) * (distance + inherited)
        error = p.error * distance + p.size * inherited + 2 * u.step_floor
        unit = max(u.score, u.weight, u.step) + u.accumulate
        return stored(Bounded(p.value * apart, error), unit, u.score_floor).where(self.allowed)


def by_keys(a: Bounded, b: Bounded, summands: np.ndarray, group: int, u: Roundoffs) -> Bounded:
    """a^T b, summed over the query heads of each group: (B, Hkv, Lk, .). a (B, H, Lq, Lk) with
    `summands` rows that are not zero for a key, b (B, H, Lq, .).

    Every head's is stored and then their sum; or all rows of all heads are one sum, which may be
    stored after every block of rows.
    """
    across, blocks = a.swapped, u.gradient_blocks
    B, H, rows, _ = a.shape
    total = stored(product(across, b, summands, u), u.output, u.floor)
    if group == 1 and blocks is None:
        return total
    split = total.reshape(B, H // group, group, *total.shape[2:])
    whole = (across.size @ b.size).reshape(*split.shape).sum(2)
    if group > 1:
        heads = summed(split, (2,), u)
        error = heads.error.squeeze(2) + gamma(group * rows, u.accumulate) * whole
        total = stored(Bounded(heads.value.squeeze(2), error), u.output, u.floor)
    if blocks is not None:
        stores = group * -(-rows // blocks[0])
        total = Bounded(total.value, total.error + stores * (u.output * whole + u.floor))
    return total


def _beside(x: Bounded, column: Bounded) -> Bounded:
    return Bounded(
        np.concatenate([x.value, column.value], -1), np.concatenate([x.error, column.error], -1)
    )

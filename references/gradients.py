"""Gradients of scaled dot-product attention, with how far rounding can move them.

For a cotangent G of the output o = p v, p = softmax(s), s = softcap(scale q k^T) + bias (Dao et al.,
NeurIPS 2022, section 3.1 and appendix B.2):

    dv_j = sum_i p_ij G_i          summed over the query heads of a group
    dp_ij = G_i . v_j
    D_i  = sum_j p_ij dp_ij = G_i . o_i
    ds_ij = p_ij (dp_ij - D_i)     also the gradient of the bias, summed over the axes it lacks
    dt_ij = ds_ij (1 - tanh(t_ij / cap)^2),  t = scale q k^T;  dt = ds without softcap
    dq_i = scale sum_j dt_ij k_j,  dk_j = scale sum_i dt_ij q_i

Bounds, by running error analysis, one step at a time, in the notation of `suite.judge.tolerance`; |.|
is element by element and delta a bound on an error:

    weights  With d_j the error of a score, of its shift and of exp exactly
               p'_j = p_j e^{d_j} / sum_l p_l e^{d_l}, so that
               delta p_j <= p_j (expm1 |d_j| + sum_l p_l expm1 |d_l|) / sum_l p_l e^{-|d_l|}
             and then the roundings of sum, quotient and store. A backward pass that recomputes weights
             as exp(s - lse) from a stored log-sum-exp adds u_acc |lse| to d_j.
    dp       gamma_Dv(u_acc) sum_c |G_c v_jc|, stored like a score (u_s).
    D        Either sum: sum_j (delta p |dp| + p delta dp) + gamma_n sum_j p |dp|, its products and
             the sum stored where the steps of a softmax are (u_e); or sum_c |G_c| delta o_c +
             gamma_Dv sum |G o| with o as it was handed out (u_o). The larger of the two.
    ds       delta p |dp - D| + p (delta dp + delta D) + the roundings of a difference (relative to
             |dp| + |D|, for those who compute p dp - p D), a product and a store: ds is stored like
             a score (`eager`) or narrowed before the products (u_p). Here cancellation lives:
             delta dp and delta D stay when dp - D vanishes.
    dt       ds with scale and, per softcap, the factor 1 - tanh^2, each stored like a score.
    dq       sum_j delta dt |k| + gamma_{n+2}(u_acc) sum_j |dt k|, stored once (u_o).
    dk, dv   likewise over the rows; with grouped heads every query head's is stored and then their sum.
    sums     Over the axes that a bias lacks, and over the heads of a group, in the accumulator; where a
             framework makes these in the case's dtype, gamma_n(u_o) stands for gamma_n(u_acc).
    blocks   Where running sums are stored in the case's dtype after every block of rows (dk, dv, head
             after head of a group) or of keys (dq), every store of a running sum, which is never more
             than sum |dt k|, adds u_o times that.

Values are computed in the precision the operands come in (float64 or longdouble), errors in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from references.running import Approx, Roundoffs, gamma, narrowed, stored

EMPTY_ROWS = ("zeros", "uniform", "scores")
"""What a row without keys is: zeros, which take no gradient; the mean of all values, with weights that
are constants, so that values alone take its cotangent; or the same mean with scores that are equal,
since what hides them absorbed them, and that take gradients like any others."""

Known = np.ndarray | Approx
"""An operand: exact, or with the bound it comes with."""


@dataclass(frozen=True)
class Gradients:
    """Gradients of query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv) and of the scores
    before the softmax (B, H, Lq, Lk), each with its bound; which rows have keys (B, H, Lq)."""

    query: Approx
    key: Approx
    value: Approx
    scores: Approx
    keys: np.ndarray
    rounding: Roundoffs

    def bias(self, shape: tuple[int, ...]) -> Approx:
        """The gradient of a bias of this shape, which broadcasts to that of the scores.

        A sum over the axes that the bias lacks, stored once.
        """
        u, full = self.rounding, (1,) * (4 - len(shape)) + tuple(shape)
        axes = tuple(a for a in range(4) if full[a] == 1 and self.scores.value.shape[a] != 1)
        total = summed(self.scores, axes, u)
        return stored(total, u.output, u.floor).reshape(*shape)


def attention_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    empty_rows: str = "zeros",
    exp_error: float = 0.0,
    blocks: tuple[int, int] | None = None,
) -> Gradients:
    """The gradients of `references.definition.attention` for a cotangent (B, H, Lq, Dv).

    Shapes, mask (True attends, broadcastable to (B, H, Lq, Lk)), bias, scale and softcap are those of
    `attention`. `empty_rows` says what a row that the mask leaves without keys is (see `EMPTY_ROWS`).
    `exp_error` is the relative error of an approximated exponential; `blocks` are the rows and the keys
    after which running sums are stored, None where they stay in the accumulator. NaN in slots that no
    row attends is of no influence. Raises ValueError for another `empty_rows`.
    """
    chain = Backward(
        query, key, value, cotangent, rounding, mask, bias, scale, softcap, exp_error, empty_rows
    )
    chain.blocks = blocks
    with np.errstate(all="ignore"):
        return chain.gradients()


def attention_tangent(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    tangents: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    rounding: Roundoffs,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    empty_rows: str = "zeros",
) -> tuple[Approx, np.ndarray]:
    """How the output moves, (B, H, Lq, Dv), as query, key and value move along `tangents`.

    With t' = scale (q' k^T + q k'^T), s' = t' (1 - tanh(t / cap)^2):

        o' = sum_j p_j (s'_j - sum_l p_l s'_l) v_j + sum_j p_j v'_j

    Bounds step by step, as for the gradients: each product and each step of t' stored like a score,
    s' - sum p s' stored where the steps of a softmax are, p s' like a gradient of scores, both products
    with values, and their sum, in the case's dtype. `empty_rows` is that of the gradients. Also returns
    which rows have keys (B, H, Lq). Raises ValueError for another `empty_rows`.
    """
    chain = Backward(
        query, key, value, value[:, :1], rounding, mask, bias, scale, softcap, 0.0, empty_rows
    )
    with np.errstate(all="ignore"):
        return chain.tangent(tangents), chain.own_keys


class Backward:
    """The chain, one step a method, so that steps can be read beside the derivation."""

    scaled_query = False
    blocks: tuple[int, int] | None = None

    def __init__(
        self, query: Known, key: Known, value: Known, cotangent: Known,
        rounding: Roundoffs, mask: np.ndarray | None, bias: np.ndarray | None,
        scale: float | None, softcap: float | None, exp_error: float, empty_rows: str,
    ) -> None:  # fmt: skip
        if empty_rows not in EMPTY_ROWS:
            raise ValueError(f"empty_rows must be one of {EMPTY_ROWS}, got {empty_rows!r}")
        B, H, Lq, D = query.shape
        self.sizes = (B, key.shape[1], H // key.shape[1], Lq, value.shape[2])
        precision = (query.value if isinstance(query, Approx) else query).dtype.type
        self.u, self.softcap, self.exp_error = rounding, softcap, exp_error
        self.scale = precision(scale) if scale is not None else 1 / np.sqrt(precision(D or 1))
        shape = (B, H, Lq, value.shape[2])
        allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        self.bias = np.zeros(shape, precision) if bias is None else np.broadcast_to(bias, shape)
        self.own_keys = np.asarray((allowed & ~np.isneginf(self.bias)).sum(-1))  # (B, H, Lq)
        self.empty_rows, self.blank = empty_rows, ~allowed.any(-1, keepdims=True)
        if empty_rows == "scores":
            allowed = allowed | self.blank
        self.allowed = allowed & ~np.isneginf(self.bias)
        self.biased = bias is not None
        group = self.sizes[2]
        seen = np.asarray(self.allowed.any(-2))[..., None]  # (B, H, Lk, 1)
        self.query, self.cotangent = _known(query, rounding), _known(cotangent, rounding)
        k, v = (_known(x, rounding).repeated(group, 1) for x in (key, value))
        self.key, self.value = (
            Approx(np.where(seen, x.value, 0), np.where(seen, x.error, 0.0)) for x in (k, v)
        )
        stores_scores = rounding.score >= rounding.output
        self.score_floor = rounding.floor if stores_scores else rounding.product_underflow

    def gradients(self) -> Gradients:
        """All gradients."""
        u = self.u
        scores = self.score_gradient
        dt = self.scaled(scores)
        query = product(dt, self.key, self.keys[..., None], u)
        if self.blocks:
            query = self.stored_by_blocks(query, dt, self.key, self.blocks[1])
        query = stored(query, u.output, u.floor)
        rows = np.swapaxes(self.allowed, -1, -2).sum(-1)[..., None]  # (B, H, Lk, 1)
        queries = self.query
        if self.scaled_query:
            query = stored(query, u.output, u.floor)
            queries = Approx(queries.value, queries.error + u.output * queries.size)
        key = self.by_keys(dt, queries, rows)
        return Gradients(query, key, self.value_gradient, scores, self.own_keys, u)

    @cached_property
    def value_gradient(self) -> Approx:
        """dv, (B, Hkv, Lk, Dv)."""
        rows = np.swapaxes(self.allowed, -1, -2).sum(-1)[..., None]
        received, averaging = self.shared
        return self.by_keys(received, self.cotangent, rows + averaging.sum(-2, keepdims=True))

    @cached_property
    def shared(self) -> tuple[Approx, np.ndarray]:
        """The weights that values are averaged with, and which rows (B, H, Lq, 1) average them all
        though they have no keys."""
        u, p = self.u, self.weights
        averaging = (self.keys == 0)[..., None]
        if self.empty_rows != "uniform" or not p.value.shape[-1]:
            return p, np.zeros_like(averaging)
        share = p.value.dtype.type(1) / p.value.shape[-1]
        error = 2 * (u.weight + 4 * u.accumulate) * float(share)
        shared = np.where(averaging, share, p.value), np.where(averaging, error, p.error)
        return Approx(*shared), averaging

    @cached_property
    def keys(self) -> np.ndarray:
        """Number of keys that take part, (B, H, Lq)."""
        return self.allowed.sum(-1)

    @cached_property
    def capped(self) -> tuple[Approx, np.ndarray]:
        """Scores after scale and softcap, and tanh(t / cap), zeros without softcap."""
        u, query, key = self.u, self.query, self.key
        depth = query.value.shape[-1]
        factor = abs(float(self.scale))
        value = (query.value @ np.swapaxes(key.value, -1, -2)) * self.scale
        made = product(query, transposed(key), depth, u)
        # Product, scaling, and the scale itself, which weakly typed frameworks round to the dtype.
        error = factor * made.error + 3 * u.score * absolute(value)
        if self.scaled_query:
            error += u.output * factor * (query.size @ transposed(key).size)
        if self.softcap is None:
            return Approx(value, error), np.zeros(value.shape)
        bend = np.tanh(value / self.softcap)
        slope = 1 - np.square(absolute(bend))
        # tanh is flatter than its tangent at 0, and steeper elsewhere by 2 error / cap at most.
        slope = np.minimum(slope + 2 * error / self.softcap, 1.0)
        out = bend * self.softcap
        error = error * slope + (4 * u.accumulate + u.score) * absolute(out)
        return Approx(out, error), bend

    @cached_property
    def weights(self) -> Approx:
        """Weights as the backward pass has them."""
        u, allowed = self.u, self.allowed
        scores, _ = self.capped
        s = scores.value + self.bias if self.biased else scores.value
        error = scores.error
        if self.biased:
            finite = np.where(allowed, self.bias, 0)
            error = error + u.score * absolute(s) + narrowed(finite, u).error
        if self.empty_rows == "scores":
            s, error = np.where(self.blank, 0, s), np.where(self.blank, 0.0, error)
        s = np.where(allowed, s, -np.inf)
        m = s.max(-1, keepdims=True, initial=-np.inf)
        anchor = np.where(np.isneginf(m), 0, m)
        p = np.exp(s - anchor)
        total = p.sum(-1, keepdims=True)
        p = p / np.where(total == 0, 1, total)
        distance = np.where(allowed, absolute(s - anchor), 0.0)
        lse = absolute(anchor + np.log(np.where(total == 0, 1, total)))
        d = error + (u.accumulate + u.step) * distance + u.accumulate * (4 + lse) + self.exp_error
        d = np.where(allowed, d, 0.0)
        weight = p.astype(np.float64)
        moved = weight * np.expm1(d)
        least = (weight * np.exp(-d)).sum(-1, keepdims=True)
        products = gamma(self.keys + 4, u.accumulate)[..., None]
        error = (moved + weight * moved.sum(-1, keepdims=True)) / np.where(least == 0, 1, least)
        error += (u.weight + 3 * u.step + products) * (weight + error)
        error += np.where(allowed, u.weight_underflow, 0.0)
        return Approx(p, np.where(allowed, error, 0.0))

    @cached_property
    def weight_gradient(self) -> Approx:
        """dp = G v^T, stored like a score; zero for pairs that do not attend."""
        out = product(self.cotangent, transposed(self.value), self.value.value.shape[-1], self.u)
        return self.attended(stored(out, self.u.score, self.score_floor))

    @cached_property
    def mean(self) -> Approx:
        """D, (B, H, Lq, 1), by the worse of the two ways."""
        u, p, dp, cotangent = self.u, self.weights, self.weight_gradient, self.cotangent
        by_weights = self.averaged(dp)
        size = p.size @ self.value.size  # bounds |o|
        error = p.error @ self.value.size + absolute(p.value) @ self.value.error
        error += gamma(self.keys + 4, u.accumulate)[..., None] * size + u.output * size + u.floor
        width = self.value.value.shape[-1]
        products = (cotangent.size * size).sum(-1, keepdims=True)
        by_output = (cotangent.size * error + cotangent.error * size).sum(-1, keepdims=True)
        by_output += gamma(width, u.accumulate) * products + width * u.product_underflow
        return Approx(by_weights.value, np.maximum(by_weights.error, by_output))

    def averaged(self, x: Approx) -> Approx:
        """sum_j p_j x_j over the keys, which stay with size 1."""
        u, p = self.u, self.weights
        inherited = (p.error * x.size + absolute(p.value) * x.error).sum(-1, keepdims=True)
        sums = (p.size * x.size).sum(-1, keepdims=True)
        products = gamma(self.keys + 2, u.accumulate)[..., None] + 2 * u.step
        error = inherited + products * sums + self.keys[..., None] * u.product_underflow
        return Approx((p.value * x.value).sum(-1, keepdims=True), error)

    def attended(self, x: Approx) -> Approx:
        """x with zeros for pairs that do not attend."""
        return Approx(np.where(self.allowed, x.value, 0), np.where(self.allowed, x.error, 0.0))

    @cached_property
    def score_gradient(self) -> Approx:
        """ds = p (dp - D), as it is stored."""
        u, p, dp, mean = self.u, self.weights, self.weight_gradient, self.mean
        difference = dp.value - mean.value
        apart = absolute(difference)
        inherited = dp.error + mean.error
        # p (dp - D) by its difference, or as p dp - p D, whose parts are larger.
        parts = np.maximum(apart, dp.size + mean.size)
        rounded = (u.accumulate + u.step) * (parts + inherited)
        value = np.where(self.allowed, p.value * difference, 0)
        error = p.error * apart + p.size * (inherited + rounded)
        error += (u.accumulate + u.step) * (absolute(value) + error) + u.product_underflow
        return self.attended(stored(Approx(value, error), max(u.score, u.weight), self.score_floor))

    def scaled(self, scores: Approx) -> Approx:
        """dt times the scale: what the products with queries and keys take."""
        u, out = self.u, self.bent(scores)
        factor = abs(float(self.scale))
        out = Approx(out.value * self.scale, out.error * factor)
        out = stored(out, 2 * u.score + 2 * u.accumulate, self.score_floor)
        # What narrows before the products may do so after the scale, or before it.
        out = stored(out, u.weight, u.weight_underflow * max(factor, 1.0))
        return self.attended(out)

    def tangent(self, tangents: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Approx:
        """The output's movement, see `attention_tangent`."""
        u, group = self.u, self.sizes[2]
        moving = [narrowed(x, u) for x in tangents]
        key, value = (x.repeated(group, 1) for x in moving[1:])
        depth = self.query.value.shape[-1]
        factor = abs(float(self.scale))

        def scored(a: Approx, b: Approx) -> Approx:
            made = product(a, transposed(b), depth, u)
            made = Approx(made.value * self.scale, made.error * factor)
            return stored(made, 2 * u.score + 2 * u.accumulate, 2 * self.score_floor)

        first, second = scored(moving[0], self.key), scored(self.query, key)
        moved = stored(
            Approx(first.value + second.value, first.error + second.error),
            u.score + u.accumulate, self.score_floor,
        )  # fmt: skip
        moved = self.attended(self.bent(moved))
        p = self.weights
        mean = self.averaged(moved)
        apart = moved.value - mean.value
        distance, inherited = absolute(apart), moved.error + mean.error
        inherited = inherited + (u.accumulate + u.step) * (distance + inherited)
        error = p.error * distance + p.size * inherited + u.product_underflow
        unit = max(u.score, u.weight, u.step) + u.accumulate
        dp = stored(Approx(p.value * apart, error), unit, self.score_floor)
        dp = self.attended(dp)
        keys = self.keys[..., None]
        shared, averaging = self.shared
        summands = keys + averaging * p.value.shape[-1]
        parts = [product(dp, self.value, keys, u), product(shared, value, summands, u)]
        one, other = (stored(x, u.output, u.floor) for x in parts)
        both = Approx(one.value + other.value, one.error + other.error)
        return stored(both, u.output, u.floor)

    def stored_by_blocks(self, total: Approx, a: Approx, b: Approx, block: int) -> Approx:
        """`total`, the sum a b, with every running sum stored: one per `block` terms."""
        stores = -(-a.value.shape[-1] // block)
        unit = stores * self.u.output
        return Approx(total.value, total.error + unit * (a.size @ b.size) + stores * self.u.floor)

    def by_keys(self, a: Approx, b: Approx, summands: np.ndarray) -> Approx:
        """a^T b, summed over the query heads of each group: (B, Hkv, Lk, .). a (B, H, Lq, Lk) with
        `summands` rows that are not zero for a key, b (B, H, Lq, .).

        Every head's is stored and then their sum; or all rows of all heads are one sum, which may be
        stored after every block of rows.
        """
        B, heads, group, rows, _ = self.sizes
        u, across = self.u, transposed(a)
        found = stored(product(across, b, summands, u), u.output, u.floor)
        if group == 1 and not self.blocks:
            return found
        split = found.reshape(B, heads, group, *found.value.shape[2:])
        whole = (across.size @ b.size).reshape(*split.value.shape).sum(2)
        if group > 1:
            total = summed(split, (2,), u)
            error = total.error.squeeze(2) + gamma(group * rows, u.accumulate) * whole
            found = stored(Approx(total.value.squeeze(2), error), u.output, u.floor)
        if self.blocks:
            stores = group * -(-rows // self.blocks[0])
            found = Approx(found.value, found.error + stores * (u.output * whole + u.floor))
        return found

    def bent(self, x: Approx) -> Approx:
        """x times the slope of the softcap."""
        if self.softcap is None:
            return x
        capped, bend = self.capped
        return times_slope(x, Approx(bend, capped.error / self.softcap), self.u, self.score_floor)


def times_slope(x: Approx, bend: Approx, u: Roundoffs, floor: float) -> Approx:
    """x (1 - bend^2), the derivative of tanh by its value: with a factor before and after (a softcap's),
    or as (x + x bend) (1 - bend), each step stored."""
    near = bend.error
    slope = 1 - np.square(bend.value)
    moved = (2 * absolute(bend.value) + near) * near + 2 * u.score + 5 * u.accumulate
    error = x.error * (absolute(slope) + moved) + absolute(x.value) * moved
    return stored(Approx(x.value * slope, error), 5 * (u.score + u.accumulate), 2 * floor)


def _known(x: Known, u: Roundoffs) -> Approx:
    return x if isinstance(x, Approx) else narrowed(x, u)


def absolute(x: np.ndarray) -> np.ndarray:
    return np.abs(x).astype(np.float64)


def transposed(x: Approx) -> Approx:
    return Approx(np.swapaxes(x.value, -1, -2), np.swapaxes(x.error, -1, -2))


def product(a: Approx, b: Approx, summands: np.ndarray | int, u: Roundoffs) -> Approx:
    """a b over the last axis of a, `summands` of whose terms are not zero."""
    value = a.value @ b.value
    sums = a.size @ b.size
    inherited = a.error @ b.size + absolute(a.value) @ b.error
    made = gamma(np.asarray(summands) + 2, u.accumulate) * sums + summands * u.product_underflow
    return Approx(value, inherited + made)


def summed(x: Approx, axes: tuple[int, ...], u: Roundoffs) -> Approx:
    """The sum over `axes`, which stay with size 1."""
    if not axes:
        return x
    n = int(np.prod([x.value.shape[a] for a in axes]))
    error = x.error.sum(axes, keepdims=True)
    unit = max(u.accumulate, u.reduction)
    error = error + gamma(n, unit) * x.size.sum(axes, keepdims=True)
    return Approx(x.value.sum(axes, keepdims=True), error)

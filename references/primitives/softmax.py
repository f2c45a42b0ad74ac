"""The softmax of scores with errors, and the rounding error of the average it forms.

With weights p = softmax(s), output o = sum_j p_j v_j, n keys, maximum m, and score errors |d_j|, the
perturbed softmax is exactly

    p'_j   = p_j e^{d_j} / sum_l p_l e^{d_l}
    o' - o = sum_j p_j (e^{d_j} - 1)(v_j - o) / sum_j p_j e^{d_j}

For |d_j| <= d the first-order sum is multiplied by A = e^d expm1(d) / d, about 1 + 1.5 d. A is
negligible for float32, but needed for bfloat16 scores of size 100. Errors dv_j of the values add at
most e^{2 d} sum_j p_j dv_j to the output.

The softmax rounds, too. The shift s_j - m and exp add u_acc |s_j - m| + 4 u_acc to the error ds_j of a
score, and u_e |s_j - m| if they are stored. The sum, the quotient and the stored weight have relative
errors of gamma_{n+4}(u_acc), 3 u_e and u_p. Elementwise:

    d_j    = |ds_j| + (u_acc + u_e) |s_j - m| + 4 u_acc
    |do|  <= A sum_j p_j d_j (|v_j| + |o|) + e^{2 d} sum_j p_j dv_j
             + (u_p + 3 u_e + gamma_{n+4}(u_acc)) sum_j p_j (|v_j| + dv_j) + gamma_{n+4}(u_acc) |o|
             + x sum_j p_j (|v_j| + |o|) + w sum_j |v_j| + (n + 1) e_acc     and then the store of o
    |dp_j| <= A p_j (d_j + sum_l p_l d_l) + (u_p + 3 u_e + gamma_{n+4}(u_acc) + 2 x) p_j + w

Weights that are returned are rounded to the case's dtype, too: u_o p_j + e_o.

Underflow. A weight loses up to w, which is the sum of

- half the smallest subnormal of the stored dtype (float16: 2^-25, which is not small beside 2049
  weights of 2^-11),
- half the smallest subnormal of the accumulator,
- twice the smallest normal number of float32, or of float64 if exp is computed there: exponentials of
  vector libraries are 0 near and below it (PyTorch's `exp_u20` in its flash kernel on CPU: below
  2^-125.5).

Every product p_j v_j, every rescaling of a running sum and the final division may lose half the
smallest subnormal of the accumulator: together at most (n + 1) e_acc. e_o is the smallest subnormal of
the output's dtype. If an implementation flushes subnormals, the smallest normal number stands for the
smallest subnormal.

Approximated exponentials have a relative error x. (PyTorch's flash kernel for 16-bit dtypes on CPU
takes 2^f as 1 + f - p(f) with a cubic p: an error of up to 1.07e-4, a fifth of float16's roundoff.)

Split keys. Decoding kernels answer parts of the keys by themselves, o_i with log-sum-exps l_i, and merge
them with the weights w_i = e^{l_i - l}. A wrong log-sum-exp is a score error of all keys of its part: l_i
is off by that of one score, and by the roundings of sum, logarithm and maximum, 3 u_acc |m_i| + 5 u_acc
|l_i|. The D + 2 roundings of a scaled product cover these in the accumulator, since |s_j| <= |scale|
sum_i |q_i k_ji|; log-sum-exps in 16 bits they do not cover. Partial answers that are stored, with the
unit roundoff u_i, add

    u_i sum_i w_i |o_i| <= u_i sum_j p_j |v_j|     and e_o, because the weights w_i add up to 1.

Recomputed weights. Backward passes recompute the weights as exp(s - lse) from a stored log-sum-exp,
which adds u_acc |lse| and x to d_j. Then, without a first-order approximation,

    delta p_j <= p_j (expm1 d_j + sum_l p_l expm1 d_l) / sum_l p_l e^{-d_l}

and the roundings of sum, quotient and store.

Sinks. A sink is one more key of value 0, and n counts it. Its error: `references.primitives.bias`.

Sources: Blanchard, Higham, Higham, Accurately computing the log-sum-exp and softmax functions, IMA J.
Numer. Anal. 41(4), 2021; Higham (2002), section 3.3; Xiao et al., Efficient streaming language models
with attention sinks, ICLR 2024 (sinks).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    errors_are_random,
    gamma,
    magnitude,
    perturbed,
    stored,
)

NEGLIGIBLE_WEIGHT = 1e-9
"""Keys of a smaller weight do not count for the largest score error: times e^5 such a weight is still
below the roundoff of 16-bit outputs. Up to an error of 5 they count by themselves, with e^d - 1 for d: an
output may be small beside its values."""


@dataclass(frozen=True)
class Softmax:
    """softmax(s) over the last axis. A row whose scores are all -inf has weights of 0.

    weights, shifted    (..., Lk): p and s - m
    largest, total      (..., 1): m and sum_j exp(s_j - m)
    empty               (..., 1): True if all scores are -inf
    """

    weights: np.ndarray
    shifted: np.ndarray
    largest: np.ndarray
    total: np.ndarray
    empty: np.ndarray

    @classmethod
    def of(cls, s: np.ndarray) -> Softmax:
        """Returns the softmax of scores s (..., Lk)."""
        largest = s.max(-1, keepdims=True, initial=-np.inf)
        empty = np.isneginf(largest)
        shifted = s - np.where(empty, 0, largest)
        p = np.exp(shifted)
        total = p.sum(-1, keepdims=True)
        p /= np.where(empty, 1, total)
        return cls(p, shifted, largest, total, empty)

    @property
    def lse(self) -> np.ndarray:
        """The log-sum-exp, (...); -inf for empty rows."""
        return (np.where(self.empty, 0, self.largest) + np.log(self.total))[..., 0]

    @property
    def distance(self) -> np.ndarray:
        """m - s, float64; 0 where s is -inf."""
        return np.where(np.isfinite(self.shifted), -self.shifted, 0.0).astype(np.float64)


def growth(peak: np.ndarray) -> np.ndarray:
    """Returns A = e^d expm1(d) / d for the largest score error d of a row (`peak`); 1 for d = 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.exp(peak) * np.expm1(peak) / np.where(peak > 0, peak, 1)
    return np.where(peak > 0, factor, 1.0)


def weight_rounding(n: np.ndarray, u: Roundoffs) -> np.ndarray:
    """Returns the relative error of a weight of n keys for exact scores: u_p + 3 u_e +
    gamma_{n+4}(u_acc)."""
    return u.weight + 3 * u.step + gamma(n + 4, u.accumulate)


def average_error(
    u: Roundoffs,
    n: np.ndarray,
    factor: np.ndarray,
    by_score: np.ndarray,
    mass: np.ndarray,
    size: np.ndarray,
    reach: np.ndarray,
) -> np.ndarray:
    """Returns the bound of an average o = sum_j p_j v_j of exact values before its store, (..., Dv).

    n, factor             (..., 1): number of weights of a row, and A for the largest relevant d_j
    by_score              (..., Dv): sum_j p_j d_j (|v_j| + |o|)
    mass, size, reach     (..., Dv): sum_j p_j |v_j|, |o|, sum_j |v_j|
    """
    products = gamma(n + 4, u.accumulate)
    return (
        factor * by_score
        + u.exp_error * (mass + size)
        + u.part * mass
        + (u.floor if u.part else 0.0)
        + (u.weight + 3 * u.step + products) * mass
        + products * size
        + (u.weight_underflow + u.exp_underflow) * reach
        + u.product_underflow * (n + 1)
    )


def sink_size(x: np.ndarray, largest: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns |x| + |m'| + log n', the size to which roundings of a sink's score x are relative.
    `largest` is m', `keys` is n'; all arrays broadcast.

    Rows without keys have no m' term. Scores of -inf have no |x| term.
    """
    score, size = (magnitude(np.where(np.isfinite(y), y, 0)) for y in (x, largest))
    return score + size + np.log(np.maximum(keys, 1))


def lse_error(
    peak: np.ndarray, n: np.ndarray, largest: np.ndarray, lse: np.ndarray, u: Roundoffs
) -> np.ndarray:
    """Returns the bound of the log-sum-exp of n scores, float64 (...). `peak` is the largest relevant
    d_j, `largest` is m.

    Scores with errors d_j move the log-sum-exp by at most max_j |d_j|. Sum, logarithm and the addition of
    m add gamma_{n+4}(u_acc) + u_acc (|lse - m| + |lse|). Implementations with powers of 2 multiply by
    log2 e before and by its reciprocal after: 2 u_acc |m| + 2 u_acc |lse|. The result is stored in the
    accumulator. Every exponential may underflow, beside a sum of at least 1.
    """
    sums = gamma(n + 4, u.accumulate) + u.accumulate * (3 * magnitude(largest) + 5 * magnitude(lse))
    return peak + sums + u.exp_error + u.product_underflow * (n + 1)


def score_error(error: np.ndarray, distance: np.ndarray, u: Roundoffs) -> np.ndarray:
    """Returns d_j: the error of a score, plus the roundings of shift and exp. `distance` is m - s_j."""
    return error + (u.accumulate + u.step) * distance + 4 * u.accumulate


def recomputed_weights(
    s: np.ndarray, error: np.ndarray, allowed: np.ndarray, keys: np.ndarray, u: Roundoffs
) -> Bounded:
    """Returns the weights (..., Lk) as a backward pass recomputes them, with their bound, from scores s
    with the bound `error`.

    `allowed` (..., Lk): True for attended scores. `keys` (...): their number per row.

    A score with the error d_j multiplies exp(s_j) by at most e^d_j. So the weight p_j and the sum of all
    weights are off by at most p_j (e^d_j - 1) and sum_i p_i (e^d_i - 1), and the sum is at least
    sum_i p_i e^-d_i.
    """
    s, error = perturbed(Bounded(s, error)).parts
    softmax = Softmax.of(np.where(allowed, s, -np.inf))
    p, total = softmax.weights, softmax.total
    anchor = np.where(softmax.empty, 0, softmax.largest)
    lse = magnitude(anchor + np.log(np.where(total == 0, 1, total)))
    d = score_error(error, softmax.distance, u) + u.accumulate * lse + u.exp_error
    weight = p.astype(np.float64)  # bounds are float64
    d = np.where(allowed & (weight != 0), d, 0.0)  # 0 expm1(inf) is NaN
    p_d = weight * np.expm1(d)
    least_total = (weight * np.exp(-d)).sum(-1, keepdims=True)
    bound = (p_d + weight * p_d.sum(-1, keepdims=True)) / np.where(least_total == 0, 1, least_total)
    underflow = u.weight_underflow + u.exp_underflow
    if errors_are_random():
        # The weights get random errors within their bound, and are exact from here on.
        with_errors = Bounded(p, np.where(allowed, bound + underflow, 0.0))
        return Bounded.exact(_drawn_weights(with_errors, keys[..., None], u))
    bound += weight_rounding(keys[..., None], u) * (weight + bound)
    return Bounded(p, np.where(allowed, bound + underflow, 0.0))


def _drawn_weights(p: Bounded, n: np.ndarray, u: Roundoffs) -> np.ndarray:
    """Returns the weights p (..., Lk) with random errors: one per weight, within its bound and its
    roundings, and one per row, for the sum of n weights."""
    total = perturbed(Bounded(np.ones(n.shape), u.step + gamma(n + 4, u.accumulate)))
    rounded = p.error + (u.weight + 2 * u.step) * magnitude(p.value)
    return perturbed(Bounded(p.value, rounded)).value * total.value


@dataclass(frozen=True)
class WeightsAndOutput:
    """Weights (..., Lq, Lk) and output (..., Lq, Dv) with their bounds."""

    weights: Bounded
    output: Bounded


@np.errstate(all="ignore")
def attend(
    scores: Bounded,
    value: Bounded,
    allowed: np.ndarray | None,
    u: Roundoffs,
    empty_rows: str = "zeros",
    columns: int = 0,
) -> WeightsAndOutput:
    """Returns softmax(scores) value over the attending pairs, and the weights, with their bounds.

    scores (..., Lq, Lk), value (..., Lk, Dv). `allowed` broadcasts to the scores: True attends; None: all
    pairs attend. The last `columns` scores belong to keys of value 0.
    `empty_rows` is the output of fully masked rows (`references.outputs.EMPTY_ROWS`).
    """
    s, error = perturbed(scores).parts
    Lk = s.shape[-1] - columns
    if allowed is not None:
        hidden = ~np.broadcast_to(allowed, s.shape)
        s = np.where(hidden, -np.inf, s)
        error = np.where(hidden, 0.0, error)
    softmax = Softmax.of(s)
    p, empty = softmax.weights, softmax.empty
    d = score_error(error, softmax.distance, u)
    if empty_rows == "uniform" and Lk:
        mean_weight = np.where(np.arange(s.shape[-1]) < Lk, s.dtype.type(1) / Lk, 0)
        p = np.where(empty, mean_weight, p)
    weight = p.astype(np.float64)
    attended = np.broadcast_to(True if allowed is None else allowed | empty, s.shape)
    keys = (attended & ~empty).sum(-1)
    n = np.where(empty, Lk, keys[..., None])
    d = np.where(empty | (weight == 0), 0.0, d)
    peak = np.where(weight > NEGLIGIBLE_WEIGHT, d, 0.0).max(-1, initial=0.0, keepdims=True)
    is_negligible = (weight <= NEGLIGIBLE_WEIGHT) & (d <= 5.0)
    p_d, factor = weight * np.where(is_negligible, np.expm1(np.minimum(d, 5.0)), d), growth(peak)

    if errors_are_random():
        p = _drawn_weights(Bounded(p, (d + 2 * u.exp_error) * weight), n, u)
        weight, p_d = magnitude(p), np.zeros_like(p_d)
        u = replace(u, weight=0.0, step=0.0, exp_error=0.0)
    output = p @ value.value
    size, v = magnitude(output), magnitude(value.value)
    total = average_error(
        u, n, factor,
        by_score=p_d @ v + p_d.sum(-1, keepdims=True) * size,
        mass=weight @ value.magnitude,
        size=size,
        reach=attended.astype(np.float64) @ v,
    )  # fmt: skip
    total += np.exp(2 * peak) * (weight @ value.error)
    out = stored(Bounded(output, total), u.results)
    if empty_rows == "zeros":
        out = out.where(~empty)
    weights = Bounded(p, _weight_errors(weight, p_d, attended, n, factor, u))
    if empty_rows == "nan":
        weights = Bounded(np.where(empty, np.nan, p), weights.error)
        out = Bounded(np.where(empty, np.nan, out.value), out.error)
    return WeightsAndOutput(weights, out)


def _weight_errors(
    weight: np.ndarray, p_d: np.ndarray, attended: np.ndarray, n: np.ndarray, factor: np.ndarray,
    u: Roundoffs,
) -> np.ndarray:  # fmt: skip
    """Returns the bound of weights p_j that are stored in the case's dtype and returned. `p_d` is p_j
    d_j."""
    error = factor * (p_d + weight * p_d.sum(-1, keepdims=True))
    error += (weight_rounding(n, u) + 2 * u.exp_error + u.output) * weight
    underflow = np.where(attended, u.weight_underflow + u.exp_underflow + u.floor, 0.0)
    return np.where(weight == 0, underflow, error + underflow)

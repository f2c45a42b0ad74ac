"""Terms: the bound of attention as sums over keys that are the same for every numerics class.

One pass over the rows collects the terms. `bound` combines them for any class; `standard_deviation` is
the error for random rounding. Derivation: `references.primitives.softmax`, `references.sdpa`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from attention_conformance.references.primitives.pairs import finite_heads
from attention_conformance.references.primitives.softmax import (
    NEGLIGIBLE_WEIGHT,
    Softmax,
    average_error,
    growth,
    lse_error,
    sink_size,
)
from attention_conformance.references.rounding import Roundoffs, gamma
from attention_conformance.references.steps import Step

NEGLIGIBLE_SUMS = 1 / 16
"""The largest standard deviation of the roundings of sums that the variance model neglects, relative to
its own. All elements may share such an error, and one error exceeds 6.5 standard deviations with
probability 1e-9: the root mean square grows by at most 6.5 / 16 = 0.4, by which the judge's limit exceeds
chance (`suite.judge.tolerance`)."""


@dataclass(frozen=True)
class Terms:
    """Sums over the keys of each row, from which bounds are made. p weights, o output.

    Shapes (B, H, Lq, Dv):
      accumulate  sum_j p_j a_j (|v_j| + |o|), a_j = (D + 2) |scale| sum_i |q_i k_ji| + |s_j - m| + 4:
                  times the roundoff of sums, exp and scaling
      score       sum_j p_j c_j (|v_j| + |o|), c_j = 2 |scaled score| + |score with bias|: times the
                  roundoff of stored scores. Every step multiplies the parts of a_j and c_j before it by
                  its slope, and adds its own roundings (`references.steps`)
      shift       sum_j p_j |s_j - m| (|v_j| + |o|): times the roundoff of stored shifted scores
      value       sum_j p_j |v_j|: times the roundoff of stored weights and of products with values
      underflow   sum_j |v_j| over the attended keys: times the absolute error of weights that underflow
      score_var   sum_j p_j^2 d_j^2 (v_j - o)^2, d_j^2 the squares of the summands of c_j
      value_var   sum_j p_j^2 v_j^2
      step_var    sum_j p_j^2 ((s_j - m)^2 + 1) (v_j - o)^2: stored shifted scores and exponentials
    Shapes (B, H, Lq):
      keys              number of attended keys
      summed            number of averaged values: `keys`, or Lk for a fully masked row with a mean
      peak_accumulate   max a_j over keys of relevant weight
      peak_score        max c_j over these keys
      peak_shift        max |s_j - m| over these keys
    Other shapes:
      summands          D + 2, the number of roundings in a scaled product
      has_sink      (H, 1), heads with a finite score x of a sink, with
                        a_j = r (|x| + |m'| + log n') + |x - m| + 4 and c_j = 0, for r roundings of x
    """

    accumulate: np.ndarray
    score: np.ndarray
    shift: np.ndarray
    value: np.ndarray
    underflow: np.ndarray
    score_var: np.ndarray
    value_var: np.ndarray
    step_var: np.ndarray
    keys: np.ndarray
    summed: np.ndarray
    peak_accumulate: np.ndarray
    peak_score: np.ndarray
    peak_shift: np.ndarray
    summands: int
    has_sink: np.ndarray

    def bound(self, output: np.ndarray, u: Roundoffs) -> np.ndarray:
        """Returns the bound of the rounding errors of `output`, float64 (B, H, Lq, Dv); 0 where the
        output is exact."""
        peak = (
            u.accumulate * self.peak_accumulate
            + u.score * self.peak_score
            + u.step * self.peak_shift
        )
        size = np.abs(output).astype(np.float64)
        average = average_error(
            u, (self.summed + self.has_sink)[..., None], growth(peak[..., None]),
            by_score=self._per_summand(u) * self.accumulate + u.score * self.score + u.step * self.shift,
            mass=self.value,
            size=size,
            reach=self.underflow,
        )  # fmt: skip
        exact = (self.summed == 0)[..., None] & (size == 0)
        return np.where(exact, 0.0, average + u.output * size + u.floor)

    def lse_bound(self, lse: np.ndarray, largest: np.ndarray, u: Roundoffs) -> np.ndarray:
        """Returns the bound of the rounding errors of `lse` in rows with keys, float64 (B, H, Lq).
        `largest` (B, H, Lq): the largest score of each row."""
        peak = (
            self._per_summand(u) * self.peak_accumulate
            + u.score * self.peak_score
            + u.step * self.peak_shift
        )
        return lse_error(peak, self.keys, largest, lse, u)

    def _per_summand(self, u: Roundoffs) -> float:
        """gamma_{D+2}(u_acc) / (D + 2)."""
        return gamma(self.summands, u.accumulate) / self.summands

    def standard_deviation(self, output: np.ndarray, u: Roundoffs) -> np.ndarray:
        """Returns the standard deviation (B, H, Lq, Dv) of the error if every rounding is uniform within
        half an ulp.

        A rounding of relative size u has variance u^2 / 3. If steps of the softmax are stored, so is the
        sum of its exponentials. The deviation is 0 where the model does not hold:

        - rows in which stored scores are off by more than 1, since the model is of first order, and the
          weights of other keys may become relevant
        - all rows, if answers of parts are stored, since the model has no term for them
        - elements in which the roundings of sums are above `NEGLIGIBLE_SUMS` of the deviation, since the
          model has no term for them, and the elements of a row share them. n roundings in a row count
          as sqrt(n) (Higham, Mary, arXiv 1906.10465)
        """
        size = np.abs(output.astype(np.float64))
        variance = u.score**2 * self.score_var + u.weight**2 * self.value_var
        variance += u.output**2 * size**2 + u.step**2 * (self.step_var + size**2)
        averaged = np.sqrt(self.summed + self.has_sink + 4)[..., None] * (self.value + size)
        sums = u.accumulate * (self.accumulate / np.sqrt(self.summands) + averaged)
        first_order = (u.score * self.peak_score <= 1.0)[..., None] & (u.part == 0.0)
        holds = first_order & (sums <= NEGLIGIBLE_SUMS * np.sqrt(variance))
        return np.where(holds, np.sqrt(variance / 3.0), 0.0)


_PER_VALUE = (
    "accumulate", "score", "shift", "value", "underflow", "score_var", "value_var",
    "step_var",
)  # fmt: skip
_ARRAYS = tuple(f.name for f in fields(Terms) if f.name not in ("summands", "has_sink"))


@dataclass(frozen=True)
class Block:
    """One block of rows in a pass.

    scaled      (B, H, rows, Lk): scores after scaling
    steps       the steps on scores, with the slope and the size of each
    final       (B, H, rows, Lk): scores after steps, bias and mask
    weights     (B, H, rows, Lk)
    output      (B, H, rows, Dv)
    softmax     over the keys, and the sink, if there is one
    hidden      hidden pairs, broadcastable, or None
    empty       (B, H, rows, 1): rows without any key
    averaged    (B, H, rows, 1): rows without any key that average all values
    is_biased   True if an array is added to the scores, so that they are stored once more
    """

    rows: slice
    scaled: np.ndarray
    steps: Sequence[tuple[Step, np.ndarray, np.ndarray]]
    final: np.ndarray
    weights: np.ndarray
    output: np.ndarray
    softmax: Softmax
    hidden: np.ndarray | None
    empty: np.ndarray
    averaged: np.ndarray
    is_biased: bool


class Collector:
    """Fills `Terms` block by block.

    The terms are float32, because a bound needs few digits and memory traffic sets the time. Cases of
    float64 use float64: their weights go down to 1e-308, and every one may be read (one-hot values, a
    sink with most of the weight). Values are first divided by a power of two, so that none underflows
    or overflows.
    """

    def __init__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray,
        scale: float, sink: Step | None, variance: bool,
    ) -> None:  # fmt: skip
        B, H, Lq, D = q.shape
        self.sink, self.variance = sink, variance
        self.dtype: Any = np.float64 if q.dtype == np.longdouble else np.float32
        self.abs_q = np.abs(q).astype(self.dtype) * self.dtype((D + 2) * abs(float(scale)))
        self.abs_k = np.ascontiguousarray(np.swapaxes(np.abs(k), -1, -2).astype(self.dtype))
        peak = float(np.max(np.abs(v), initial=0.0, where=np.isfinite(v)))
        self.unit = 2.0 ** np.floor(np.log2(peak)) if peak > 0 else 1.0
        self.v = (v / v.dtype.type(self.unit)).astype(self.dtype)
        self.abs_v = np.abs(self.v)
        self.square_v = np.square(self.v)
        shape = (B, H, Lq, v.shape[-1])
        arrays = {name: np.zeros(shape if name in _PER_VALUE else shape[:3]) for name in _ARRAYS}
        finite = finite_heads(None if sink is None else sink.operand)
        self.terms = Terms(**arrays, summands=D + 2, has_sink=finite)

    def add(self, block: Block) -> None:
        """Writes the sums of one block into `self.terms`."""
        t, unit, rows, p = self.terms, self.unit, block.rows, block.weights
        empty, broadcastable_hidden = block.empty, block.hidden
        weight = p.astype(self.dtype)
        o = np.where(empty, 0.0, block.output / block.output.dtype.type(unit)).astype(self.dtype)
        abs_o = np.abs(o)
        magnitude = np.abs(block.scaled).astype(self.dtype)
        final = np.abs(block.final).astype(self.dtype)
        distance = block.softmax.shifted[..., : p.shape[-1]].astype(self.dtype)
        attended = keys = None
        if broadcastable_hidden is not None:
            hidden = np.broadcast_to(broadcastable_hidden, p.shape)
            # 0 * inf is NaN, so hidden scores become zero before the product with their zero weights.
            for array in (magnitude, final, distance):
                np.copyto(array, 0.0, where=hidden)
            keys = ~hidden
            attended = keys | block.averaged if block.averaged.any() else keys
        a = self.abs_q[:, :, rows] @ self.abs_k
        c = magnitude * 2.0
        square = 2.0 * np.square(magnitude) if self.variance else None
        for step, *slope_and_size in block.steps:
            slope, size = (
                (
                    x if broadcastable_hidden is None else np.where(broadcastable_hidden, 0, x)
                ).astype(self.dtype)
                for x in slope_and_size
            )
            a = a * slope + step.reduction.accumulate * size
            c = c * slope + step.reduction.score * size
            if square is not None:
                square = square * np.square(slope) + np.square(step.reduction.score * size)
        if block.is_biased:
            c += final
        np.negative(distance, out=distance)  # |s - m|: s never exceeds m
        a += distance
        a += 4.0
        # A fully masked row has no scores: its only error comes from averaging the values.
        has_scores = attended if not empty.any() else np.broadcast_to(~empty, p.shape)
        if has_scores is not None:
            a *= has_scores
            c *= has_scores
            distance *= has_scores
        if p.shape[-1]:
            relevant = weight > NEGLIGIBLE_WEIGHT
            t.peak_accumulate[:, :, rows] = (a * relevant).max(-1)
            t.peak_score[:, :, rows] = (c * relevant).max(-1)
            t.peak_shift[:, :, rows] = (distance * relevant).max(-1)
        step_squares = np.square(distance) + 1.0 if self.variance else None
        a *= weight
        c *= weight
        distance *= weight
        t.accumulate[:, :, rows] = unit * (a @ self.abs_v + a.sum(-1, keepdims=True) * abs_o)
        t.score[:, :, rows] = unit * (c @ self.abs_v + c.sum(-1, keepdims=True) * abs_o)
        t.shift[:, :, rows] = unit * (
            distance @ self.abs_v + distance.sum(-1, keepdims=True) * abs_o
        )
        t.value[:, :, rows] = unit * (weight @ self.abs_v)
        if attended is None or keys is None:
            t.keys[:, :, rows] = t.summed[:, :, rows] = p.shape[-1]
            t.underflow[:, :, rows] = unit * self.abs_v.sum(-2, keepdims=True)
        else:
            t.keys[:, :, rows] = t.summed[:, :, rows] = keys.sum(-1)
            if attended is not keys:
                t.summed[:, :, rows] = attended.sum(-1)
            t.underflow[:, :, rows] = unit * (attended.astype(self.dtype) @ self.abs_v)
        if square is not None and step_squares is not None:
            if block.is_biased:
                square += np.square(final)
            # In float64: the square of a small weight beside a sink underflows in float32.
            squared = np.square(p.astype(np.float64))
            t.value_var[:, :, rows] = unit * unit * (squared @ self.square_v)
            if has_scores is not None:
                squared *= has_scores
            for array, factor in ((t.score_var, square), (t.step_var, step_squares)):
                array[:, :, rows] = unit * unit * self._spread_around(factor * squared, o)
        if self.sink is not None:
            self._add_sink(self.sink, block, unit * abs_o)

    def _spread_around(self, factor: np.ndarray, o: np.ndarray) -> np.ndarray:
        """Returns sum_j factor_j (v_j - o)^2 for factors (B, H, rows, Lk) and o (B, H, rows, Dv)."""
        spread = factor @ self.square_v - 2.0 * o * (factor @ self.v)
        spread += factor.sum(-1, keepdims=True) * np.square(o)
        return np.maximum(spread, 0.0)

    def _add_sink(self, sink: Step, block: Block, abs_o: np.ndarray) -> None:
        """Adds the parts of a sink to the terms of a block. `abs_o` is |o|, and 0 in fully masked
        rows."""
        t, rows = self.terms, block.rows
        p = block.softmax.weights[..., -1].astype(np.float64)
        distance = block.softmax.distance[..., -1]
        largest = block.final.max(-1, initial=-np.inf)
        keys = t.keys[:, :, rows]
        finite = t.has_sink & (keys > 0)
        size = sink_size(sink.operand[..., 0], largest, keys)
        rounding = sink.reduction.accumulate * size
        a = np.where(finite, rounding + distance + 4.0, 0.0)
        for array, factor in ((t.accumulate, a), (t.shift, distance)):
            array[:, :, rows] += (p * factor)[..., None] * abs_o
        if self.variance:
            step = np.where(finite, np.square(p) * (np.square(distance) + 1.0), 0.0)
            t.step_var[:, :, rows] += step[..., None] * np.square(abs_o)
        for array, factor in ((t.peak_accumulate, a), (t.peak_shift, distance)):
            relevant = np.where(finite & (p > NEGLIGIBLE_WEIGHT), factor, 0.0)
            array[:, :, rows] = np.maximum(array[:, :, rows], relevant)

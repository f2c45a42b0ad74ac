"""The definition: attention in float64 with what is needed to bound any rounding of it.

One blocked pass over query rows gives the value and the *terms* of the rounding-error bound: sums
over keys that do not depend on who rounds where. `suite.judge.tolerance` turns them into a bound
for a dtype and a numerics class, so that one pass serves every implementation. Memory grows with
block x Lk, not Lq x Lk.

Sources: Vaswani et al. 2017 (the operator); Higham, Accuracy and Stability of Numerical Algorithms,
chapter 3 (running error analysis); Blanchard, Higham, Higham, IMA J. Numer. Anal. 2021 (softmax).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np

from references.running import NEGLIGIBLE_WEIGHT

MaskRows = Callable[[slice], np.ndarray]

BLOCK_ELEMENTS = 1 << 16
"""Scores per block over all batches and heads: half a MiB a temporary, which stays in cache."""

PARALLEL_BLOCKS = 32
"""From this many blocks on they are shared out among threads: NumPy computes without Python's lock."""

THREADS = min(4, os.cpu_count() or 1)

ROW_ELECTIONS = ("zeros", "nan", "uniform")


@dataclass(frozen=True)
class Terms:
    """Sums over the keys of each row from which rounding bounds are made. p weights, o output.

    Shapes (B, H, Lq, Dv):
      accumulate  sum_j p_j a_j (|v_j| + |o|), a_j = (D + 2) |scale| sum_i |q_i k_ji| + |s_j - m| + 4
                  (with softcap: + 4 |s_j|): multiplied by the roundoff of sums, exp and scaling
      score       sum_j p_j c_j (|v_j| + |o|), c_j = 2 |scaled score| + |score with bias|: multiplied
                  by the roundoff of stored scores
      shift       sum_j p_j |s_j - m| (|v_j| + |o|): roundoff of the shifted score, where it is stored
      value       sum_j p_j |v_j|: roundoff of stored weights and of the product with the values
      underflow   sum_j |v_j| over the attended keys: absolute error of weights that underflow
      score_var   sum_j p_j^2 d_j^2 (v_j - o)^2, d_j^2 the squares of the summands of c_j
      value_var   sum_j p_j^2 v_j^2
    Shapes (B, H, Lq):
      keys              number n of attended keys
      peak_accumulate   max a_j over keys of relevant weight
      peak_score        max c_j likewise
      peak_shift        max |s_j - m| likewise
    `summands` is D + 2, the number of roundings in a scaled product.
    """

    accumulate: np.ndarray
    score: np.ndarray
    shift: np.ndarray
    value: np.ndarray
    underflow: np.ndarray
    score_var: np.ndarray
    value_var: np.ndarray
    keys: np.ndarray
    peak_accumulate: np.ndarray
    peak_score: np.ndarray
    peak_shift: np.ndarray
    summands: int


_PER_VALUE = (
    "accumulate", "score", "shift", "value", "underflow", "score_var", "value_var"
)  # fmt: skip
_ARRAYS = tuple(f for f in fields(Terms) if f.name != "summands")


@dataclass(frozen=True)
class Reference:
    """Output (B, H, Lq, Dv); log-sum-exp (B, H, Lq), -inf for rows without keys; weights
    (B, H, Lq, Lk) and terms where they were asked for."""

    output: np.ndarray
    lse: np.ndarray
    weights: np.ndarray | None = None
    terms: Terms | None = None


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | MaskRows | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    empty_rows: str = "zeros",
    precision: type = np.float64,
    terms: bool = False,
    variance: bool = False,
    weights: bool = False,
) -> Reference:
    """Scaled dot-product attention, `weights value` with weights = softmax(scores) over keys.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); query head h uses key/value
    head h // (H / Hkv). scores = scale query key^T, then softcap tanh(scores / softcap), then
    + bias, then the mask (True attends; an array that broadcasts to (B, H, Lq, Lk), or a function
    from a slice of rows to such an array). A bias of -inf hides a pair like the mask. Rows without
    keys give zeros, NaN, or ("uniform") the mean over all Lk values, as `empty_rows` says. What no
    row of a batch and head attends may hold anything, NaN included.

    `precision` is np.float64 or np.longdouble; the terms are float64 in either case.
    Raises ValueError for an unknown `empty_rows` and for operands, masks or biases whose shapes do
    not fit together.
    """
    _check_shapes(query, key, value, mask, bias)
    if empty_rows not in ROW_ELECTIONS:
        raise ValueError(
            f"empty_rows must be one of {', '.join(ROW_ELECTIONS)}, got {empty_rows!r}"
        )
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = value.shape[1:]
    if scale is None:
        scale = 1.0 / float(np.sqrt(D)) if D else 1.0
    if scale is not None and precision is np.longdouble and D and scale == 1.0 / float(np.sqrt(D)):
        scale = 1 / np.sqrt(np.longdouble(D))
    mask_rows = _as_rows(mask)
    bias_rows = _as_rows(bias)

    group = H // Hkv
    q: np.ndarray = query.astype(precision)
    k: np.ndarray = np.repeat(key, group, axis=1).astype(precision)
    v: np.ndarray = np.repeat(value, group, axis=1).astype(precision)
    hidden_everywhere = ~np.isfinite(v).all(-1) | ~np.isfinite(k).all(-1)
    if hidden_everywhere.any():
        # A slot that is not finite must be hidden from every row, or the row's NaN is legitimate;
        # 0 * NaN would leak through the matrix products, so hidden slots are emptied.
        seen = _seen_keys(mask_rows, bias_rows, (B, H, Lq, Lk))
        k = np.where((hidden_everywhere & ~seen)[..., None], 0, k)
        v = np.where((hidden_everywhere & ~seen)[..., None], 0, v)
    kt = np.ascontiguousarray(np.swapaxes(k, -1, -2))
    uniform_row = v.mean(-2) if Lk else np.zeros((B, H, Dv), precision)

    out: np.ndarray = np.zeros((B, H, Lq, Dv), precision)
    lse: np.ndarray = np.full((B, H, Lq), -np.inf, precision)
    all_weights: np.ndarray | None = np.zeros((B, H, Lq, Lk), precision) if weights else None
    collector = _TermCollector(q, k, v, scale, softcap, variance) if terms else None
    step = max(1, BLOCK_ELEMENTS // max(1, B * H * Lk))

    def block(rows: slice) -> None:
        qb = q[:, :, rows]
        scaled = (qb @ kt) * scale  # (B, H, rows, Lk)
        s = scaled
        if softcap is not None:
            s = softcap * np.tanh(scaled / softcap)
        if bias_rows is not None:
            s = s + bias_rows(rows)
        hide = _hidden(mask_rows, bias_rows, rows)
        if hide is not None:
            s = np.where(hide, -np.inf, s)
        m = s.max(-1, keepdims=True) if Lk else np.full((*s.shape[:-1], 1), -np.inf, precision)
        empty = np.isneginf(m)
        shifted = s - np.where(empty, 0, m)
        p = np.exp(shifted)
        total = p.sum(-1, keepdims=True)
        p /= np.where(empty, 1, total)
        o = p @ v
        if empty.any() and empty_rows != "zeros":
            filler = np.nan if empty_rows == "nan" else uniform_row[:, :, None]
            o = np.where(empty, filler, o)
            if empty_rows == "uniform" and Lk:
                p = np.where(empty, precision(1) / Lk, p)
        out[:, :, rows] = o
        lse[:, :, rows] = (np.where(empty, 0, m) + np.log(total))[..., 0]
        if all_weights is not None:
            all_weights[:, :, rows] = p
        if collector is not None:
            averaged = empty & (empty_rows == "uniform")
            collector.add(rows, scaled, s, shifted, p, o, hide, empty, averaged)

    def quietly(rows: slice) -> None:
        # Rows without keys take log(0), and hidden slots may hold anything; error states are a
        # thread's own.
        with np.errstate(all="ignore"):
            block(rows)

    blocks = [slice(start, min(start + step, Lq)) for start in range(0, Lq, step)]
    if len(blocks) < PARALLEL_BLOCKS:
        for rows in blocks:
            quietly(rows)
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(quietly, blocks))
    return Reference(out, lse, all_weights, collector.terms if collector else None)


class _TermCollector:
    """Fills `Terms` block by block.

    Works in float32: a bound needs few digits, and half the memory traffic is what keeps the pass
    near the cost of a plain forward. Values are normalised by a power of two first, so that tiny and
    huge values neither underflow nor overflow.
    """

    def __init__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray,
        scale: float, softcap: float | None, variance: bool,
    ) -> None:  # fmt: skip
        B, H, Lq, D = q.shape
        self.softcap, self.variance = softcap, variance
        self.abs_q = np.abs(q).astype(np.float32) * np.float32((D + 2) * abs(float(scale)))
        self.abs_k = np.ascontiguousarray(np.swapaxes(np.abs(k), -1, -2).astype(np.float32))
        peak = float(np.max(np.abs(v), initial=0.0, where=np.isfinite(v)))
        self.unit = 2.0 ** np.floor(np.log2(peak)) if peak > 0 else 1.0
        self.v = (v / v.dtype.type(self.unit)).astype(np.float32)
        self.abs_v = np.abs(self.v)
        self.square_v = np.square(self.v)
        shape = (B, H, Lq, v.shape[-1])
        arrays = {f.name: np.zeros(shape if f.name in _PER_VALUE else shape[:3]) for f in _ARRAYS}
        self.terms = Terms(**arrays, summands=D + 2)

    def add(
        self, rows: slice, scaled: np.ndarray, s: np.ndarray, shifted: np.ndarray,
        p: np.ndarray, o: np.ndarray, hide: np.ndarray | None, empty: np.ndarray,
        averaged: np.ndarray,
    ) -> None:  # fmt: skip
        """One block of rows: scores after scaling, after cap, bias and mask, minus their maximum;
        weights; output; hidden pairs; rows without keys; those of them that average all values."""
        t, unit = self.terms, self.unit
        weight = p.astype(np.float32)
        o = np.where(empty, 0.0, o / o.dtype.type(unit)).astype(np.float32)
        abs_o = np.abs(o)
        magnitude = np.abs(scaled).astype(np.float32)
        final = np.abs(s).astype(np.float32)
        distance = shifted.astype(np.float32)
        attended = None
        if hide is not None:
            hidden = np.broadcast_to(hide, p.shape)
            # 0 * inf: what is hidden must be zero before it is multiplied by its zero weight.
            for array in (magnitude, final, distance):
                np.copyto(array, 0.0, where=hidden)
            attended = ~hidden | averaged
        a = self.abs_q[:, :, rows] @ self.abs_k
        c = magnitude * 2.0
        square = 2.0 * np.square(magnitude) if self.variance else None
        if self.softcap is not None:
            capped = np.tanh(magnitude / self.softcap)
            slope = 1.0 - np.square(capped)
            capped *= self.softcap
            a = a * slope + 4.0 * capped
            c = c * slope + capped
            if square is not None:
                square = square * np.square(slope) + np.square(capped)
        c += final
        np.negative(distance, out=distance)  # |s - m|: s never exceeds m
        a += distance
        a += 4.0
        # A row without keys has no scores: its only error comes from averaging the values.
        live = attended if not empty.any() else np.broadcast_to(~empty, p.shape)
        if live is not None:
            a *= live
            c *= live
            distance *= live
        if p.shape[-1]:
            relevant = weight > NEGLIGIBLE_WEIGHT
            t.peak_accumulate[:, :, rows] = (a * relevant).max(-1)
            t.peak_score[:, :, rows] = (c * relevant).max(-1)
            t.peak_shift[:, :, rows] = (distance * relevant).max(-1)
        a *= weight
        c *= weight
        distance *= weight
        t.accumulate[:, :, rows] = unit * (a @ self.abs_v + a.sum(-1, keepdims=True) * abs_o)
        t.score[:, :, rows] = unit * (c @ self.abs_v + c.sum(-1, keepdims=True) * abs_o)
        t.shift[:, :, rows] = unit * (
            distance @ self.abs_v + distance.sum(-1, keepdims=True) * abs_o
        )
        t.value[:, :, rows] = unit * (weight @ self.abs_v)
        if attended is None:
            t.keys[:, :, rows] = p.shape[-1]
            t.underflow[:, :, rows] = unit * self.abs_v.sum(-2, keepdims=True)
        else:
            t.keys[:, :, rows] = attended.sum(-1)
            t.underflow[:, :, rows] = unit * (attended.astype(np.float32) @ self.abs_v)
        if square is not None:
            square += np.square(final)
            weight *= weight
            square *= weight
            if live is not None:
                square *= live
            spread = square @ self.square_v - 2.0 * o * (square @ self.v)
            spread += square.sum(-1, keepdims=True) * np.square(o)
            t.score_var[:, :, rows] = unit * unit * np.maximum(spread, 0.0)
            t.value_var[:, :, rows] = unit * unit * (weight @ self.square_v)


def _check_shapes(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | MaskRows | None,
    bias: np.ndarray | None,
) -> None:
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim != 4:
            raise ValueError(f"{name} must have rank 4, got shape {array.shape}")
    (B, H, Lq, D), (Bk, Hk, Lk, Dk), (Bv, Hv, Lv, _) = query.shape, key.shape, value.shape
    if not (B == Bk == Bv and D == Dk and Lk == Lv and Hk == Hv and Hk > 0 and H % Hk == 0):
        raise ValueError(
            "expected query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv) with H a "
            f"multiple of Hkv, got {query.shape}, {key.shape}, {value.shape}"
        )
    for name, added in (("mask", mask), ("bias", bias)):
        if isinstance(added, np.ndarray):
            try:
                fits = np.broadcast_shapes(added.shape, (B, H, Lq, Lk)) == (B, H, Lq, Lk)
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"{name} {added.shape} does not broadcast to (B, H, Lq, Lk) = {(B, H, Lq, Lk)}"
                )
    if isinstance(mask, np.ndarray) and mask.dtype != bool:
        raise ValueError(f"mask must be boolean, got {mask.dtype}")


def _as_rows(array: np.ndarray | MaskRows | None) -> MaskRows | None:
    """A function from a slice of query rows to the block of a rank-4 broadcastable array."""
    if array is None or not isinstance(array, np.ndarray):
        return array
    full: np.ndarray = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return lambda rows: full[:, :, rows] if full.shape[2] != 1 else full


def _hidden(
    mask_rows: MaskRows | None, bias_rows: MaskRows | None, rows: slice
) -> np.ndarray | None:
    hide = None if mask_rows is None else ~mask_rows(rows)
    if bias_rows is not None:
        block = np.isneginf(bias_rows(rows))
        if block.any():
            hide = block if hide is None else hide | block
    return hide


def _seen_keys(
    mask_rows: MaskRows | None, bias_rows: MaskRows | None, shape: tuple[int, int, int, int]
) -> np.ndarray:
    """Boolean (B, H, Lk): whether any row attends the key."""
    B, H, Lq, Lk = shape
    seen = np.zeros((B, H, Lk), bool)
    step = max(1, BLOCK_ELEMENTS // max(1, B * H * Lk))
    for start in range(0, Lq, step):
        rows = slice(start, min(start + step, Lq))
        hide = _hidden(mask_rows, bias_rows, rows)
        if hide is None:
            return np.ones((B, H, Lk), bool)
        seen |= (~np.broadcast_to(hide, (B, H, rows.stop - rows.start, Lk))).any(-2)
    return seen

"""Attention in float64, block by block over query rows: output, log-sum-exp and bound terms.

`references.terms.Terms` give the bound for every numerics class, so one pass serves every
implementation. Memory grows with block x Lk, not Lq x Lk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.references.outputs import EMPTY_ROWS, Outputs, check_empty_rows
from attention_conformance.references.primitives.softmax import Softmax
from attention_conformance.references.rounding import Bounded, Roundoffs, precision_for
from attention_conformance.references.steps import split_steps
from attention_conformance.references.terms import Block, Collector, Terms
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs

MaskRows = Callable[[slice], np.ndarray]

BLOCK_ELEMENTS = 1 << 16
"""Scores per block over all batches and heads. A temporary of half a MiB stays in cache."""

FEW_ROWS, LONG_BLOCK_ELEMENTS = 8, 1 << 17
"""Blocks of fewer rows are enlarged: reading all keys and values for each block costs more than
temporaries of one MiB."""

_PASSES: Cache[BlockedPass] = Cache(64)
"""The last passes: one serves every roundoff."""

PARALLEL_BLOCKS = 32
"""From this many blocks on, threads share the blocks. NumPy releases Python's lock."""

THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class BlockedPass:
    """Result of one pass over the blocks of rows.

    output          (B, H, Lq, Dv)
    lse, largest    (B, H, Lq): log-sum-exp and largest score of a row; -inf without any key
    terms           `Terms`, if requested
    """

    output: np.ndarray
    lse: np.ndarray
    largest: np.ndarray
    terms: Terms | None = None


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | MaskRows | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    features: Mapping[str, Any] | None = None,
    empty_rows: str = "zeros",
    precision: type[np.floating[Any]] = np.float64,
    terms: bool = False,
    variance: bool = False,
) -> BlockedPass:
    """Scaled dot-product attention: softmax(scores) value.

      query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv)
      scores = scale query key^T, then the steps of the features, then + bias, then the mask

    - Query head h uses key/value head h // (H / Hkv).
    - `mask`: True attends. An array that broadcasts to (B, H, Lq, Lk), or a function from a slice of
      rows to such an array. A bias of -inf hides a pair, too.
    - `features`: values of features (`suite.spec.features`) by name: numbers, arrays (H,), or operands of
      steps, which broadcast to (B, H, Lq, Lk).
    - `empty_rows`: output of a fully masked row, "zeros", "nan" or "uniform" (the mean of all Lk
      values). With a finite score of a sink the output is 0: the sink has all the weight.
    - Keys and values that no row attends may hold anything, NaN included.
    - `precision`: np.float64 or np.longdouble. The terms are always float64.

    Raises ValueError for an unknown `empty_rows`, and for shapes that do not fit together.
    """
    features = features or {}
    _check_shapes(query, key, value, mask, bias, features)
    check_empty_rows(empty_rows, EMPTY_ROWS)
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = value.shape[1:]
    if scale is None:
        scale = 1.0 / float(np.sqrt(D)) if D else 1.0
    if precision is np.longdouble and D and scale == 1.0 / float(np.sqrt(D)):
        scale = 1 / np.sqrt(np.longdouble(D))
    mask_rows = _as_rows(mask)
    bias_rows = _as_rows(bias)

    group = H // Hkv if Hkv else 1
    q: np.ndarray = query.astype(precision)
    k: np.ndarray = np.repeat(key, group, axis=1).astype(precision)
    v: np.ndarray = np.repeat(value, group, axis=1).astype(precision)
    score_steps, sink = split_steps(features, Lq, Lk, precision)
    nonfinite = ~np.isfinite(v).all(-1) | ~np.isfinite(k).all(-1)
    if nonfinite.any():
        # 0 * NaN is NaN in a matrix product, so slots that every row hides become 0. A non-finite
        # slot that a row attends stays: NaN is right there.
        attended = _attended_keys(mask_rows, bias_rows, (B, H, Lq, Lk))
        k = np.where((nonfinite & ~attended)[..., None], 0, k)
        v = np.where((nonfinite & ~attended)[..., None], 0, v)
    kt = np.ascontiguousarray(np.swapaxes(k, -1, -2))
    uniform_row = v.mean(-2) if Lk else np.zeros((B, H, Dv), precision)

    out: np.ndarray = np.zeros((B, H, Lq, Dv), precision)
    lse: np.ndarray = np.full((B, H, Lq), -np.inf, precision)
    largest = lse.copy()
    is_biased = bias_rows is not None or any(step.reduction.to == "bias" for step in score_steps)
    collector = Collector(q, k, v, scale, sink, variance) if terms else None

    def block(rows: slice) -> None:
        """Writes output, log-sum-exp, largest score and terms of a block of rows."""
        qb = q[:, :, rows]
        scaled = (qb @ kt) * scale  # (B, H, rows, Lk)
        s, applied = scaled, []
        for step in score_steps:
            s, slope, size = step.on(s, rows)
            applied.append((step, slope, size))
        if bias_rows is not None:
            s = s + bias_rows(rows)
        hidden = _hidden_pairs(mask_rows, bias_rows, rows)
        if hidden is not None:
            s = np.where(hidden, -np.inf, s)
        if sink is None:
            softmax = Softmax.of(s)
        else:
            column = np.broadcast_to(sink.operand, (*s.shape[:-1], 1))
            softmax = Softmax.of(np.concatenate([s, column], -1))
        p, empty = softmax.weights[..., :Lk], softmax.empty
        o = p @ v
        if empty.any() and empty_rows != "zeros":
            filler = np.nan if empty_rows == "nan" else uniform_row[:, :, None]
            o = np.where(empty, filler, o)
            if empty_rows == "uniform" and Lk:
                p = np.where(empty, precision(1) / Lk, p)
        out[:, :, rows] = o
        lse[:, :, rows], largest[:, :, rows] = softmax.lse, softmax.largest[..., 0]
        if collector is not None:
            averaged = empty & (empty_rows == "uniform")
            block_of_rows = Block(
                rows, scaled, applied, s, p, o, softmax, hidden, empty, averaged, is_biased
            )
            collector.add(block_of_rows)

    def block_without_warnings(rows: slice) -> None:
        # Fully masked rows take log(0), and hidden slots may hold anything. NumPy's error state is
        # set per thread.
        with np.errstate(all="ignore"):
            block(rows)

    blocks = _blocks((B, H, Lq, Lk))
    if len(blocks) < PARALLEL_BLOCKS:
        for rows in blocks:
            block_without_warnings(rows)
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(block_without_warnings, blocks))
    return BlockedPass(out, lse, largest, collector.terms if collector else None)


@np.errstate(all="ignore")
def bounded(
    inputs: Inputs, u: Roundoffs, query: np.ndarray, key: np.ndarray, value: np.ndarray,
    *, part: int = 0, lse: bool = False, empty_rows: str = "zeros", **options: Any,
) -> Outputs:  # fmt: skip
    """Returns the output of `attention` with its bound, and in 16-bit dtypes its standard deviation; with
    `lse` also the log-sum-exp.
    `part`: the number of this call if the inputs are computed by several calls with different operands.
    The cache of passes needs the number."""
    compute = partial(
        attention, query, key, value, scale=inputs.scale, empty_rows=empty_rows, terms=True,
        precision=precision_for(inputs.dtype), variance=inputs.dtype.is_half, **options,
    )  # fmt: skip
    block_pass = _PASSES.get((inputs.digest, part, empty_rows), compute)
    terms, output = block_pass.terms, block_pass.output
    assert terms is not None
    deviation = terms.standard_deviation(output, u) if inputs.dtype.is_half else None
    arrays = {"output": Bounded(output, terms.bound(output, u))}
    if lse:
        arrays["lse"] = Bounded(
            block_pass.lse, terms.lse_bound(block_pass.lse, block_pass.largest, u)
        )
    return Outputs(arrays, terms.keys, deviation, terms.has_sink)


def _check_shapes(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | MaskRows | None,
    bias: np.ndarray | None,
    features: Mapping[str, Any],
) -> None:
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim != 4:
            raise ValueError(f"{name} must have rank 4, got shape {array.shape}")
    (B, H, Lq, D), (Bk, Hk, Lk, Dk), (Bv, Hv, Lv, _) = query.shape, key.shape, value.shape
    divides = H % Hk == 0 if Hk else H == 0
    if not (B == Bk == Bv and D == Dk and Lk == Lv and Hk == Hv and divides):
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
    for name, value in features.items():
        if FEATURES[name].axes and value.shape != (H,) and value.ndim != 4:
            raise ValueError(f"{name} must have a number per query head, ({H},), got {value.shape}")


def _blocks(shape: tuple[int, int, int, int]) -> list[slice]:
    """Returns the slice of query rows of each block. `shape`: (B, H, Lq, Lk)."""
    B, H, Lq, Lk = shape
    pairs = max(1, B * H * Lk)
    step = BLOCK_ELEMENTS // pairs
    if step < FEW_ROWS:
        step = max(1, LONG_BLOCK_ELEMENTS // pairs)
    return [slice(start, min(start + step, Lq)) for start in range(0, Lq, step)]


def _as_rows(array: np.ndarray | MaskRows | None) -> MaskRows | None:
    """Returns a function from a slice of query rows to these rows of `array`, of rank 4 (size 1 where the
    array broadcasts). A function or None is returned unchanged."""
    if array is None or not isinstance(array, np.ndarray):
        return array
    full: np.ndarray = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return lambda rows: full[:, :, rows] if full.shape[2] != 1 else full


def _hidden_pairs(
    mask_rows: MaskRows | None, bias_rows: MaskRows | None, rows: slice
) -> np.ndarray | None:
    """Returns the hidden pairs of a block: True where the mask is False or the bias is -inf. Boolean,
    broadcastable to (B, H, rows, Lk); None if all pairs attend."""
    hidden = None if mask_rows is None else ~mask_rows(rows)
    if bias_rows is not None:
        bias_hides = np.isneginf(bias_rows(rows))
        if bias_hides.any():
            hidden = bias_hides if hidden is None else hidden | bias_hides
    return hidden


def _attended_keys(
    mask_rows: MaskRows | None, bias_rows: MaskRows | None, shape: tuple[int, int, int, int]
) -> np.ndarray:
    """Returns, boolean (B, H, Lk), the keys that at least one row attends. `shape`: (B, H, Lq, Lk)."""
    B, H, _, Lk = shape
    attended = np.zeros((B, H, Lk), bool)
    for rows in _blocks(shape):
        hidden = _hidden_pairs(mask_rows, bias_rows, rows)
        if hidden is None:
            return np.ones((B, H, Lk), bool)
        attended |= (~np.broadcast_to(hidden, (B, H, rows.stop - rows.start, Lk))).any(-2)
    return attended

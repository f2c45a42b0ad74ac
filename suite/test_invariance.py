"""Promise: a row's answer hangs on the row and the keys it sees, not on what is computed beside it.

Each check compares answers to one problem that are computed in different company, and grades them:

    bitwise        the same bits
    within bound   other bits, as near as the bounds of both answers allow: another order of sums
    broken         further apart: a failure ("unequal", or "not-deterministic" for a second call)

The worst grade of a cell is what it observed; the table `invariance` of a report shows it. Bitwise is
not promised except of a second call: whoever needs it (replay, speculative decoding, caches) reads the
table. Sizes are few and shared, since JAX compiles for every new shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from suite.judge.cell import Cell, check
from suite.judge.verdict import Deviation
from suite.spec.dtypes import DTYPES
from suite.spec.masks import Causal
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import generator

GRADES = ("bitwise", "within bound", "broken")

NARROW, LONG = "sdpa/none/mha/{dt}/b3h2q18k34d8", "sdpa/none/gqa2/{dt}/b2h4q129k161d64"
ONE_ROW, LONG_ROW = "sdpa/none/mha/{dt}/b3h2q1k34d8", "sdpa/none/gqa2/{dt}/b2h4q1k513d64"
GROWING, LONG_GROWING = (
    "sdpa/causalbr/mha/{dt}/b3h2q18k34d8",
    "sdpa/causal/gqa2/{dt}/b2h4q66k66d64",
)
THREADED = "sdpa/none/mha/{dt}/b2h3q129k257d64"

THREADS = (1, 2, 3, 4)
"""How many threads are compared."""

SWITCHES = (1, 8, 16, 32, 64, 128)
"""Numbers of rows around which kernels switch to another tile, or another kernel."""

CHUNK = 8
"""Rows of the last chunk of a prefill."""


def asked(standard: str, full: str = "") -> Callable[[str], list[Case]]:
    """Cases in float32 and bfloat16 at smoke, else in every dtype; `full` at full only."""

    def found(level: str) -> list[Case]:
        names = ("f32", "bf16") if level == "smoke" else tuple(DTYPES)
        texts = [standard, full] if level == "full" and full else [standard]
        return [Case.parse(text.replace("{dt}", dt)) for text in texts for dt in names]

    return found


def hold(cell: Cell, got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str) -> None:
    """Grade two answers to one problem, and raise Deviation "unequal" beyond the sum of their bounds.

    The cell observes the worst grade of all its comparisons.
    """
    grade = "bitwise" if np.array_equal(got, want, equal_nan=True) else "within bound"
    try:
        cell.expect_close(got, want, limit, what)
    except Deviation:
        cell.measured.observed = "broken"
        raise
    before = cell.measured.observed or "bitwise"
    cell.measured.observed = max(before, grade, key=GRADES.index)


def rows_of(inputs: Inputs, rows: slice | np.ndarray, **changes: np.ndarray) -> Inputs:
    """The inputs with some of their rows alone; they have no mask."""
    return replace(inputs, query=inputs.query[:, :, rows], **changes)  # type: ignore[arg-type]


def samples_of(inputs: Inputs, samples: slice | np.ndarray) -> Inputs:
    """The inputs with some of their samples alone; they have no mask."""
    query, key, value = (x[samples] for x in (inputs.query, inputs.key, inputs.value))
    return replace(inputs, query=query, key=key, value=value)


@check(asked(NARROW, LONG))
def test_invariant_rerun(cell: Cell) -> None:
    """The same call again gives the same bits: on arrays made anew, and after a call on other values.

    An implementation that is not declared deterministic may differ within the bounds.
    """
    inputs = cell.inputs
    first, bound = cell.run().values.copy(), cell.bound(inputs)
    other = replace(inputs, query=-inputs.query, value=inputs.value[:, :, ::-1])
    for n in range(4):
        if n == 2:
            cell.run(other)
        again = cell.run().values
        what = f"call {n + 2} on the same values"
        if cell.implementation.deterministic and not np.array_equal(again, first):
            cell.measured.observed = "broken"
            cell.expect_bitwise(again, first, "not-deterministic", what)
        hold(cell, again, first, 2 * bound, what)


@check(asked(NARROW, LONG))
def test_invariant_batch(cell: Cell) -> None:
    """A sample's answer is the same alone, elsewhere in the batch, and beside other samples."""
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    order = np.roll(np.arange(s.B), 1)
    moved = cell.run(samples_of(inputs, order)).values
    hold(cell, moved, whole[order], 2 * bound[order], "samples at other places in the batch")
    first = np.arange(s.B)[:, None, None, None] == 0
    query, key, value = (np.where(first, x, -x) for x in (inputs.query, inputs.key, inputs.value))
    got = cell.run(replace(inputs, query=query, key=key, value=value)).values
    hold(cell, got[:1], whole[:1], 2 * bound[:1], "sample 0 beside other samples")
    for b in (0, s.B - 1):
        alone = samples_of(inputs, slice(b, b + 1))
        got = cell.run(alone).values
        limit = bound[b : b + 1] + cell.bound(alone)
        hold(cell, got, whole[b : b + 1], limit, f"sample {b} alone and in a batch of {s.B}")


def counts(Lq: int) -> list[int]:
    """How many of `Lq` rows are asked alone: around the sizes at which kernels switch.

    Two where there are few rows, since JAX compiles for each.
    """
    around = [n + d for n in SWITCHES for d in (-1, 0, 1)]
    return [count for count in ((1, 8) if Lq < 32 else around) if 0 < count < Lq]


@check(asked(NARROW, LONG))
def test_invariant_rows(cell: Cell) -> None:
    """A row's answer is the same among fewer rows (mlx#3573), at another place, and beside others."""
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    back = np.arange(s.Lq)[::-1]
    moved = cell.run(rows_of(inputs, back)).values
    hold(cell, moved, whole[:, :, back], 2 * bound[:, :, back], "rows in reverse order")
    query = -inputs.query
    query[:, :, ::2] = inputs.query[:, :, ::2]
    got = cell.run(replace(inputs, query=query)).values[:, :, ::2]
    hold(cell, got, whole[:, :, ::2], 2 * bound[:, :, ::2], "rows beside other rows")
    for count in counts(s.Lq):
        for rows in (slice(0, count), slice(s.Lq - count, s.Lq)):
            some = rows_of(inputs, rows)
            got, limit = cell.run(some).values, bound[:, :, rows] + cell.bound(some)
            what = f"rows {rows.start} to {rows.stop - 1} alone and among {s.Lq}"
            hold(cell, got, whole[:, :, rows], limit, what)


@check(asked(THREADED), needs=("threads",))
def test_invariant_threads(cell: Cell) -> None:
    """The answer is the same on one thread and on more."""
    inputs, backend = cell.inputs, cell.implementation.backend
    bound = cell.bound(inputs)
    answers = []
    for count in THREADS:
        with backend.threads(count):
            answers.append(cell.run(inputs).values.copy())
    for count, got in zip(THREADS[1:], answers[1:], strict=True):
        hold(cell, got, answers[0], 2 * bound, f"{count} threads and {THREADS[0]}")


def seen_by(inputs: Inputs, row: int) -> int:
    """How many keys a row of a causal problem sees; keys before the first row are a cache."""
    s = inputs.sizes
    bottom_right = isinstance(inputs.mask, Causal) and inputs.mask.bottom_right
    return row + 1 + (s.Lk - s.Lq if bottom_right else 0)


@check(asked(GROWING, LONG_GROWING))
def test_invariant_decode(cell: Cell) -> None:
    """A prefill gives what decoding one token at a time gives: row i, as the only query, over the keys
    that row i sees and no mask; and its last 8 rows are those of a chunk, bottom-right causal.

    Decoded are the first and the last row, and where there are many those around which kernels switch:
    JAX compiles for every number of keys.
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    between = [row for row in SWITCHES if row < s.Lq - 1] if s.Lq > 32 else []
    for row in (0, *between, s.Lq - 1):
        keys = seen_by(inputs, row)
        at = slice(row, row + 1)
        step = rows_of(
            replace(inputs, mask=None), at, key=inputs.key[:, :, :keys],
            value=inputs.value[:, :, :keys],
        )  # fmt: skip
        got, limit = cell.run(step).values, bound[:, :, at] + cell.bound(step)
        hold(cell, got, whole[:, :, at], limit, f"row {row} decoded over {keys} keys and prefilled")
    last = slice(s.Lq - CHUNK, s.Lq)
    chunk = rows_of(replace(inputs, mask=Causal(bottom_right=True)), last)
    got, limit = cell.run(chunk).values, bound[:, :, last] + cell.bound(chunk)
    hold(cell, got, whole[:, :, last], limit, f"the last {CHUNK} rows as a chunk and prefilled")


@check(asked(ONE_ROW, LONG_ROW))
def test_invariant_split(cell: Cell) -> None:
    """The answer over all keys is that over two parts of them, merged by their log-sum-exps.

    With l1 and l2 the log-sum-exps of the scores of the parts and w_i = exp(l_i) / (exp(l1) + exp(l2)),
    the exact answers obey o = w1 o1 + w2 o2. The implementation's answers lie within their bounds b, b1
    and b2 of these, so that the merge of its parts lies within b + w1 b1 + w2 b2 of its whole. No
    framework's interface hands out the log-sum-exp in all implementations: the weights are those of
    the reference, in float64 (extended precision for float64), and so is the merge, whose rounding is
    some 2^-29 (2^-11) of the smallest bound. Keys go to the parts one by one, so that the parts weigh
    differently, and at another place than they had.
    """
    inputs = cell.inputs
    whole, limit = cell.run().values.copy(), cell.bound(inputs)
    first = np.sort(
        generator(cell.case.id + "/split", cell.seed).permutation(inputs.sizes.Lk)[
            : inputs.sizes.Lk // 2
        ]
    )
    parts = [
        replace(inputs, key=inputs.key[:, :, keys], value=inputs.value[:, :, keys])
        for keys in (first, np.setdiff1d(np.arange(inputs.sizes.Lk), first))
    ]
    lse = [cell.oracle(part).reference.lse[..., None] for part in parts]
    total = np.logaddexp(*lse)
    merged = np.zeros(whole.shape, total.dtype)
    for part, part_lse in zip(parts, lse, strict=True):
        weight = np.exp(part_lse - total)
        merged = merged + weight * cell.run(part).values
        limit = limit + weight * cell.bound(part)
    hold(cell, merged, whole, limit, "two parts of the keys merged, and all keys")

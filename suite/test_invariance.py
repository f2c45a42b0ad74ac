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

import numpy as np

from references.sdpa import attention
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.comparison import expect_bitwise, expect_close
from suite.judge.verdict import Deviation
from suite.spec.catalogue import Ask, asked, with_plain
from suite.spec.inputs import Inputs
from suite.spec.masks import Causal
from suite.spec.operators.packed import segments
from suite.spec.recipes import generator
from suite.spec.vocabulary import INVARIANCE_GRADES

NARROW, LONG = "sdpa/none/mha/{dt}/b3h2q18k34d8", "sdpa/none/gqa2/{dt}/b2h4q129k161d64"
ONE_ROW, LONG_ROW = "sdpa/none/mha/{dt}/b3h2q1k34d8", "sdpa/none/gqa2/{dt}/b2h4q1k513d64"
GROWING, LONG_GROWING = (
    "sdpa/causalbr/mha/{dt}/b3h2q18k34d8",
    "sdpa/causal/gqa2/{dt}/b2h4q66k66d64",
)
LAYERS = (
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
    "additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
    "dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "rotary/none/mha/{dt}/b2h3q17k1d16/gathered",
)
PACKED = "packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12"
GROWING_LAYER = "multi-head/causal/mha/{dt}/b2h3q5k9d4/e12.12.12.12"
THREADED = ("sdpa/none/mha/{dt}/b2h3q129k257d64", LAYERS[0])

THREADS = (1, 2, 3, 4)
"""How many threads are compared."""

SWITCHES = (1, 8, 16, 32, 64, 128)
"""Numbers of rows around which kernels switch to another tile, or another kernel."""

CHUNK = 8
"""Rows of the last chunk of a prefill."""


def long(pattern: str) -> Ask:
    """A long form of the cases, at full alone."""
    return Ask(pattern, since="full")


def expect_within(
    cell: Cell, got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str
) -> None:
    """Grade two answers to one problem, and raise Deviation "unequal" beyond the sum of their bounds.

    The cell observes the worst grade of all its comparisons.
    """
    grade = "bitwise" if np.array_equal(got, want, equal_nan=True) else "within bound"
    try:
        expect_close(got, want, limit, what)
    except Deviation:
        cell.measured.observed = "broken"
        raise
    before = cell.measured.observed or "bitwise"
    cell.measured.observed = max(before, grade, key=INVARIANCE_GRADES.index)


def rows_of(array: np.ndarray, inputs: Inputs, rows: slice | np.ndarray) -> np.ndarray:
    """Some rows of an output of `inputs`."""
    place = inputs.operator.outputs(inputs.case)["output"].index("q")
    return array[(slice(None),) * place + (rows,)]


def renewed(inputs: Inputs, kept: np.ndarray, axis: str) -> Inputs:
    """The inputs with the signs of all arrays turned that have the axis, but for its indices `kept`
    (boolean); positions and lengths stay."""
    arrays = {}
    for name in inputs.arrays:
        if axis not in inputs.axes(name) or name in inputs.operator.array_kinds.constants:
            continue
        place = inputs.axes(name).index(axis)
        shape = [-1 if n == place else 1 for n in range(inputs.arrays[name].ndim)]
        arrays[name] = np.where(kept.reshape(shape), inputs.arrays[name], -inputs.arrays[name])
    return inputs.replace(**arrays)


@check(with_plain(NARROW, *LAYERS, long(LONG)))
def test_invariant_rerun(cell: Cell) -> None:
    """The same call again gives the same bits: on arrays made anew, and after a call on other values.

    An implementation that is not declared deterministic may differ within the bounds.
    """
    inputs = cell.inputs
    first, bound = cell.run().values.copy(), cell.bound(inputs)
    axis = inputs.operator.outputs(inputs.case)["output"][0]
    other = renewed(inputs, np.zeros(inputs.letters[axis], bool), axis)
    for n in range(4):
        if n == 2:
            cell.run(other)
        again = cell.run().values
        what = f"call {n + 2} on the same values"
        if cell.implementation.declared.deterministic and not np.array_equal(again, first):
            cell.measured.observed = "broken"
            expect_bitwise(again, first, "not-deterministic", what)
        expect_within(cell, again, first, 2 * bound, what)


@check(with_plain(NARROW, *LAYERS, long(LONG), axes="b"))
def test_invariant_batch(cell: Cell) -> None:
    """A sample's answer is the same alone, elsewhere in the batch, and beside other samples."""
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    order = np.roll(np.arange(s.B), 1)
    moved = cell.run(inputs.select("b", order)).values
    expect_within(
        cell, moved, whole[order], 2 * bound[order], "samples at other places in the batch"
    )
    first = np.arange(s.B) == 0
    got = cell.run(renewed(inputs, first, "b")).values
    expect_within(cell, got[:1], whole[:1], 2 * bound[:1], "sample 0 beside other samples")
    for b in (0, s.B - 1):
        place = slice(b, b + 1)
        alone = inputs.select("b", place)
        got, limit = cell.run(alone).values, bound[place] + cell.bound(alone)
        expect_within(cell, got, whole[place], limit, f"sample {b} alone and in a batch of {s.B}")


def counts(Lq: int) -> list[int]:
    """How many of `Lq` rows are asked alone: around the sizes at which kernels switch.

    Two where there are few rows, since JAX compiles for each.
    """
    around = [n + d for n in SWITCHES for d in (-1, 0, 1)]
    return [count for count in ((1, 8) if Lq < 32 else around) if 0 < count < Lq]


@check(with_plain(NARROW, *LAYERS, long(LONG), axes="q"))
def test_invariant_rows(cell: Cell) -> None:
    """A row's answer is the same among fewer rows (mlx#3573), at another place, and beside others."""
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    back = np.arange(s.Lq)[::-1]
    moved = cell.run(inputs.select("q", back)).values
    want, limit = (rows_of(x, inputs, back) for x in (whole, 2 * bound))
    expect_within(cell, moved, want, limit, "rows in reverse order")
    even = slice(0, None, 2)
    got = cell.run(renewed(inputs, np.arange(s.Lq) % 2 == 0, "q")).values
    got, want, limit = (rows_of(x, inputs, even) for x in (got, whole, 2 * bound))
    expect_within(cell, got, want, limit, "rows beside other rows")
    for count in counts(s.Lq):
        for rows in (slice(0, count), slice(s.Lq - count, s.Lq)):
            some = inputs.select("q", rows)
            got, limit = cell.run(some).values, rows_of(bound, inputs, rows) + cell.bound(some)
            what = f"rows {rows.start} to {rows.stop - 1} alone and among {s.Lq}"
            expect_within(cell, got, rows_of(whole, inputs, rows), limit, what)


@check(asked(*THREADED), needs=("threads",))
def test_invariant_threads(cell: Cell) -> None:
    """The answer is the same on one thread and on more."""
    inputs, backend = cell.inputs, cell.implementation.backend
    bound = cell.bound(inputs)
    answers = []
    for count in THREADS:
        with backend.threads(count):
            answers.append(cell.run(inputs).values.copy())
    for count, got in zip(THREADS[1:], answers[1:], strict=True):
        expect_within(cell, got, answers[0], 2 * bound, f"{count} threads and {THREADS[0]}")


def seen_by(inputs: Inputs, row: int) -> int:
    """How many keys a row of a causal problem sees; keys before the first row are a cache."""
    s = inputs.sizes
    bottom_right = isinstance(inputs.mask, Causal) and inputs.mask.bottom_right
    return row + 1 + (s.Lk - s.Lq if bottom_right else 0)


@check(asked(GROWING, GROWING_LAYER, long(LONG_GROWING)))
def test_invariant_decode(cell: Cell) -> None:
    """A prefill gives what decoding one token at a time gives: row i, as the only query, over the keys
    that row i sees and no mask; and its last 8 rows are those of a chunk over the keys that it sees.

    Decoded are the first and the last row, and where there are many those around which kernels switch:
    JAX compiles for every number of keys.
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    between = [row for row in SWITCHES if row < s.Lq - 1] if s.Lq > 32 else []
    for row in (0, *between, s.Lq - 1):
        keys, at = seen_by(inputs, row), slice(row, row + 1)
        step = inputs.replace(mask=None).select("q", at).select("k", slice(0, keys))
        got, limit = cell.run(step).values, rows_of(bound, inputs, at) + cell.bound(step)
        want = rows_of(whole, inputs, at)
        expect_within(cell, got, want, limit, f"row {row} decoded over {keys} keys and prefilled")
    last = slice(s.Lq - min(CHUNK, s.Lq - 2), s.Lq)
    chunk = inputs.select("q", last).select("k", slice(0, seen_by(inputs, s.Lq - 1)))
    got, limit = cell.run(chunk).values, rows_of(bound, inputs, last) + cell.bound(chunk)
    what = f"rows {last.start} to {s.Lq - 1} as a chunk and prefilled"
    expect_within(cell, got, rows_of(whole, inputs, last), limit, what)


@check(asked(ONE_ROW, long(LONG_ROW)))
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
    keys = np.arange(inputs.sizes.Lk)
    order = generator(cell.case.id + "/split", cell.seed).permutation(keys)
    first = np.sort(order[: keys.size // 2])
    parts = [inputs.select("k", some) for some in (first, np.setdiff1d(keys, first))]
    precision = np.longdouble if cell.dtype.name == "f64" else np.float64
    lse = [
        attention(p.query, p.key, p.value, scale=p.scale, precision=precision).lse[..., None]
        for p in parts
    ]
    total = np.logaddexp(*lse)
    merged: np.ndarray = np.zeros(whole.shape, total.dtype)
    for part, part_lse in zip(parts, lse, strict=True):
        weight = np.exp(part_lse - total)
        merged = merged + weight * cell.run(part).values
        limit = limit + weight * cell.bound(part)
    expect_within(cell, merged, whole, limit, "two parts of the keys merged, and all keys")


@check(asked(PACKED, f"{PACKED}/causal"))
def test_invariant_segments(cell: Cell) -> None:
    """A segment's answer is the same alone, and with the segments in another order."""
    inputs = cell.inputs
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    parts = list(segments(inputs.case))
    for n in (0, len(parts) - 1):
        alone = inputs.select("b", [n])
        rows = parts[n][0]
        got, limit = cell.run(alone).values, bound[rows] + cell.bound(alone)
        expect_within(cell, got, whole[rows], limit, f"segment {n} alone and among {len(parts)}")
    order = [*range(1, len(parts)), 0]
    places = np.concatenate(
        [np.arange(rows.start, rows.stop) for rows, _ in (parts[n] for n in order)]
    )
    moved = cell.run(inputs.select("b", order)).values
    expect_within(cell, moved, whole[places], 2 * bound[places], "segments in another order")

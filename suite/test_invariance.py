"""Promise: the output of a row depends only on the row and its keys, not on other work in the call.

Each check compares two outputs of one problem, and grades them:

    bitwise        the same bits
    within bound   different bits within both bounds, from another order of sums
    broken         beyond the bounds, or other bits than promised: a failure ("unequal", or
                   "not-deterministic" for a second call)

The cell observes its worst grade, which the report table `invariance` shows. Bitwise is promised for a
second call, and for what an implementation declares (`Declared.bitwise`). Sizes are few and shared,
because JAX compiles for every new shape.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise, expect_close
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    has_axes,
    plain_patterns,
    with_plain_cases,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operators.packed import segments
from attention_conformance.suite.spec.recipes import generator
from attention_conformance.suite.spec.vocabulary import INVARIANCE_GRADES

NARROW, LONG = "sdpa/none/mha/{dt}/b3h2q18k34d8", "sdpa/none/gqa2/{dt}/b2h4q129k161d64"
ONE_ROW, LONG_ROW = "sdpa/none/mha/{dt}/b3h2q1k34d8", "sdpa/none/gqa2/{dt}/b2h4q1k513d64"
GROWING, LONG_GROWING = (
    "sdpa/causalbr/mha/{dt}/b3h2q18k34d8",
    "sdpa/causal/gqa2/{dt}/b2h4q66k66d64",
)
LAYERS = (
    *plain_patterns("multi-head", "additive", "dot"),
    "rotary/none/mha/{dt}/b2h3q17k1d16/gathered",
)
PACKED = "packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12"
PADDED, LONG_PADDED = "sdpa/pad/mha/{dt}/b1h2q18k34d8", "sdpa/pad/gqa2/{dt}/b1h4q129k161d64"
PADDED_LAYER = "multi-head/pad/mha/{dt}/b1h3q5k9d4/e12.12.12.12"
LATENT_ROW = "latent/none/mha/{dt}/b3h4q1k9d8v6"
GROWING_LATENT = "latent/causalbr/mha/{dt}/b2h3q4k9d8v6"
GROWING_LAYER = "multi-head/causal/mha/{dt}/b2h3q5k9d4/e12.12.12.12"
THREADED = ("sdpa/none/mha/{dt}/b2h3q129k257d64", LAYERS[0])

THREADS = (1, 2, 3, 4)
"""Numbers of threads to compare."""

SWITCHES = (1, 8, 16, 32, 64, 128)
"""Numbers of rows at which kernels switch to another tile or kernel."""

CHUNK = 8
"""The number of rows in the last chunk of a prefill."""


def at_full(pattern: str) -> Ask:
    """Returns the request for a longer case, at the level full only."""
    return Ask(pattern, since="full")


def expect_within(
    cell: Cell, got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str
) -> None:
    """Compare two outputs of one problem, and store the worst grade of the cell in
    `cell.measured.observed`.

    `limit`: the sum of their bounds. Raises WrongAnswer "unequal" beyond the limit, and for different
    bits if equal bits are promised; for a second call this is "not-deterministic"."""
    other_work = cell.check.name.removeprefix("invariant_")
    before = cell.measured.observed or "bitwise"
    cell.measured.observed = "broken"
    if other_work in cell.implementation.declared.bitwise:
        kind = "not-deterministic" if other_work == "rerun" else "unequal"
        expect_bitwise(got, want, kind, f"{what}, promised bit by bit")
    expect_close(got, want, limit, what)
    grade = "bitwise" if np.array_equal(got, want, equal_nan=True) else "within bound"
    cell.measured.observed = max(before, grade, key=INVARIANCE_GRADES.index)


def rows_of(array: np.ndarray, inputs: Inputs, rows: slice | np.ndarray) -> np.ndarray:
    """Returns the given rows of an output for `inputs`, along its axis "q"."""
    axis = inputs.operator.outputs(inputs.case)["output"].index("q")
    return array[(slice(None),) * axis + (rows,)]


def with_negated_values(inputs: Inputs, unchanged: np.ndarray, axis: str) -> Inputs:
    """Returns the inputs with negated values, except at the indices of `axis` where `unchanged` is True.

    Arrays without this axis stay, and so do positions and lengths.
    """
    arrays = {}
    for name in inputs.arrays:
        if axis not in inputs.axes(name) or name in inputs.operator.array_kinds.constants:
            continue
        array, number = inputs.arrays[name], inputs.axes(name).index(axis)
        shape = [-1 if n == number else 1 for n in range(array.ndim)]
        arrays[name] = np.where(unchanged.reshape(shape), array, -array)
    return inputs.replace(**arrays)


@check(with_plain_cases(NARROW, *LAYERS, at_full(LONG)))
def test_invariant_rerun(cell: Cell) -> None:
    """A second call gives the same bits, on new copies of the arrays and after a call on other values."""
    inputs = cell.inputs
    first, bound = cell.run().values.copy(), cell.bound(inputs)
    axis = inputs.operator.outputs(inputs.case)["output"][0]
    changed = with_negated_values(inputs, np.zeros(inputs.letters[axis], bool), axis)
    for n in range(4):
        if n == 2:
            cell.run(changed)
        output = cell.run().values
        expect_within(cell, output, first, 2 * bound, f"call {n + 2} on the same values")


@check(with_plain_cases(NARROW, *LAYERS, at_full(LONG), keep=has_axes("b")))
def test_invariant_batch(cell: Cell) -> None:
    """A sample has the same output alone, at another place in the batch, and among changed samples."""
    inputs, s = cell.inputs, cell.inputs.sizes
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    order = np.roll(np.arange(s.B), 1)
    permuted = cell.run(inputs.select("b", order)).values
    expect_within(
        cell, permuted, output[order], 2 * bound[order], "samples at other places in the batch"
    )
    first = np.arange(s.B) == 0
    got = cell.run(with_negated_values(inputs, first, "b")).values
    expect_within(cell, got[:1], output[:1], 2 * bound[:1], "sample 0 beside other samples")
    for b in (0, s.B - 1):
        sample = slice(b, b + 1)
        single = inputs.select("b", sample)
        got, limit = cell.run(single).values, bound[sample] + cell.bound(single)
        expect_within(cell, got, output[sample], limit, f"sample {b} alone and in a batch of {s.B}")


def row_counts(Lq: int) -> list[int]:
    """Returns the numbers of rows to compute alone: around the sizes at which kernels switch.

    At most two numbers if `Lq` is small, because JAX compiles a program for each.
    """
    near_switches = [n + d for n in SWITCHES for d in (-1, 0, 1)]
    return [count for count in ((1, 8) if Lq < 32 else near_switches) if 0 < count < Lq]


@check(with_plain_cases(NARROW, *LAYERS, at_full(LONG), keep=has_axes("q")))
def test_invariant_rows(cell: Cell) -> None:
    """A row has the same output among fewer rows (mlx#3573), at another place, and among changed rows."""
    inputs, s = cell.inputs, cell.inputs.sizes
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    reverse = np.arange(s.Lq)[::-1]
    reversed_rows = cell.run(inputs.select("q", reverse)).values
    want, limit = (rows_of(x, inputs, reverse) for x in (output, 2 * bound))
    expect_within(cell, reversed_rows, want, limit, "rows in reverse order")
    even = slice(0, None, 2)
    got = cell.run(with_negated_values(inputs, np.arange(s.Lq) % 2 == 0, "q")).values
    got, want, limit = (rows_of(x, inputs, even) for x in (got, output, 2 * bound))
    expect_within(cell, got, want, limit, "rows beside other rows")
    for count in row_counts(s.Lq):
        for rows in (slice(0, count), slice(s.Lq - count, s.Lq)):
            part = inputs.select("q", rows)
            got, limit = cell.run(part).values, rows_of(bound, inputs, rows) + cell.bound(part)
            what = f"rows {rows.start} to {rows.stop - 1} alone and among {s.Lq}"
            expect_within(cell, got, rows_of(output, inputs, rows), limit, what)


@check(cases_of(*THREADED), needs=("threads",))
def test_invariant_threads(cell: Cell) -> None:
    """The output is the same for any number of threads."""
    inputs, backend = cell.inputs, cell.implementation.backend
    bound = cell.bound(inputs)
    answers = []
    for count in THREADS:
        with backend.threads(count):
            answers.append(cell.run(inputs).values.copy())
    for count, got in zip(THREADS[1:], answers[1:], strict=True):
        expect_within(cell, got, answers[0], 2 * bound, f"{count} threads and {THREADS[0]}")


def count_attended_keys(inputs: Inputs, row: int) -> int:
    """Returns the number of keys that a row of a causal problem attends. With a bottom-right mask the
    first Lk - Lq keys are a cache, which every row attends."""
    s = inputs.sizes
    bottom_right = isinstance(inputs.mask, Causal) and inputs.mask.bottom_right
    return row + 1 + (s.Lk - s.Lq if bottom_right else 0)


@check(cases_of(GROWING, GROWING_LAYER, GROWING_LATENT, at_full(LONG_GROWING)))
def test_invariant_decode(cell: Cell) -> None:
    """Prefill equals decoding. Row i equals a single query over its keys without a mask, and the last 8
    rows equal a chunk over their keys.

    Decoded are the first and the last row, and in long cases rows around which kernels switch, because
    JAX compiles for every number of keys.
    """
    inputs, s = cell.inputs, cell.inputs.sizes
    prefilled, bound = cell.run().values.copy(), cell.bound(inputs)
    between = [row for row in SWITCHES if row < s.Lq - 1] if s.Lq > 32 else []
    for row in (0, *between, s.Lq - 1):
        keys, rows = count_attended_keys(inputs, row), slice(row, row + 1)
        step = inputs.replace(mask=None).select("q", rows).select("k", slice(0, keys))
        got, limit = cell.run(step).values, rows_of(bound, inputs, rows) + cell.bound(step)
        want = rows_of(prefilled, inputs, rows)
        expect_within(cell, got, want, limit, f"row {row} decoded over {keys} keys and prefilled")
    tail = slice(s.Lq - min(CHUNK, s.Lq - 2), s.Lq)
    chunk = inputs.select("q", tail).select("k", slice(0, count_attended_keys(inputs, s.Lq - 1)))
    if isinstance(inputs.mask, Causal) and inputs.mask.bottom_right:
        chunk = chunk.replace(mask=inputs.mask, mask_array=None, form=inputs.form)
    got, limit = cell.run(chunk).values, rows_of(bound, inputs, tail) + cell.bound(chunk)
    what = f"rows {tail.start} to {s.Lq - 1} as a chunk and prefilled"
    expect_within(cell, got, rows_of(prefilled, inputs, tail), limit, what)


@check(cases_of(PADDED, PADDED_LAYER, at_full(LONG_PADDED)))
def test_invariant_padding(cell: Cell) -> None:
    """A padded sample has the same output with half of its padding, and without padding or mask."""
    inputs, padded = cell.inputs, cell.inputs.sizes.Lk
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    keys = int(inputs.attends.any((0, 1, 2)).sum())
    half = inputs.select("k", slice(0, (keys + padded) // 2))
    unpadded = inputs.replace(mask=None).select("k", slice(0, keys))
    for problem, what in ((half, f"padded to {half.sizes.Lk}"), (unpadded, "without padding")):
        got, limit = cell.run(problem).values, bound + cell.bound(problem)
        expect_within(cell, got, output, limit, f"{keys} keys {what} and padded to {padded}")


@check(cases_of(ONE_ROW, LATENT_ROW, at_full(LONG_ROW)))
def test_invariant_split(cell: Cell) -> None:
    """The output over all keys equals the merge of outputs over two parts of the keys.

    With l1 and l2 the log-sum-exps of the parts and w_i = exp(l_i) / (exp(l1) + exp(l2)), exact outputs
    obey o = w1 o1 + w2 o2. With bounds b, b1 and b2 the difference is at most b + w1 b1 + w2 b2.
    Weights and merge come from the reference, in float64 (extended precision for float64), because many
    implementations return no log-sum-exp. This rounding is about 2^-29 (2^-11) of the smallest bound.
    Keys alternate between the parts, so the parts have different weights, and keys new places.
    """
    inputs = cell.inputs
    output, limit = cell.run().values.copy(), cell.bound(inputs)
    keys = np.arange(inputs.sizes.Lk)
    order = generator(cell.case.id + "/split", cell.seed).permutation(keys)
    first = np.sort(order[: keys.size // 2])
    parts = [inputs.select("k", part) for part in (first, np.setdiff1d(keys, first))]
    oracles = [Oracle.forward(part.replace(lse=True), cell.rounding) for part in parts]
    lse = [oracle.expected["lse"].value[..., None] for oracle in oracles]
    total = np.logaddexp(*lse)
    merged: np.ndarray = np.zeros(output.shape, total.dtype)
    for part, part_lse in zip(parts, lse, strict=True):
        weight = np.exp(part_lse - total)
        merged = merged + weight * cell.run(part).values
        limit = limit + weight * cell.bound(part)
    expect_within(cell, merged, output, limit, "two parts of the keys merged, and all keys")


@check(cases_of(PACKED, f"{PACKED}/causal"))
def test_invariant_segments(cell: Cell) -> None:
    """A segment has the same output alone, and with the segments in another order."""
    inputs = cell.inputs
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    parts = list(segments(inputs.case))
    for n in (0, len(parts) - 1):
        single = inputs.select("b", [n])
        rows = parts[n][0]
        got, limit = cell.run(single).values, bound[rows] + cell.bound(single)
        expect_within(cell, got, output[rows], limit, f"segment {n} alone and among {len(parts)}")
    order = [*range(1, len(parts)), 0]
    row_order = np.concatenate(
        [np.arange(rows.start, rows.stop) for rows, _ in (parts[n] for n in order)]
    )
    got = cell.run(inputs.select("b", order)).values
    expect_within(cell, got, output[row_order], 2 * bound[row_order], "segments in another order")

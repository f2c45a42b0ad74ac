"""Promise: pages are an arrangement of tokens, and nothing else.

Where a page lies in the pool changes no answer, and what no sample owns has exactly no influence.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.catalogue import cases_of, paged_patterns
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import (
    fill_slots,
    owned_slots,
    pool_axes_by_name,
    read_entries,
)
from attention_conformance.suite.spec.operators.paged_write import PLAIN as WRITTEN
from attention_conformance.suite.spec.operators.paged_write import split_write
from attention_conformance.suite.test_invariance import expect_within
from attention_conformance.suite.test_masking import expect_same

PAGES = cases_of(*paged_patterns())

OTHER_VALUE, ZERO_KEY = 50.0, 0.0
"""Values and keys of slots that must not be read. Scores with a zero key are 0, so the slot would have
weight, and its value would show."""


def read_pages(inputs: Inputs) -> list[int]:
    """Returns the numbers of the pages that hold keys of a sample, each once, in the order of the page
    table."""
    return list(
        dict.fromkeys(inputs.arrays["page_table"].astype(int)[read_entries(inputs)].tolist())
    )


def permuted_pool(inputs: Inputs, order: np.ndarray) -> Inputs:
    """Returns the same problem with a permuted pool and page table. Page n of the new pool is page
    `order[n]` of the old one."""
    table = np.argsort(order)[inputs.arrays["page_table"].astype(int)]
    arrays = {name: inputs.arrays[name][order] for name in pool_axes_by_name(inputs)}
    return inputs.replace(**arrays, page_table=table.astype(float))


@check(PAGES)
def test_invariant_pages(cell: Cell) -> None:
    """Pages at other places of the pool give the same output: in the order in which they are read, with
    and without a gap, and in the reverse order."""
    inputs = cell.inputs
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    pages = read_pages(inputs)
    unread = [n for n in range(inputs.letters["p"]) if n not in pages]
    for what, order in (
        ("in reading order", [*pages, *unread]),
        ("in reading order with a gap", [*pages[:-1], *unread, pages[-1]]),
        ("in reverse", [*unread, *pages[::-1]]),
    ):
        got = cell.run(permuted_pool(inputs, np.array(order))).values
        expect_within(cell, got, output, 2 * bound, f"pages {what}")


@check(cases_of(WRITTEN, f"{WRITTEN}/hnd"))
def test_written_in_turn(cell: Cell) -> None:
    """Chunks that two calls write into one page give the bits of one call that writes all tokens. The
    second call has the pools that the first one returned."""
    inputs = cell.inputs
    at_once = {name: array.copy() for name, array in cell.run(inputs).arrays.items()}
    first, second = split_write(inputs)
    after_first = {name: array.copy() for name, array in cell.run(first).arrays.items()}
    pools = {"key_cache": after_first["output"], "value_cache": after_first["value_output"]}
    for name, array in cell.run(second.replace(**pools)).arrays.items():
        expect_bitwise(array, at_once[name], "unequal", f"{name} after two calls")


@check(cases_of(WRITTEN, f"{WRITTEN}/skipped"))
def test_written_bits(cell: Cell) -> None:
    """-0.0, NaN and infinity are written, kept and skipped like other numbers, with their signs (except
    NaN's)."""
    arrays = {}
    for name in ("key", "value", "key_cache", "value_cache"):
        arrays[name] = array = cell.inputs.arrays[name].copy()
        array.flat[::3] = np.resize([-0.0, np.nan, np.inf, -np.inf], array.flat[::3].shape)
    inputs = cell.inputs.replace(**arrays)
    expected = Oracle.forward(inputs, Rounding("exact")).expected
    for name, got in cell.run(inputs).arrays.items():
        want = expected[name].value.astype(np.float64)
        expect_bitwise(got, want, "unequal", name)
        signs, want_signs = (
            np.where(np.isnan(want), 0.0, np.copysign(1.0, x)) for x in (got, want)
        )
        expect_bitwise(signs, want_signs, "unequal", f"sign of {name}")


@check(PAGES)
def test_pages_apart(cell: Cell) -> None:
    """Slots and entries of the table that no sample owns change no bit.

    NaN and infinity lie in pages that are in no table, other numbers behind the last key of a sample, and
    other samples' pages in the entries behind the last page. NaN lies behind the last key if the election
    says so.
    """
    inputs, letters = cell.inputs, cell.inputs.letters
    before = cell.run(inputs).values.copy()
    owned = owned_slots(inputs)
    free = np.broadcast_to(~owned.any(1, keepdims=True), owned.shape)
    unused = ~owned & ~free
    table, read = inputs.arrays["page_table"], read_pages(inputs)
    next_read = np.zeros(letters["p"])
    next_read[read] = np.roll(read, 1)
    problems = {
        "NaN in pages of no table": fill_slots(inputs, free, np.nan),
        "infinity in pages of no table": fill_slots(inputs, free, np.inf),
        "other numbers behind the last keys": fill_slots(inputs, unused, OTHER_VALUE, ZERO_KEY),
        "other pages behind the last ones": inputs.replace(
            page_table=np.where(read_entries(inputs), table, next_read[table.astype(int)])
        ),
    }
    election = "nan-behind-last-key"
    if (
        election in inputs.operator.questions.elections
        and cell.elected_answer(election) == "blocked"
    ):
        problems["NaN behind the last keys"] = fill_slots(inputs, unused, np.nan)
    everywhere = np.ones(before.shape, bool)
    for what, problem in problems.items():
        expect_same(cell, cell.run(problem).values, before, everywhere, what)

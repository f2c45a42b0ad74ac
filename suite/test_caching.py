"""Promise: a cache keeps tokens, and nothing else.

How a sequence is cut into chunks changes no answer, and tokens that a row does not attend have exactly no
influence on it: those that were taken back, that have left the window, left padding, other samples, other
branches of a tree, the future.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.elections.caches import rows_without_freed, with_nan_in_freed
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached_cases import PLAIN
from attention_conformance.suite.spec.operators.scripts import actions, freed_tokens
from attention_conformance.suite.spec.operators.steps import Chunk
from attention_conformance.suite.spec.operators.views import attended_pairs
from attention_conformance.suite.test_invariance import expect_within
from attention_conformance.suite.test_masking import expect_same

CUT_CASES = cases_of(
    PLAIN,
    Ask("cached/none/mha/{dt}/b3h2q8k20d8/c1.5.1.1/win3/room8", dtypes="growing", since="standard"),
)

APART_CASES = cases_of(
    Ask(
        "cached/none/gqa2/{dt}/b2h4q9k9d8/c4.1.3.reset.1",
        "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.tree1121.keep3.2",
        "cached/none/mha/{dt}/b3h2q8k20d8/c1.5.1.1/win3/room8/pad5.0.12",
        dtypes="growing",
    ),
    Ask(
        PLAIN,
        "cached/none/gqa2/{dt}/b2h4q9k9d8/c5.back2.1.3",
        "cached/none/mha/{dt}/b3h2q8k20d8/c3.pick200.1.4",
        "cached/none/mha/{dt}/b3h2q8k20d8/c2.back2of0.3of1.resetof2.3of20.3",
        "cached/none/mha/{dt}/b3h2q8k20d8/c1.5.back2.1.1/win3/room8",
        "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.3.1.2/pad4.1",
        dtypes="growing",
        since="standard",
    ),
)


def in_chunks(inputs: Inputs, size: int) -> Inputs:
    """Returns the inputs with a script that appends the same tokens in chunks of `size`. The last chunk
    may be smaller."""
    starts = range(0, inputs.sizes.Lq, size)
    chunks = tuple(Chunk(min(size, inputs.sizes.Lq - start)) for start in starts)
    return inputs.replace(script=chunks)


@check(CUT_CASES)
def test_invariant_cutting(cell: Cell) -> None:
    """All at once, token by token, and two by two give the same rows, where chunks of this size are
    supported."""
    inputs = cell.inputs
    output, bound = cell.run().values.copy(), cell.bound(inputs)
    for size in (inputs.sizes.Lq, 1, 2):
        chunked = in_chunks(inputs, size)
        if cell.implementation.unsupported(chunked.case) is not None:
            continue
        got = cell.run(chunked).values
        expect_within(cell, got, output, 2 * bound, f"chunks of {size} tokens")


def token_groups(inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
    """Yields groups of tokens whose change must not reach rows that attend none of them: a description,
    and a boolean array (B, Lk), True for tokens of the group."""
    s = inputs.sizes
    sample, token = np.indices((s.B, s.Lk))
    never_attended = np.asarray(~attended_pairs(inputs.case).any((0, 1)))
    yield "tokens that no row attends", never_attended
    yield "the last token", token == s.Lk - 1
    yield "the first token", token == 0
    chunks = [step for step in actions(inputs.case) if isinstance(step, Chunk) and step.has_queries]
    longest = max(chunks, key=lambda chunk: chunk.count)
    ends = np.full(s.B, -1)
    ends[list(longest.sample_ids)] = np.array(longest.starts) + longest.count - 1
    yield "the last token of the longest chunk", token == ends[:, None]
    yield "the later tokens of the last sample", (sample == s.B - 1) & (token >= s.Lk - s.Lq // 2)
    for chunk in chunks:
        if chunk.tree is not None:
            for node in chunk.tree.branching(chunk.count):
                branch = np.flatnonzero(chunk.tree.paths(chunk.count)[:, node])
                in_branch = np.isin(token, chunk.starts[0] + branch)
                yield f"the branch of node {node} of a tree", in_branch


@check(APART_CASES)
def test_tokens_apart(cell: Cell) -> None:
    """Large numbers in some tokens change no bit of rows that do not attend these tokens."""
    inputs = cell.inputs
    before = cell.run().values.copy()
    pairs = attended_pairs(
        inputs.case
    )  # (B, Lq, B, Lk): row i of sample b attends token j of sample c
    attending = pairs.any((2, 3))
    for what, group in token_groups(inputs):
        judged = attending & ~(pairs & group).any((2, 3))
        if not group.any() or not judged.any():
            continue
        large = cell.dtype.large * (-1.0) ** np.arange(inputs.sizes.Lk)
        arrays = {
            name: round_to(
                np.where(group[:, None, :, None], large[:, None], inputs.arrays[name]), cell.dtype
            )
            for name in ("key", "value")
        }
        after = cell.run(inputs.replace(**arrays)).values
        expect_same(cell, after, before, judged[:, None, :, None], f"large numbers in {what}")
    judged = attending & rows_without_freed(inputs)
    if freed_tokens(inputs.case).any() and cell.elected_answer("nan-in-freed-slot") == "blocked":
        after = cell.run(with_nan_in_freed(inputs)).values
        expect_same(
            cell, after, before, judged[:, None, :, None], "NaN in tokens that left the cache"
        )

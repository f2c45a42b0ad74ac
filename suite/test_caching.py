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
from attention_conformance.suite.spec.catalogue import Ask, asked
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached_cases import PLAIN
from attention_conformance.suite.spec.operators.scripts import actions, freed
from attention_conformance.suite.spec.operators.steps import Chunk
from attention_conformance.suite.spec.operators.views import attended
from attention_conformance.suite.test_invariance import expect_within
from attention_conformance.suite.test_masking import expect_same

UNCUT = asked(
    PLAIN,
    Ask("cached/none/mha/{dt}/b3h2q8k20d8/c1.5.1.1/win3/room8", dtypes="growing", since="standard"),
)

APART = asked(
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


def cut(inputs: Inputs, size: int) -> Inputs:
    """The same tokens in chunks of `size`, the last one smaller."""
    full, rest = divmod(inputs.sizes.Lq, size)
    chunks = (*[size] * full, *[rest] * (rest > 0))
    return inputs.replace(script=tuple(map(Chunk, chunks)))


@check(UNCUT)
def test_invariant_cutting(cell: Cell) -> None:
    """All at once, token by token, and two by two give the same rows, where chunks of this size are
    supported."""
    inputs = cell.inputs
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    for size in (inputs.sizes.Lq, 1, 2):
        other = cut(inputs, size)
        if cell.implementation.unsupported(other.case) is not None:
            continue
        got = cell.run(other).values
        expect_within(cell, got, whole, 2 * bound, f"chunks of {size} tokens")


def tokens(inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
    """Groups of tokens, boolean (B, Lk), by a description."""
    s = inputs.sizes
    sample, place = np.indices((s.B, s.Lk))
    never = np.asarray(~attended(inputs.case).any((0, 1)))
    yield "tokens that no row attends", never
    yield "the last token", place == s.Lk - 1
    yield "the first token", place == 0
    chunks = [one for one in actions(inputs.case) if isinstance(one, Chunk) and one.asked]
    longest = max(chunks, key=lambda chunk: chunk.count)
    ends = np.full(s.B, -1)
    ends[list(longest.own)] = np.array(longest.starts) + longest.count - 1
    yield "the last token of the longest chunk", place == ends[:, None]
    yield "the later tokens of the last sample", (sample == s.B - 1) & (place >= s.Lk - s.Lq // 2)
    for chunk in chunks:
        if chunk.tree is not None:
            for node in chunk.tree.branching(chunk.count):
                branch = np.flatnonzero(chunk.tree.paths(chunk.count)[:, node])
                nodes = np.isin(place, chunk.starts[0] + branch)
                yield f"the branch of node {node} of a tree", nodes


@check(APART)
def test_tokens_apart(cell: Cell) -> None:
    """Large numbers in some tokens change no bit of rows that do not attend these tokens."""
    inputs = cell.inputs
    before = cell.run().values.copy()
    seen = attended(inputs.case)  # (B, Lq, B, Lk)
    read = seen.any((2, 3))
    for what, group in tokens(inputs):
        judged = read & ~(seen & group).any((2, 3))
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
    rows = read & rows_without_freed(inputs)
    if freed(inputs.case).any() and cell.elected("nan-in-freed-slot") == "blocked":
        after = cell.run(with_nan_in_freed(inputs)).values
        expect_same(
            cell, after, before, rows[:, None, :, None], "NaN in tokens that left the cache"
        )

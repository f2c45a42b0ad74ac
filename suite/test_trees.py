"""Promise: a node of a tree of drafted tokens depends on its path, and on no other branch.

No reference is needed: each path is also asked as a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_close
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Tree
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.operators.scripts import actions
from attention_conformance.suite.spec.operators.steps import Action, Chunk, Crop, Keep
from attention_conformance.suite.test_masking import expect_rows_unmoved, with_slots

TREE_CASES = (
    "sdpa/tree112/gqa2/{dt}/b2h6q7k18d8",
    "sdpa/tree11213/mha/{dt}/b2h3q17k23d8",
)
DRAFT_CASES = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c5.tree1121",
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c1.2.tree11.keep1.tree1121/slopes",
)
CHAIN_CASES = (
    "cached/none/gqa2/{dt}/b2h4q9k9d8/c3.tree1111.keep3.2",
    "cached/none/mha/{dt}/b3h2q8k20d8/c1.tree111.keep1.4/win3/slopes",
)


def branches(inputs: Inputs) -> Iterator[tuple[np.ndarray, Inputs]]:
    """For each path from the root of a tree to a leaf: the rows of the path, and the inputs without the
    other nodes of the tree. In a script the tree is the last action."""
    s, tree, causal = inputs.sizes, inputs.mask, Causal(bottom_right=True)
    cached_count, count = s.Lk - s.Lq, s.Lq  # keys before the tree, and nodes of the tree
    if inputs.operator is CACHED:
        chunk = list(actions(inputs.case))[-1]
        assert isinstance(chunk, Chunk)
        tree, cached_count, count = chunk.tree, s.Lk - chunk.count, chunk.count
    assert isinstance(tree, Tree)
    root_row = s.Lq - count
    paths = tree.paths(count)
    for leaf in np.flatnonzero(paths.sum(0) == 1):
        nodes = np.flatnonzero(paths[leaf])
        if inputs.operator is CACHED:
            tokens = np.concatenate([np.arange(cached_count), cached_count + nodes])
            arrays = {name: inputs.arrays[name][:, :, tokens] for name in ("key", "value")}
            query = inputs.query[:, :, np.concatenate([np.arange(root_row), root_row + nodes])]
            script = (*inputs.case.option("script")[:-1], Chunk(len(nodes)))
            sizes = replace(s, Lq=query.shape[2], Lk=len(tokens))
            options = tuple({**dict(inputs.case.options), "script": script}.items())
            case = replace(inputs.case, sizes=sizes, options=options)
            path_inputs = replace(
                inputs, case=case, arrays={**inputs.arrays, "query": query, **arrays}, sizes=sizes
            )
        else:
            keys = np.concatenate([np.arange(cached_count), cached_count + nodes])
            path_inputs = inputs.select("q", nodes).select("k", keys)
            path_inputs = path_inputs.replace(mask_array=causal.dense(path_inputs.sizes))
        yield root_row + nodes, path_inputs


@check(cases_of(Ask(*TREE_CASES, *DRAFT_CASES, dtypes="growing")))
def test_paths_alone(cell: Cell) -> None:
    """The rows of a path equal a causal call with this path and no other node behind the same keys."""
    output, bound = cell.run().values.copy(), cell.bound(cell.inputs)
    for rows, path_inputs in branches(cell.inputs):
        count = len(rows)
        got, limit = cell.run(path_inputs).values, cell.bound(path_inputs)
        expect_close(
            got[:, :, -count:], output[:, :, rows], limit[:, :, -count:] + bound[:, :, rows],
            f"the path to row {rows[-1]} by itself",
        )  # fmt: skip


@check(cases_of(Ask(*CHAIN_CASES, dtypes="growing")))
def test_chain(cell: Cell) -> None:
    """A tree without siblings equals a causal chunk, before and after a part of it is kept."""
    inputs, script = cell.inputs, list[Action]()
    for action in actions(inputs.case):
        match action:
            case Chunk(count=count) if action.has_queries:
                script.append(Chunk(count))
            case Keep(count=count, nodes=(node,)) if node < count - 1:
                script.append(Crop(count - 1 - node))
    causal = inputs.replace(script=tuple(script))
    bound = cell.bound(inputs) + cell.bound(causal)
    output = cell.run().values.copy()
    expect_close(cell.run(causal).values, output, bound, "a chain as a chunk")


@check(cases_of(Ask(*TREE_CASES, dtypes="growing")))
def test_siblings_apart(cell: Cell) -> None:
    """Large numbers in one branch change no bit of rows outside this branch."""
    inputs, s, tree = cell.inputs, cell.inputs.sizes, cell.inputs.mask
    large = cell.dtype.large
    assert isinstance(tree, Tree)
    for node in tree.branching(s.Lq):
        slots = np.zeros((s.B, s.Hkv, s.Lk), bool)
        slots[:, :, s.Lk - s.Lq :] = tree.paths(s.Lq)[:, node]
        changed = with_slots(inputs, slots, large, large)
        expect_rows_unmoved(cell, changed, slots, f"large numbers in the branch of node {node}")

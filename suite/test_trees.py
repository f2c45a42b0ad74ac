"""Promise: a node of a tree of drafted tokens depends on its path, and on no other branch.

No reference is needed: each path is also asked as a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.comparison import expect_close
from suite.spec.catalogue import Ask, asked
from suite.spec.inputs import Inputs
from suite.spec.masks import Causal, Tree
from suite.test_masking import expect_unmoved, with_slots

TREES = asked(
    Ask(
        "sdpa/tree112/gqa2/{dt}/b2h6q7k18d8",
        "sdpa/tree11213/mha/{dt}/b2h3q17k23d8",
        dtypes="growing",
    )
)


def tree_of(inputs: Inputs) -> Tree:
    """The tree of a case."""
    assert isinstance(inputs.mask, Tree)
    return inputs.mask


def leaves(parents: np.ndarray) -> Iterator[int]:
    """The nodes without children."""
    yield from np.setdiff1d(np.arange(len(parents)), parents).tolist()


@check(TREES)
def test_paths_alone(cell: Cell) -> None:
    """The rows of a path are those of the causal call with this path alone behind the same keys."""
    inputs, s = cell.inputs, cell.inputs.sizes
    tree, before = tree_of(inputs), s.Lk - s.Lq
    whole, bound = cell.run().values.copy(), cell.bound(inputs)
    for leaf in leaves(tree.parents(s.Lq)):
        nodes = np.flatnonzero(tree.paths(s.Lq)[leaf])
        keys = np.concatenate([np.arange(before), before + nodes])
        causal = Causal(bottom_right=True)
        alone = inputs.select("q", nodes).select("k", keys)
        alone = alone.replace(mask_array=causal.dense(alone.sizes))
        got, limit = cell.run(alone).values, cell.bound(alone) + bound[:, :, nodes]
        expect_close(got, whole[:, :, nodes], limit, f"the path to node {leaf} by itself")


@check(TREES)
def test_siblings_apart(cell: Cell) -> None:
    """Large numbers in one branch change no bit of rows outside this branch."""
    inputs, s = cell.inputs, cell.inputs.sizes
    tree, large = tree_of(inputs), 100.0 if cell.dtype.name == "f16" else 1e4
    parents = tree.parents(s.Lq)
    for node in range(s.Lq):
        if (parents == parents[node]).sum() == 1:
            continue
        slots = np.zeros((s.B, s.Hkv, s.Lk), bool)
        slots[:, :, s.Lk - s.Lq :] = tree.paths(s.Lq)[:, node]
        changed = with_slots(inputs, slots, large, large)
        expect_unmoved(cell, changed, slots, f"large numbers in the branch of node {node}")

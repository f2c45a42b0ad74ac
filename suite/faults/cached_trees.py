"""Faults of caches whose samples step alone or hold several documents, and into which trees come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Turn
from attention_conformance.suite.faults.cached import ScaledValues
from attention_conformance.suite.faults.cached_samples import CachedForkShares, HeldOnce
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.scripts import Chunk


def cached_siblings_seen(right: CachedKernel, tree: Tree, count: int) -> np.ndarray:
    depths = tree.depths(count)
    return (depths[:, None] > depths) | np.eye(count, dtype=bool)


def cached_first_node_seen(right: CachedKernel, tree: Tree, count: int) -> np.ndarray:
    return tree.paths(count) | (np.tri(count, dtype=bool) & (np.arange(count) == 0))


def cached_parent_dropped(right: CachedKernel, tree: Tree, count: int) -> np.ndarray:
    return tree.paths(count) & (tree.parents(count)[:, None] != np.arange(count))


def cached_path_of_the_node_before(right: CachedKernel, tree: Tree, count: int) -> np.ndarray:
    paths = tree.paths(count)
    return paths[np.maximum(np.arange(count) - 1, 0)] | np.eye(count, dtype=bool)


def cached_chain_unmasked(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    shown = right.shown(held, rows, keys)
    if held.tree is not None and (held.tree.depths(rows.shape[1]) > 0).sum() == rows.shape[1] - 1:
        shown[:, :, keys.shape[1] - rows.shape[1] :] = True
    return shown


def cached_scaled_by_the_tree(
    right: ScaledValues, held: Held, value: np.ndarray, own: np.ndarray
) -> Any:
    return 1 if held.tree is None else 1 + np.abs(own).mean()


def cached_depth_is_the_index(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    distance = right.distance(held, rows, keys)
    if held.tree is not None:
        count = rows.shape[1]
        index = np.arange(count)
        before = keys.shape[1] - count
        own = held.totals[:, None] + index
        distance[:, :, :before] = own[:, :, None] - keys[:, None, :before]
        distance[:, :, before:] = np.abs(index[:, None] - index)
    return distance


def cached_keeps_the_first_nodes(
    right: CachedKernel, held: Held, sample: int, path: list[int], count: int
) -> None:
    right.leave(held, sample, list(range(len(path))), count)


def cached_keep_leaves_asibling(
    right: CachedKernel, held: Held, sample: int, path: list[int], count: int
) -> None:
    first = held.totals[sample] - count
    right.leave(held, sample, path, count)
    if len(path) < count:
        held.positions[sample, (first + len(path)) % held.slots] = held.totals[sample] - 1


def cached_tree_leaves_by_depth(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    if state.tree is not None and state.chunk is not None:
        depths = state.tree.depths(state.chunk.count)
        count -= len(depths) - len({*depths.tolist()})
    return right.crop(state, count, *samples)


def cached_keep_moves_keys_alone(
    right: CachedKernel, held: Held, sample: int, path: list[int], count: int
) -> None:
    value = held.value.copy()
    right.leave(held, sample, path, count)
    held.value = value


def cached_keeps_for_all_branches_share(
    right: CachedForkShares, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)
) -> None:
    held.places = tuple(range(len(held.places)))


def cached_keeps_for_all_branches_leave(
    right: CachedForkShares, held: Held, sample: int, path: list[int], count: int
) -> None:
    right.leave(held, sample, path, count)
    assert isinstance(held, HeldOnce)
    moved = (held.totals[sample] - 1 - np.arange(len(path))) % held.slots
    for n, place in enumerate(held.places):
        if place == held.places[sample]:
            for cache in (held.key, held.value):
                cache[n][:, moved] = cache[sample][:, moved]


def cached_keep_counts_the_tree(
    right: CachedKernel, held: Held, sample: int, path: list[int], count: int
) -> None:
    right.leave(held, sample, path, count)
    held.totals[sample] += count - len(path)


def cached_keeps_one_path(
    right: CachedKernel, state: Held, paths: Rounded, count: int, *samples: Rounded
) -> Held:
    same = Rounded(0 * paths.values + paths.values[:1], None)
    return right.keep(state, same, count, *samples)


def cached_keeps_for_the_first(
    right: CachedKernel, state: Held, paths: Rounded, count: int, *samples: Rounded
) -> Held:
    first = [Rounded(np.arange(len(x.values)), None) for x in samples]
    return right.keep(state, paths, count, *first)


def cached_keep_of_the_ring(
    right: CachedKernel, held: Held, sample: int, path: list[int], count: int
) -> None:
    before = held.key.copy(), held.value.copy()
    around = held.totals[sample] % held.slots < count
    right.leave(held, sample, path, count)
    if held.totals[sample] > held.slots and around:
        held.key, held.value = before


def cached_subset_taken_for_the_first(
    right: CachedKernel, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
) -> tuple[Rounded, Held]:
    chunk = turn.chunk
    if chunk.samples is not None:
        chunk = replace(chunk, samples=tuple(range(len(chunk.samples))))
    return right.step(state, query, key, value, replace(turn, chunk=chunk))


def cached_subset_advances_all(
    right: CachedKernel, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
) -> tuple[Rounded, Held]:
    before = state.totals.copy()
    answer = right.step(state, query, key, value, turn)
    if turn.chunk.samples is not None:
        state.totals = before + turn.chunk.count
    return answer


def cached_length_of_the_longest(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    rows = right.rows(held, count)
    return rows + (held.total - held.totals)[:, None]


def cached_documents_together(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
) -> np.ndarray:
    return np.ones((*rows.shape, keys.shape[1]), bool)


def cached_documents_of_the_chunk(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
) -> np.ndarray:
    known = np.where(begins < rows[:, :1], 0, begins)
    return right.in_document(held, rows, keys, known)


@dataclass
class HeldDocument(Held):
    """A cache that keeps the position at which the last document began."""

    latest: int = 0


def cached_rollback_keeps_the_document_crop(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    assert isinstance(state, HeldDocument)
    if state.begins is not None:
        state.latest = int(state.begins.max())
    return right.crop(state, count, *samples)


def cached_rollback_keeps_the_document_in_document(
    right: CachedKernel, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
) -> np.ndarray:
    assert isinstance(held, HeldDocument)
    return right.in_document(held, rows, keys, np.minimum(np.maximum(begins, held.latest), rows))


row = partial(deviation, family="cache", right=CachedKernel)

DEVIATIONS = [
    row("cached-siblings-seen", "values",
        "A node of a tree attends all nodes of smaller depth, those of other branches, too.",
        "`depth[j] < depth[i]`; a node attends its ancestors", family="mask",
        ancestry=cached_siblings_seen),
    row("cached-first-node-seen", "values",
        "All nodes attend the first node of a tree, also those that do not descend from it.",
        "`mask[:, 0] = True` for a root; the parent of several nodes may be in the cache",
        family="mask", ancestry=cached_first_node_seen),
    row("cached-parent-dropped", "paths_alone", "A node of a tree does not attend its parent.",
        "`parents[parents[i]]` as the first ancestor", family="mask",
        ancestry=cached_parent_dropped),
    row("cached-path-of-the-node-before", "values",
        "A node of a tree attends the ancestors of the node before it.",
        "`ancestors[i - 1]`; the path begins at the node's own parent", family="mask",
        ancestry=cached_path_of_the_node_before),
    row("cached-chain-unmasked", "chain",
        "The nodes of a tree without siblings attend one another, later ones too.",
        "no mask if every node has one child; a chain is causal", family="mask",
        shown=cached_chain_unmasked),
    row("cached-scaled-by-the-tree", "tokens_apart",
        "The values of a tree are divided by a number that depends on all its nodes.",
        "`amax` over the drafted values; scale by the path's own ones", family="scores",
        right=ScaledValues, largest=cached_scaled_by_the_tree),
    row("cached-depth-is-the-index", "values",
        "Positions of a tree's nodes are their numbers, and not their depths.",
        "`position_ids = arange(n)`; those of a tree are depths", family="scores",
        distance=cached_depth_is_the_index),
    row("cached-keeps-the-first-nodes", "values",
        "Of a tree as many first nodes are kept as the path has.",
        "`cache[: length + accepted]`; accepted nodes need not be the first ones",
        leave=cached_keeps_the_first_nodes),
    row("cached-keep-leaves-asibling", "values",
        "Behind the path that is kept the next node of the tree stays visible.",
        "`keep[: n + 1]`; hide what is not on the path", leave=cached_keep_leaves_asibling),
    row("cached-tree-leaves-by-depth", "values",
        "A rollback behind a tree takes fewer tokens back: of nodes in one depth only one counts.",
        "`length -= depth` for a tree that is rejected; a rollback counts nodes",
        crop=cached_tree_leaves_by_depth),
    row("cached-keep-moves-keys-alone", "values",
        "The values of a path that is kept stay where the tree had them.",
        "keys are moved to the front, and values are not", leave=cached_keep_moves_keys_alone),
    row("cached-keeps-for-all-branches", "values",
        "A path that a branch keeps is moved in the memory of all branches that have not stepped "
        "since.", "a path is moved within pages that branches share; copy a page before a write",
        right=CachedForkShares, share=cached_keeps_for_all_branches_share,
        leave=cached_keeps_for_all_branches_leave),
    row("cached-keep-counts-the-tree", "values",
        "After a path is kept positions go on behind the whole tree.",
        "`length += n_nodes`; the length grows by the accepted ones",
        leave=cached_keep_counts_the_tree),
    row("cached-keeps-one-path", "values", "All samples keep the path of the first one.",
        "`paths[0]` for all samples", keep=cached_keeps_one_path),
    row("cached-keeps-for-the-first", "values",
        "Of the tree of some samples alone the first samples of the cache keep the paths.",
        "`for n, path in enumerate(paths)`; the n-th path is that of `samples[n]`",
        keep=cached_keeps_for_the_first),
    row("cached-keep-of-the-ring", "values",
        "The nodes of a path stay where they are if the ring begins anew within their tree.",
        "`slots[first + node]`; in a ring `(first + node) % capacity`",
        leave=cached_keep_of_the_ring),
    row("cached-subset-taken-for-the-first", "values",
        "If some samples step alone, they read and write the first samples of the cache.",
        "`cache[: len(samples)]`; `cache[samples]`", step=cached_subset_taken_for_the_first),
    row("cached-subset-advances-all", "values",
        "If some samples step alone, the lengths of all samples grow.",
        "`lengths += n`; `lengths[samples] += n`", step=cached_subset_advances_all),
    row("cached-length-of-the-longest", "values",
        "Queries of shorter samples have the positions of the longest one.",
        "`lengths.max()` for every sample; positions count from the sample's own length",
        rows=cached_length_of_the_longest),
    row("cached-reset-of-all", "values", "The reset of one sample is one of all.",
        "`length.zero_()`; `length[sample] = 0`",
        reset=lambda right, state, *samples: right.reset(state)),
    row("cached-rollback-of-all", "values", "The rollback of one sample is one of all.",
        "a rollback of all samples where some reject tokens",
        crop=lambda right, state, count, *samples: right.crop(state, count)),
    row("cached-documents-together", "values", "Tokens attend earlier documents of their sample.",
        "`is_causal=True` over all that the cache holds; hide earlier documents",
        in_document=cached_documents_together),
    row("cached-documents-of-the-chunk", "values",
        "Tokens of a document that began in an earlier chunk attend the documents before it.",
        "documents are found in the positions of a chunk; remember where the last one began",
        in_document=cached_documents_of_the_chunk),
    row("cached-rollback-keeps-the-document", "values",
        "After a rollback into the document before tokens attend from the beginning of the later one.",
        "`start = max(start, ...)`; a rollback may end in the document before",
        facts={"holds": HeldDocument}, crop=cached_rollback_keeps_the_document_crop,
        in_document=cached_rollback_keeps_the_document_in_document),
]  # fmt: skip

"""Faults of caches whose samples step alone, hold several documents, rotate, or take trees."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.cached import attend_scaled_by
from attention_conformance.suite.deviations.cached_samples import keeping_array
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.cached import (
    Array,
    Attended,
    Cache,
    CachedKernel,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.masks import Tree


def mask_of_smaller_depths(right: CachedKernel, tree: Tree, count: int) -> Array:
    depths = tree.depths(count)
    return (depths[:, None] > depths) | np.eye(count, dtype=bool)


def is_chain(cache: Cache) -> bool:
    """Returns True for a step whose tokens are a tree without siblings."""
    return cache.tree is not None and (cache.tree.depths(cache.count) > 0).sum() == cache.count - 1


def distance_by_node_number(right: CachedKernel, cache: Cache, rows: Array, keys: Array) -> Array:
    count = cache.count
    index = np.arange(count)
    cached_keys = keys[:, None, :-count]
    nodes = cache.totals[:, None] + index
    among_nodes = np.broadcast_to(np.abs(index[:, None] - index), (len(keys), count, count))
    return np.concatenate([nodes[:, :, None] - cached_keys, among_nodes], 2)


def keep_path_and_next_node(
    right: CachedKernel, cache: Cache, sample: int, path: list[int], count: int
) -> None:
    first = cache.totals[sample] - count
    right.keep_path(cache, sample, path, count)
    if len(path) < count:
        cache.positions[sample, (first + len(path)) % cache.slots] = cache.totals[sample] - 1


def crop_counting_depths(right: CachedKernel, state: Cache, count: int, *samples: Rounded) -> Cache:
    assert state.tree is not None
    depths = state.tree.depths(state.count)
    return right.crop(state, count - len(depths) + len({*depths.tolist()}), *samples)


def keep_path_counting_tree(
    right: CachedKernel, cache: Cache, sample: int, path: list[int], count: int
) -> None:
    right.keep_path(cache, sample, path, count)
    cache.totals[sample] += count - len(path)


def keep_path_unwrapped(
    right: CachedKernel, cache: Cache, sample: int, path: list[int], count: int
) -> None:
    """The step `keep_path`. Keys and values stay in place if the tree lies across the end of the ring."""
    old_arrays = cache.key.copy(), cache.value.copy()
    wraps = cache.totals[sample] % cache.slots < count
    right.keep_path(cache, sample, path, count)
    if cache.totals[sample] > cache.slots and wraps:
        cache.key, cache.value = old_arrays


def step_of_first_samples(
    right: CachedKernel, state: Cache, *arguments: Any
) -> tuple[Rounded, Cache]:
    query, key, value, context = arguments
    first = tuple(range(len(context.chunk.sample_ids)))
    chunk = replace(context.chunk, samples=context.chunk.samples and first)
    return right.step(state, query, key, value, replace(context, chunk=chunk))


def step_advancing_all_samples(
    right: CachedKernel, state: Cache, *arguments: Any
) -> tuple[Rounded, Cache]:
    totals, chunk = state.totals.copy(), arguments[-1].chunk
    answer = right.step(state, *arguments)
    if chunk.samples is not None:
        state.totals = totals + chunk.count
    return answer


def crop_storing_document(right: CachedKernel, state: Cache, *arguments: Any) -> Cache:
    if state.begins is not None:
        state.memory["last_document"] = int(state.begins.max())
    return right.crop(state, *arguments)


def crop_counting_tokens(right: CachedKernel, state: Cache, count: int, *samples: Rounded) -> Cache:
    state.memory["tokens_taken_back"] = state.memory.get("tokens_taken_back", 0) + count
    return right.crop(state, count, *samples)


def positions_in_chunk(right: CachedKernel, cache: Cache, count: int) -> Array:
    return np.broadcast_to(right.depths(cache, count), (len(cache.totals), count))


def attend_rotated_twice(right: CachedKernel, cache: Cache, x: Attended) -> Array:
    count = x.key.shape[2] - x.query.shape[2]
    twice_rotated = right.rotated(cache, x.key[:, :, :count], np.maximum(x.keys[:, :count], 0))
    key = np.concatenate([twice_rotated, x.key[:, :, count:]], 2)
    return right.attend(cache, replace(x, key=key))


def rotated_by_default_base(right: CachedKernel, cache: Cache, *arguments: Array) -> Array:
    case = cache.inputs.case
    with_default_base = replace(case, options=tuple(o for o in case.options if o[0] != "base"))
    return right.rotated(
        replace(cache, inputs=replace(cache.inputs, case=with_default_base)), *arguments
    )


row = partial(deviation, family="cache", right=CachedKernel)
rotary = partial(deviation, family="rotary", right=CachedKernel)

DEVIATIONS = [
    row("cached-siblings-seen", "values",
        "A node of a tree attends all nodes of smaller depth, those of other branches, too.",
        "`depth[j] < depth[i]`; a node attends its ancestors", family="mask",
        ancestry=mask_of_smaller_depths),
    row("cached-first-node-seen", "values",
        "All nodes attend the first node of a tree, also those that do not descend from it.",
        "`mask[:, 0] = True` for a root; the parent of several nodes may be in the cache",
        family="mask",
        ancestry=lambda right, tree, count:
            tree.paths(count) | np.tri(count, dtype=bool) & (np.arange(count) == 0)),
    row("cached-parent-dropped", "paths_alone", "A node of a tree does not attend its parent.",
        "`parents[parents[i]]` as the first ancestor", family="mask",
        ancestry=lambda right, tree, count:
            tree.paths(count) & (tree.parents(count)[:, None] != np.arange(count))),
    row("cached-grandparents-at-most", "chain",
        "A node of a tree attends its parent and grandparent, and no farther ancestors.",
        "a loop over two levels of `parents`; go on until there is no parent", family="mask",
        ancestry=lambda right, tree, count: tree.paths(count)
            & (tree.depths(count)[:, None] - tree.depths(count) <= 2)),
    row("cached-path-of-the-node-before", "values",
        "A node of a tree attends the ancestors of the node before it.",
        "`ancestors[i - 1]`; the path begins at the node's own parent", family="mask",
        ancestry=lambda right, tree, count:
            tree.paths(count)[np.maximum(np.arange(count) - 1, 0)] | np.eye(count, dtype=bool)),
    row("cached-chain-unmasked", "chain",
        "The nodes of a tree without siblings attend one another, later ones too.",
        "no mask if every node has one child; a chain is causal", family="mask", when=is_chain,
        allowed=lambda right, cache, rows, keys: right.allowed(cache, rows, keys)
            | (np.arange(keys.shape[1]) >= keys.shape[1] - cache.count)),
    row("cached-scaled-by-the-tree", "tokens_apart",
        "The values of a tree are divided by a number that depends on all its nodes.",
        "`amax` over the drafted values; scale by the path's own ones", family="scores",
        when=lambda cache: cache.tree is not None,
        attend=attend_scaled_by(lambda value, nodes: 1 + np.abs(nodes).mean())),
    row("cached-depth-is-the-index", "values",
        "Positions of a tree's nodes are their numbers, and not their depths.",
        "`position_ids = arange(n)`; those of a tree are depths", family="scores",
        when=lambda cache: cache.tree is not None, distance=distance_by_node_number),
    row("cached-keeps-the-first-nodes", "values",
        "Of a tree as many first nodes are kept as the path has.",
        "`cache[: length + accepted]`; accepted nodes need not be the first ones",
        keep_path=lambda right, cache, sample, path, count:
            right.keep_path(cache, sample, [*range(len(path))], count)),
    row("cached-keep-leaves-asibling", "values",
        "Behind the path that is kept the next node of the tree stays visible.",
        "`keep[: n + 1]`; hide what is not on the path", keep_path=keep_path_and_next_node),
    row("cached-tree-leaves-by-depth", "values",
        "A rollback behind a tree takes fewer tokens back: of nodes in one depth only one counts.",
        "`length -= depth` for a tree that is rejected; a rollback counts nodes",
        when=lambda state: state.tree is not None, crop=crop_counting_depths),
    row("cached-keep-moves-keys-alone", "values",
        "The values of a path that is kept stay where the tree had them.",
        "keys are moved to the front, and values are not", keep_path=keeping_array("keep_path", "value")),
    row("cached-keep-counts-the-tree", "values",
        "After a path is kept positions go on behind the whole tree.",
        "`length += n_nodes`; the length grows by the accepted ones", keep_path=keep_path_counting_tree),
    row("cached-keeps-one-path", "values", "All samples keep the path of the first one.",
        "`paths[0]` for all samples",
        keep=lambda right, state, paths, count, *samples:
            right.keep(state, Rounded(0 * paths.values + paths.values[:1], None), count, *samples)),
    row("cached-keeps-for-the-first", "values",
        "Of the tree of some samples alone the first samples of the cache keep the paths.",
        "`for n, path in enumerate(paths)`; the n-th path is that of `samples[n]`",
        keep=lambda right, state, paths, count, *samples: right.keep(state, paths, count,
            *[Rounded(np.arange(len(x.values)), None) for x in samples])),
    row("cached-keep-of-the-ring", "values",
        "The nodes of a path stay where they are if the ring begins anew within their tree.",
        "`slots[first + node]`; in a ring `(first + node) % capacity`", keep_path=keep_path_unwrapped),
    row("cached-subset-taken-for-the-first", "values",
        "If some samples step alone, they read and write the first samples of the cache.",
        "`cache[: len(samples)]`; `cache[samples]`", step=step_of_first_samples),
    row("cached-subset-advances-all", "values",
        "If some samples step alone, the lengths of all samples grow.",
        "`lengths += n`; `lengths[samples] += n`", step=step_advancing_all_samples),
    row("cached-length-of-the-longest", "values",
        "Queries of shorter samples have the positions of the longest one.",
        "`lengths.max()` for every sample; positions count from the sample's own length",
        rows=lambda right, cache, count:
            right.rows(cache, count) + (cache.total - cache.totals)[:, None]),
    row("cached-reset-of-all", "values", "The reset of one sample is one of all.",
        "`length.zero_()`; `length[sample] = 0`",
        reset=lambda right, state, *samples: right.reset(state)),
    row("cached-rollback-of-all", "values", "The rollback of one sample is one of all.",
        "a rollback of all samples where some reject tokens",
        crop=lambda right, state, count, *samples: right.crop(state, count)),
    row("cached-documents-together", "values", "Tokens attend earlier documents of their sample.",
        "`is_causal=True` over all that the cache holds; hide earlier documents",
        in_document=lambda right, cache, rows, keys, begins:
            np.ones((*rows.shape, keys.shape[1]), bool)),
    row("cached-documents-of-the-chunk", "values",
        "Tokens of a document that began in an earlier chunk attend the documents before it.",
        "documents are found in the positions of a chunk; remember where the last one began",
        in_document=lambda right, cache, rows, keys, begins:
            right.in_document(cache, rows, keys, np.where(begins < rows[:, :1], 0, begins))),
    row("cached-rollback-keeps-the-document", "values",
        "After a rollback into the document before tokens attend from the beginning of the later "
        "one.", "`start = max(start, ...)`; a rollback may end in the document before",
        crop=crop_storing_document,
        in_document=lambda right, cache, rows, keys, begins:
            right.in_document(cache, rows, keys, 
                np.minimum(np.maximum(begins, cache.memory.get("last_document", 0)), rows))),
    rotary("cached-rotary-anew", "values", "The positions of a rotation begin at 0 in every chunk.",
        "`arange(chunk)`; add the length of the cache", key_rotations=positions_in_chunk),
    rotary("cached-rotary-of-keys-alone", "values",
        "Keys are rotated by their positions, and queries by their places in the chunk.",
        "`offset` for the keys alone; rotate queries by the same positions",
        query_rotations=positions_in_chunk),
    rotary("cached-rotary-of-slots", "values",
        "Positions of a rotation begin at 0 again once the ring went round.",
        "the slot of a token for its position; they differ once the ring went round",
        key_rotations=lambda right, cache, count: right.joining(cache, count) % cache.slots),
    rotary("cached-rotary-counts-on", "values",
        "The positions of a rotation count tokens that were taken back, too.",
        "an offset that grows at every chunk; a rollback and a reset move it back",
        crop=crop_counting_tokens,
        key_rotations=lambda right, cache, count:
            right.joining(cache, count) + cache.memory.get("tokens_taken_back", 0)),
    rotary("cached-rotary-of-the-longest", "values",
        "The positions of a rotation begin at the length of the longest sample.",
        "`lengths.max()` as offset of all samples; each has its own",
        key_rotations=lambda right, cache, count:
            np.broadcast_to(cache.total + right.depths(cache, count), (len(cache.totals), count))),
    rotary("cached-rotary-padded-once", "values",
        "Positions of queries count from behind the left padding, and those of keys from its "
        "beginning.", "positions of queries without their left padding, and of keys with it",
        query_rotations=lambda right, cache, count: right.joining(cache, count) - cache.padding[:, None]),
    rotary("cached-rotary-of-nodes", "values",
        "The nodes of a tree are rotated by their numbers, and not by their depths.",
        "`arange(nodes)` for the nodes of a tree; a node stands at its depth",
        key_rotations=lambda right, cache, count: cache.totals[:, None] + np.arange(count)),
    rotary("cached-rotated-twice", "values",
        "Keys that the cache holds are rotated again when a later chunk attends them.",
        "keys that are kept rotated, and rotated again when they are read", attend=attend_rotated_twice),
    rotary("cached-rotary-of-one-document", "values",
        "Positions of keys count from the beginning of their document, and those of queries do "
        "not.",
        "positions of a document for its keys, and of the sample for queries of later chunks",
        key_rotations=lambda right, cache, count:
            right.joining(cache, count) - cache.begins * (cache.padding[:, None] == 0),
        query_rotations=lambda right, cache, count: right.joining(cache, count)),
    rotary("cached-rotary-base-ignored", "values",
        "The base of the rotation's frequencies is always 10000.",
        "`10000.0` in place of the argument", rotated=rotated_by_default_base),
    rotary("cached-rotary-of-rounded-positions", "values",
        "Positions of a rotation are rounded to bfloat16.",
        "`arange(n, dtype=x.dtype)`; bfloat16 holds no odd number above 256",
        key_rotations=lambda right, cache, count:
            round_to(right.key_rotations(cache, count).astype(float), DTYPES["bf16"])),
]  # fmt: skip

"""Faults of caches whose samples step alone or hold several documents, and into which trees come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Turn
from attention_conformance.suite.faults.cached import ScaledValues
from attention_conformance.suite.faults.cached_samples import CachedForkShares, HeldOnce
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.scripts import Chunk

FAMILY = "cache"


@fault("values", "`depth[j] < depth[i]`; a node attends its ancestors", family="mask")
class CachedSiblingsSeen(CachedKernel):
    """A node of a tree attends all nodes of smaller depth, those of other branches, too."""

    def ancestry(self, tree: Tree, count: int) -> np.ndarray:
        depths = tree.depths(count)
        return (depths[:, None] > depths) | np.eye(count, dtype=bool)


@fault(
    "values",
    "`mask[:, 0] = True` for a root; the parent of several nodes may be in the cache",
    family="mask",
)
class CachedFirstNodeSeen(CachedKernel):
    """All nodes attend the first node of a tree, also those that do not descend from it."""

    def ancestry(self, tree: Tree, count: int) -> np.ndarray:
        return tree.paths(count) | (np.tri(count, dtype=bool) & (np.arange(count) == 0))


@fault("paths_alone", "`parents[parents[i]]` as the first ancestor", family="mask")
class CachedParentDropped(CachedKernel):
    """A node of a tree does not attend its parent."""

    def ancestry(self, tree: Tree, count: int) -> np.ndarray:
        return tree.paths(count) & (tree.parents(count)[:, None] != np.arange(count))


@fault("values", "`ancestors[i - 1]`; the path begins at the node's own parent", family="mask")
class CachedPathOfTheNodeBefore(CachedKernel):
    """A node of a tree attends the ancestors of the node before it."""

    def ancestry(self, tree: Tree, count: int) -> np.ndarray:
        paths = tree.paths(count)
        return paths[np.maximum(np.arange(count) - 1, 0)] | np.eye(count, dtype=bool)


@fault("chain", "no mask if every node has one child; a chain is causal", family="mask")
class CachedChainUnmasked(CachedKernel):
    """The nodes of a tree without siblings attend one another, later ones too."""

    def shown(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        shown = super().shown(held, rows, keys)
        if (
            held.tree is not None
            and (held.tree.depths(rows.shape[1]) > 0).sum() == rows.shape[1] - 1
        ):
            shown[:, :, keys.shape[1] - rows.shape[1] :] = True
        return shown


@fault(
    "tokens_apart", "`amax` over the drafted values; scale by the path's own ones", family="scores"
)
class CachedScaledByTheTree(ScaledValues):
    """The values of a tree are divided by a number that depends on all its nodes."""

    def largest(self, held: Held, value: np.ndarray, own: np.ndarray) -> Any:
        return 1 if held.tree is None else 1 + np.abs(own).mean()


@fault("values", "`position_ids = arange(n)`; those of a tree are depths", family="scores")
class CachedDepthIsTheIndex(CachedKernel):
    """Positions of a tree's nodes are their numbers, and not their depths."""

    def distance(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        distance = super().distance(held, rows, keys)
        if held.tree is not None:
            count = rows.shape[1]
            index = np.arange(count)
            before = keys.shape[1] - count
            own = held.totals[:, None] + index
            distance[:, :, :before] = own[:, :, None] - keys[:, None, :before]
            distance[:, :, before:] = np.abs(index[:, None] - index)
        return distance


@fault("values", "`cache[: length + accepted]`; accepted nodes need not be the first ones")
class CachedKeepsTheFirstNodes(CachedKernel):
    """Of a tree as many first nodes are kept as the path has."""

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        super().leave(held, sample, list(range(len(path))), count)


@fault("values", "`keep[: n + 1]`; hide what is not on the path")
class CachedKeepLeavesASibling(CachedKernel):
    """Behind the path that is kept the next node of the tree stays visible."""

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        first = held.totals[sample] - count
        super().leave(held, sample, path, count)
        if len(path) < count:
            held.positions[sample, (first + len(path)) % held.slots] = held.totals[sample] - 1


@fault("values", "`length -= depth` for a tree that is rejected; a rollback counts nodes")
class CachedTreeLeavesByDepth(CachedKernel):
    """A rollback behind a tree takes fewer tokens back: of nodes in one depth only one counts."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        if state.tree is not None and state.chunk is not None:
            depths = state.tree.depths(state.chunk.count)
            count -= len(depths) - len({*depths.tolist()})
        return super().crop(state, count, *samples)


@fault("values", "keys are moved to the front, and values are not")
class CachedKeepMovesKeysAlone(CachedKernel):
    """The values of a path that is kept stay where the tree had them."""

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        value = held.value.copy()
        super().leave(held, sample, path, count)
        held.value = value


@fault("values", "a path is moved within pages that branches share; copy a page before a write")
class CachedKeepsForAllBranches(CachedForkShares):
    """A path that a branch keeps is moved in the memory of all branches that have not stepped since."""

    def share(self, held: HeldOnce, chunk: Chunk, slots: slice = slice(None)) -> None:
        held.places = tuple(range(len(held.places)))

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        super().leave(held, sample, path, count)
        assert isinstance(held, HeldOnce)
        moved = (held.totals[sample] - 1 - np.arange(len(path))) % held.slots
        for n, place in enumerate(held.places):
            if place == held.places[sample]:
                for cache in (held.key, held.value):
                    cache[n][:, moved] = cache[sample][:, moved]


@fault("values", "`length += n_nodes`; the length grows by the accepted ones")
class CachedKeepCountsTheTree(CachedKernel):
    """After a path is kept positions go on behind the whole tree."""

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        super().leave(held, sample, path, count)
        held.totals[sample] += count - len(path)


@fault("values", "`paths[0]` for all samples")
class CachedKeepsOnePath(CachedKernel):
    """All samples keep the path of the first one."""

    def keep(self, state: Held, paths: Rounded, count: int, *samples: Rounded) -> Held:
        same = Rounded(0 * paths.values + paths.values[:1], None)
        return super().keep(state, same, count, *samples)


@fault("values", "`for n, path in enumerate(paths)`; the n-th path is that of `samples[n]`")
class CachedKeepsForTheFirst(CachedKernel):
    """Of the tree of some samples alone the first samples of the cache keep the paths."""

    def keep(self, state: Held, paths: Rounded, count: int, *samples: Rounded) -> Held:
        first = [Rounded(np.arange(len(x.values)), None) for x in samples]
        return super().keep(state, paths, count, *first)


@fault("values", "`slots[first + node]`; in a ring `(first + node) % capacity`")
class CachedKeepOfTheRing(CachedKernel):
    """The nodes of a path stay where they are if the ring begins anew within their tree."""

    def leave(self, held: Held, sample: int, path: list[int], count: int) -> None:
        before = held.key.copy(), held.value.copy()
        around = held.totals[sample] % held.slots < count
        super().leave(held, sample, path, count)
        if held.totals[sample] > held.slots and around:
            held.key, held.value = before


@fault("values", "`cache[: len(samples)]`; `cache[samples]`")
class CachedSubsetTakenForTheFirst(CachedKernel):
    """If some samples step alone, they read and write the first samples of the cache."""

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        chunk = turn.chunk
        if chunk.samples is not None:
            chunk = replace(chunk, samples=tuple(range(len(chunk.samples))))
        return super().step(state, query, key, value, replace(turn, chunk=chunk))


@fault("values", "`lengths += n`; `lengths[samples] += n`")
class CachedSubsetAdvancesAll(CachedKernel):
    """If some samples step alone, the lengths of all samples grow."""

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        before = state.totals.copy()
        answer = super().step(state, query, key, value, turn)
        if turn.chunk.samples is not None:
            state.totals = before + turn.chunk.count
        return answer


@fault("values", "`lengths.max()` for every sample; positions count from the sample's own length")
class CachedLengthOfTheLongest(CachedKernel):
    """Queries of shorter samples have the positions of the longest one."""

    def rows(self, held: Held, count: int) -> np.ndarray:
        rows = super().rows(held, count)
        return rows + (held.total - held.totals)[:, None]


@fault("values", "`length.zero_()`; `length[sample] = 0`")
class CachedResetOfAll(CachedKernel):
    """The reset of one sample is one of all."""

    def reset(self, state: Held, *samples: Rounded) -> Held:
        return super().reset(state)


@fault("values", "a rollback of all samples where some reject tokens")
class CachedRollbackOfAll(CachedKernel):
    """The rollback of one sample is one of all."""

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        return super().crop(state, count)


@fault("values", "`is_causal=True` over all that the cache holds; hide earlier documents")
class CachedDocumentsTogether(CachedKernel):
    """Tokens attend earlier documents of their sample."""

    def in_document(
        self, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
    ) -> np.ndarray:
        return np.ones((*rows.shape, keys.shape[1]), bool)


@fault(
    "values", "documents are found in the positions of a chunk; remember where the last one began"
)
class CachedDocumentsOfTheChunk(CachedKernel):
    """Tokens of a document that began in an earlier chunk attend the documents before it."""

    def in_document(
        self, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
    ) -> np.ndarray:
        known = np.where(begins < rows[:, :1], 0, begins)
        return super().in_document(held, rows, keys, known)


@dataclass
class HeldDocument(Held):
    """A cache that keeps the position at which the last document began."""

    latest: int = 0


@fault("values", "`start = max(start, ...)`; a rollback may end in the document before")
class CachedRollbackKeepsTheDocument(CachedKernel):
    """After a rollback into the document before tokens attend from the beginning of the later one."""

    holds = HeldDocument

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        assert isinstance(state, HeldDocument)
        if state.begins is not None:
            state.latest = int(state.begins.max())
        return super().crop(state, count, *samples)

    def in_document(
        self, held: Held, rows: np.ndarray, keys: np.ndarray, begins: np.ndarray
    ) -> np.ndarray:
        assert isinstance(held, HeldDocument)
        return super().in_document(
            held, rows, keys, np.minimum(np.maximum(begins, held.latest), rows)
        )

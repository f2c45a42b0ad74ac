"""Honest variants of attention with a cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Eager
from attention_conformance.suite.deviations.kernels.cached import (
    Attended,
    Cache,
    CachedKernel,
    CodedKernel,
)
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs

ONE_LENGTH = CachedKernel.features - {"subsets"}


class CachedConcatenated(CachedKernel):
    """Keys and values grow by concatenation; all are kept. All samples have one length."""

    features = ONE_LENGTH
    elections = CachedKernel.elections | {"beyond-capacity": "grows"}

    def init(self, inputs: Inputs, key: Any) -> Cache:
        return self.cut(super().init(inputs, key), 0)

    def cut(self, cache: Cache, total: int) -> Cache:
        """The first tokens."""
        cache.key, cache.value = cache.key[:, :, :total], cache.value[:, :, :total]
        cache.positions = cache.positions[:, :total]
        cache.totals = 0 * cache.totals + total
        return cache

    def write(self, cache: Cache, key: np.ndarray, value: np.ndarray) -> None:
        new = self.joining(cache, key.shape[2])
        cache.key = np.concatenate([cache.key, key], 2)
        cache.value = np.concatenate([cache.value, value], 2)
        cache.positions = np.concatenate([cache.positions, new], 1)
        cache.totals = cache.totals + key.shape[2]

    def crop(self, state: Cache, count: int, *samples: Rounded) -> Cache:
        self.validate(state, count)
        return self.cut(state, state.total - count)

    def reset(self, state: Cache, *samples: Rounded) -> Cache:
        return self.cut(state, 0)

    def keep(self, state: Cache, paths: Rounded, count: int, *samples: Rounded) -> Cache:
        kept = super().keep(state, paths, count)
        return self.cut(kept, kept.total)


class CachedRaisesWhenFull(CachedKernel):
    """Without a window a chunk beyond the capacity raises before it is written."""

    elections = CachedKernel.elections | {"beyond-capacity": "raises"}

    def write(self, cache: Cache, key: np.ndarray, value: np.ndarray) -> None:
        if cache.left is None and cache.total + key.shape[2] > cache.slots:
            raise ValueError(f"{key.shape[2]} tokens for a cache of {cache.slots} slots")
        super().write(cache, key, value)


class CachedRolled(CachedKernel):
    """The last tokens stand in order at the end of the slots, and move to the front at every chunk."""

    features = ONE_LENGTH

    def write(self, cache: Cache, key: np.ndarray, value: np.ndarray) -> None:
        count = key.shape[2]
        new = self.joining(cache, count)
        cache.totals = cache.totals + count
        cache.key = np.concatenate([cache.key, key], 2)[:, :, -cache.slots :]
        cache.value = np.concatenate([cache.value, value], 2)[:, :, -cache.slots :]
        cache.positions = np.concatenate([cache.positions, new], 1)[:, -cache.slots :]

    def crop(self, state: Cache, count: int, *samples: Rounded) -> Cache:
        self.validate(state, count)
        state.totals = state.totals - count
        state.key, state.value = (np.roll(x, count, 2) for x in (state.key, state.value))
        state.positions = np.roll(state.positions, count, 1)
        state.positions[:, :count] = -1
        return state

    def keep(self, state: Cache, paths: Rounded, count: int, *samples: Rounded) -> Cache:
        nodes = [[*path] for path in paths.values]
        hidden = count - len(nodes[0])
        first, samples = state.slots - count, np.arange(len(nodes))[:, None]
        order = np.array([[*range(first), *(first + node for node in path)] for path in nodes], int)
        state.positions = state.positions[samples, order]
        for name in ("key", "value"):
            kept = np.moveaxis(getattr(state, name)[samples, :, order], 1, 2)
            setattr(state, name, np.concatenate([getattr(state, name)[:, :, :hidden], kept], 2))
        gone = np.full((len(nodes), hidden), -1)
        state.positions = np.concatenate([gone, state.positions], 1)
        state.totals = state.totals - hidden
        return state


class CachedWrittenFirst(CachedKernel):
    """Without a ring tokens are written before the chunk attends, and the chunk attends slots alone."""

    def answered(
        self, cache: Cache, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        rows = self.rows(cache, key.shape[2])
        if cache.tree is not None or rows.max() >= cache.slots:
            return super().answered(cache, query, key, value)
        self.write(cache, key, value)
        return self.attend(cache, Attended(query, cache.key, cache.value, rows, cache.positions))


@dataclass
class CacheInPages(Cache):
    """Slots of two tokens a page: `pool` (pages, 2, Hkv, D + Dv), `table` (B, pages of a sample)."""

    pool: list[np.ndarray] = field(default_factory=list)
    table: list[list[int]] = field(default_factory=list)


class CachedInPages(CachedKernel):
    """Keys and values lie in pages of two tokens. Samples with one history share its pages, and a page is
    copied before a token is written into it. All samples have one length."""

    features = ONE_LENGTH - {"keep"}

    def init(self, inputs: Inputs, key: Any) -> Cache:
        return CacheInPages(
            **vars(super().init(inputs, key)), table=[[] for _ in range(inputs.sizes.B)]
        )

    def put(self, cache: Cache, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        assert isinstance(cache, CacheInPages)
        tokens = np.concatenate([key, value], -1)
        for sample, table in enumerate(cache.table):
            for n, slot in enumerate(slots[sample]):
                page, place = divmod(int(slot), 2)
                while len(table) <= page:
                    table.append(len(cache.pool))
                    cache.pool.append(np.zeros((2, *tokens.shape[1::2])))
                cache.pool.append(cache.pool[table[page]].copy())
                table[page] = len(cache.pool) - 1
                cache.pool[-1][place] = tokens[sample, :, n]

    def attend(self, cache: Cache, x: Attended) -> np.ndarray:
        assert isinstance(cache, CacheInPages)
        key, value = x.key.copy(), x.value.copy()
        for sample, table in enumerate(cache.table):
            if table:
                flat = np.concatenate([cache.pool[page] for page in table])[: cache.slots]
                own = flat.swapaxes(0, 1)
                key[sample, :, : len(flat)] = own[..., : key.shape[-1]]
                value[sample, :, : len(flat)] = own[..., key.shape[-1] :]
        return super().attend(cache, replace(x, key=key, value=value))

    def pick(self, cache: Cache, samples: list[int]) -> None:
        assert isinstance(cache, CacheInPages)
        super().pick(cache, samples)
        cache.table = [list(cache.table[n]) for n in samples]


class CachedRotatedOnRead(CachedKernel):
    """Keys are kept as they come, and rotated whenever a chunk attends them. Positions count from behind
    left padding, and from the beginning of a document."""

    def turned(
        self, cache: Cache, query: np.ndarray, key: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return query, key

    def attend(self, cache: Cache, x: Attended) -> np.ndarray:
        assert cache.begins is not None
        first = cache.begins[:, :1]
        query = self.rotated(cache, x.query, x.rows - first)
        key = self.rotated(cache, x.key, x.keys - first)
        return super().attend(cache, replace(x, query=query, key=key))


class CachedPaddingUnanswered(CachedKernel):
    """Rows of left padding are not computed, and NaN stands there."""

    def attend(self, cache: Cache, x: Attended) -> np.ndarray:
        out = super().attend(cache, x)
        return np.where((x.rows < cache.padding[:, None])[:, None, :, None], np.nan, out)


class CachedEager(CachedKernel):
    """Scores and weights are stored in the dtype of the case."""

    numerics = "eager"
    kernel = Eager


class CachedStepByStep(CachedKernel):
    """Samples step one after the other, and the nodes of a tree are written as their paths go on."""

    def answered(
        self, cache: Cache, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        own, chunk = [cache.part([n]) for n in range(len(query))], cache.chunk
        assert chunk is not None
        for part, sample, start in zip(own, chunk.own, chunk.starts, strict=True):
            part.chunk = replace(chunk, samples=(sample,), starts=(start,))
            if cache.begins is not None:
                part.begins = cache.begins[[chunk.own.index(sample)]]
        operands = zip(own, *(np.split(x, len(query)) for x in (query, key, value)), strict=True)
        rows = [super(CachedStepByStep, self).answered(*each) for each in operands]
        for n, part in enumerate(own):
            cache.merge(part, [n])
        return np.concatenate(rows)


class CachedTreeBranchByBranch(CachedKernel):
    """Each node of a tree attends a sequence of its own: the cache and its path, without a mask."""

    def answered(
        self, cache: Cache, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        if cache.tree is None:
            return super().answered(cache, query, key, value)
        count, rows = query.shape[2], []
        joining, tree, chunk = self.joining(cache, count), cache.tree, cache.chunk
        begins = cache.begins
        assert chunk is not None
        for node, path in enumerate(tree.paths(count)):
            nodes = np.flatnonzero(path)
            k, v = (
                np.concatenate([old, new[:, :, nodes]], 2)
                for old, new in ((cache.key, key), (cache.value, value))
            )
            keys = np.concatenate([cache.positions, joining[:, nodes]], 1)
            cache.tree, of = None, slice(node, node + 1)
            starts = tuple(start + node for start in chunk.starts)
            cache.chunk = replace(chunk, starts=starts, count=1)
            cache.begins = None if begins is None else begins[:, of]
            x = Attended(query[:, :, of], k, v, joining[:, of], keys)
            rows.append(self.attend(cache, x))
            cache.tree, cache.chunk, cache.begins = tree, chunk, begins
        self.write(cache, key, value)
        return np.concatenate(rows, 2)


class CachedCodesOfOlderTokens(CodedKernel):
    """A chunk attends its own tokens as they came, and older ones as codes."""

    def answered(
        self, cache: Cache, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return CachedKernel.answered(self, cache, query, key, value)

    def put(self, cache: Cache, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        super().put(cache, slots, self.kept(key, cache), self.kept(value, cache))


class CachedCodesWithZeros(CodedKernel):
    """A token of a head has a zero point, and its codes reach from its least to its largest component."""

    def kept(self, x: np.ndarray, cache: Cache) -> np.ndarray:
        least, largest = (f(x, axis=-1, keepdims=True) for f in (np.min, np.max))
        scale = np.maximum(largest, 0) - np.minimum(least, 0)
        scale = np.where(scale > 0, scale, 1) / 255
        zero = np.rint(-128 - np.minimum(least, 0) / scale)
        codes = np.clip(np.rint(x / scale) + zero, -128, 127)
        return np.asarray((codes - zero) * scale)


class CachedCodesInE4m3(CodedKernel):
    """Tokens are kept in e4m3."""

    kept_in = CODES["e4m3"]
    rounding = DeclaredRounding(codes=dict.fromkeys(DTYPES, "e4m3"))


class CachedCodesInInt4(CodedKernel):
    """Tokens are kept in int4. Scales of tokens are stored in the dtype of the case."""

    numerics = "eager"
    kept_in = CODES["int4"]
    rounding = DeclaredRounding(codes=dict.fromkeys(DTYPES, "int4"))

    def scale_of(self, x: np.ndarray, cache: Cache) -> np.ndarray:
        scale = super().scale_of(x, cache)
        return round_to(scale, cache.inputs.dtype)

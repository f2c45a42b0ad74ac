"""Honest attention with a cache in NumPy, one method a step: slots that may be a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.caching import Projected, Scripted, Turn
from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel, Stated
from attention_conformance.suite.deviations.kernels.rotary import RotaryKernel
from attention_conformance.suite.deviations.kernels.rotary import Turn as Rotating
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import (
    capacity,
    has_documents,
    rotation,
    unwritten,
)
from attention_conformance.suite.spec.operators.steps import Chunk
from attention_conformance.suite.spec.sizes import Sizes

Array = np.ndarray


@dataclass
class Cache:
    """A cache of C slots.

    - `key` (B, Hkv, C, D), `value` (B, Hkv, C, Dv)
    - `positions` (B, C): the position of the token in each slot, -1 without one
    - `totals` (B,): the number of tokens so far
    - `padding` (B,): how many first tokens of each sample are hidden
    - `tree`, `chunk`: those of the step
    - `begins` (B, count): the positions at which the documents of a step's tokens begin
    - `signs`: those of a layer's projections of query, key, value and rows
    - `known`: what else a changed step remembers
    """

    key: Array
    value: Array
    positions: Array
    totals: Array
    padding: Array
    inputs: Inputs
    tree: Tree | None = None
    chunk: Chunk | None = None
    begins: Array | None = None
    signs: Sequence[int] = ()
    known: dict[str, Any] = field(default_factory=dict)

    ARRAYS = ("key", "value", "positions", "totals", "padding")

    @property
    def left(self) -> int | None:
        left: int | None = self.inputs.case.option("left")
        return left

    @property
    def sizes(self) -> Sizes:
        return self.inputs.sizes

    @property
    def count(self) -> int:
        """The number of tokens of the step."""
        return 0 if self.chunk is None else self.chunk.count

    @property
    def slots(self) -> int:
        return self.positions.shape[1]

    @property
    def total(self) -> int:
        """The number of tokens of the longest sample."""
        return int(self.totals.max())

    def part(self, samples: Sequence[int]) -> Cache:
        """Some of the samples, as copies."""
        return replace(self, **{name: getattr(self, name)[list(samples)] for name in self.ARRAYS})

    def merge(self, part: Cache, samples: Sequence[int]) -> None:
        """Take back some samples."""
        for name in self.ARRAYS:
            getattr(self, name)[list(samples)] = getattr(part, name)


@dataclass(frozen=True)
class Attended:
    """Queries (B, H, n, D), keys (B, Hkv, m, D) and values (B, Hkv, m, Dv) of a step, and positions of
    queries (B, n) and keys (B, m)."""

    query: Array
    key: Array
    value: Array
    rows: Array
    keys: Array


class CachedKernel(Stated, Scripted):
    """A chunk attends all slots and its own tokens by `kernel`, then its last tokens take their slots."""

    features = FEATURES
    elections = {"nan-in-freed-slot": "blocked", "beyond-capacity": "ring"}
    kernel: type[Kernel] = Kernel

    @cached_property
    def plain(self) -> Kernel:
        """Attention of one chunk."""
        return self.kernel(self.backend)

    def init(self, inputs: Inputs, key: Any) -> Cache:
        """An empty cache."""
        s, slots = inputs.sizes, self.room(inputs)
        padding = np.zeros(s.B, int)
        keys, values = (unwritten(inputs.case, s.B, s.Hkv, slots, n) for n in (s.D, s.Dv))
        positions, totals = np.full((s.B, slots), -1), np.zeros(s.B, int)
        return Cache(keys, values, positions, totals, padding, inputs)

    def room(self, inputs: Inputs) -> int:
        """The number of slots. Raises ValueError for less than one."""
        slots = capacity(inputs.case)
        if slots < 1:
            raise ValueError(f"a cache of {slots} slots")
        return slots

    def step(
        self, state: Cache, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Cache]:
        state.inputs = turn.inputs
        fmt, samples, cache = state.inputs.dtype, turn.chunk.samples, state
        if key.shape[:3] != value.shape[:3]:
            raise ValueError(f"keys {key.shape} and values {value.shape} do not fit")
        if samples is not None:
            cache = state.part(samples)
        cache.padding = self.begun(cache, turn)
        cache.tree, cache.chunk, cache.begins = turn.chunk.tree, turn.chunk, turn.begins
        rows = self.answered(cache, *self.turned(cache, query.values, key.values), value.values)
        if samples is not None:
            state.merge(cache, samples)
        return Rounded(round_to(rows, fmt), fmt), state

    def begun(self, cache: Cache, turn: Turn) -> Array:
        """The left padding (B,): a chunk that begins a prompt says that of its samples."""
        return np.where(cache.totals == 0, turn.padding, cache.padding)

    def reorder(self, state: Cache, samples: Rounded) -> Cache:
        self.pick(state, self.existing(state, samples.values))
        return state

    def existing(self, cache: Cache, samples: Array) -> list[int]:
        """The samples. Raises ValueError for samples that do not exist."""
        if (samples < 0).any() or (samples >= len(cache.totals)).any():
            raise ValueError(f"samples {samples} of a batch of {len(cache.totals)}")
        return [int(n) for n in samples]

    def concat(self, arrays: Sequence[Rounded], axis: int) -> Rounded:
        return Rounded(np.concatenate([x.values for x in arrays], axis), arrays[0].fmt)

    def answered(self, cache: Cache, query: Array, key: Array, value: Array) -> Array:
        """The rows of a chunk, not yet rounded; its tokens are in the cache afterwards."""
        rows = self.rows(cache, key.shape[2])
        keys = np.concatenate([cache.positions, self.joining(cache, key.shape[2])], 1)
        k, v = np.concatenate([cache.key, key], 2), np.concatenate([cache.value, value], 2)
        out = self.attend(cache, Attended(query, k, v, rows, keys))
        self.write(cache, key, value)
        return out

    def turned(self, cache: Cache, query: Array, key: Array) -> tuple[Array, Array]:
        """Queries and keys of a chunk as they attend and are kept: rotated if the call rotates."""
        count = key.shape[2]
        return (
            self.rotated(cache, query, self.query_turns(cache, count)),
            self.rotated(cache, key, self.key_turns(cache, count)),
        )

    def rotated(self, cache: Cache, x: Array, positions: Array) -> Array:
        """x (B, H, n, D) rotated by positions (B, n), rounded to the dtype of the case."""
        turn, fmt = rotation(cache.inputs.case), cache.inputs.dtype
        if turn is None:
            return x
        return round_to(
            RotaryKernel(self.backend).turned(Rotating(x, positions, turn, fmt, 0)), fmt
        )

    def key_turns(self, cache: Cache, count: int) -> Array:
        """The positions (B, count) by which a chunk's keys are rotated."""
        return self.joining(cache, count)

    def query_turns(self, cache: Cache, count: int) -> Array:
        """The positions (B, count) by which a chunk's queries are rotated."""
        return self.key_turns(cache, count)

    def joining(self, cache: Cache, count: int) -> Array:
        """The positions (B, count) of a chunk's tokens: those of a tree are depths."""
        return cache.totals[:, None] + self.depths(cache, count)

    def depths(self, cache: Cache, count: int) -> Array:
        return np.arange(count) if cache.tree is None else cache.tree.depths(count)

    def rows(self, cache: Cache, count: int) -> Array:
        """The positions (B, count) of a chunk's queries."""
        return self.joining(cache, count)

    def write(self, cache: Cache, key: Array, value: Array) -> None:
        """Put the last tokens of a chunk into their slots."""
        count, samples = key.shape[2], np.arange(len(cache.totals))[:, None]
        new = self.joining(cache, count)[:, -cache.slots :]
        slots = self.slots(cache, (cache.totals[:, None] + np.arange(count))[:, -cache.slots :])
        cache.totals = cache.totals + count
        cache.positions[samples, slots] = new
        decoded = new.shape[1]
        self.put(cache, slots, key[:, :, count - decoded :], value[:, :, count - decoded :])

    def slots(self, cache: Cache, places: Array) -> Array:
        return places % cache.slots

    def put(self, cache: Cache, slots: Array, key: Array, value: Array) -> None:
        samples = np.arange(len(slots))[:, None]
        for tensor, new in ((cache.key, key), (cache.value, value)):
            tensor[samples, :, slots] = np.moveaxis(new, 2, 1)

    def attend(self, cache: Cache, x: Attended) -> Array:
        """Plain attention."""
        inputs, fmt, rows, keys = cache.inputs, cache.inputs.dtype, x.rows, x.keys
        slopes, bias = inputs.arrays.get("alibi_slopes"), self.bias(cache, rows, keys)
        if slopes is not None:
            distance = self.distance(cache, rows, keys)[:, None]
            bias = Rounded(-slopes[:, None, None] * distance, None)
        sinks = self.sinks(cache)
        q, k, v = (Rounded(array, fmt) for array in (x.query, x.key, x.value))
        call = Call(
            q, k, v, Rounded(self.attends(cache, rows, keys)[:, None], None), bias,
            sinks=None if sinks is None else Rounded(sinks, fmt),
            scale=inputs.scale, softcap=self.softcap(cache, rows.shape[1]),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            return self.plain.compute(call)

    def bias(self, cache: Cache, rows: Array, keys: Array) -> Rounded | None:
        """The bias (B, H, rows, keys) of a chunk."""
        bias = cache.inputs.bias
        if bias is None:
            return None
        assert cache.chunk is not None
        return Rounded(cache.chunk.biases(bias, keys), cache.inputs.dtype)

    def distance(self, cache: Cache, rows: Array, keys: Array) -> Array:
        return np.abs(rows[:, :, None] - keys[:, None])

    def softcap(self, cache: Cache, count: int) -> float | None:
        cap: float | None = cache.inputs.case.option("softcap")
        return cap

    def sinks(self, cache: Cache) -> Array | None:
        """The logits (H,) of sinks, or None."""
        return cache.inputs.arrays.get("sinks")

    def attends(self, cache: Cache, rows: Array, keys: Array) -> Array:
        """The mask (B, rows, keys), True attends."""
        attends = self.causal(cache, rows, keys) & self.exists(cache, keys)[:, None]
        left = self.window(cache, rows.shape[1])
        if left is not None:
            attends = attends & (rows[:, :, None] - keys[:, None] <= left)
        if cache.tree is not None:
            count, nodes = rows.shape[1], self.ancestry(cache.tree, rows.shape[1])
            before = np.ones((count, keys.shape[1] - count), bool)
            attends = attends & np.concatenate([before, nodes], 1)
        if cache.begins is not None and has_documents(cache.inputs.case):
            attends = attends & self.in_document(cache, rows, keys, cache.begins)
        return np.asarray(attends & ~self.padded(cache, keys)[:, None])

    def in_document(self, cache: Cache, rows: Array, keys: Array, begins: Array) -> Array:
        """The keys (B, rows, keys) that are no tokens of earlier documents."""
        return keys[:, None] >= begins[:, :, None]

    def ancestry(self, tree: Tree, count: int) -> Array:
        """The nodes that each node attends; nodes are the last keys."""
        return tree.paths(count)

    def causal(self, cache: Cache, rows: Array, keys: Array) -> Array:
        return rows[:, :, None] >= keys[:, None]

    def exists(self, cache: Cache, keys: Array) -> Array:
        return keys >= 0

    def window(self, cache: Cache, count: int) -> int | None:
        """The keys that a row of a chunk of `count` rows attends before its own."""
        return cache.left

    def padded(self, cache: Cache, keys: Array) -> Array:
        """Keys that are left padding, boolean (B, keys)."""
        return (keys >= 0) & (keys < cache.padding[:, None])

    def crop(self, state: Cache, count: int, *samples: Rounded) -> Cache:
        own = self.chosen(state, samples)
        self.validate(state, count)
        state.totals[own] -= count
        state.positions[state.positions >= state.totals[:, None]] = -1
        return state

    def validate(self, cache: Cache, count: int) -> None:
        """Raise ValueError for a rollback of more tokens than there are, or of a negative number."""
        if not 0 <= count <= cache.total:
            raise ValueError(f"a rollback of {count} tokens, and there are {cache.total}")

    def chosen(self, cache: Cache, samples: Sequence[Rounded]) -> list[int] | slice:
        """The index of the samples of an operation; all without an argument."""
        return self.existing(cache, samples[0].values) if samples else slice(None)

    def reset(self, state: Cache, *samples: Rounded) -> Cache:
        own = self.chosen(state, samples)
        state.totals[own] = 0
        state.positions[own] = -1
        return state

    def keep(self, state: Cache, paths: Rounded, count: int, *samples: Rounded) -> Cache:
        own = self.existing(state, samples[0].values) if samples else range(len(state.totals))
        for sample, path in zip(own, paths.values, strict=True):
            self.leave(state, sample, [int(node) for node in path if node >= 0], count)
        return state

    def leave(self, cache: Cache, sample: int, path: list[int], count: int) -> None:
        """The nodes of a path move to the front of the tree's slots."""
        first = cache.totals[sample] - count
        decoded = np.arange(first, first + len(path))
        nodes = np.arange(first, first + count) % cache.slots
        for tensor in (cache.key, cache.value):
            tensor[sample][:, nodes[: len(path)]] = tensor[sample][:, nodes[path]]
        cache.positions[sample, nodes] = -1
        cache.positions[sample, nodes[: len(path)]] = decoded
        cache.totals[sample] = first + len(path)

    def pick(self, cache: Cache, samples: list[int]) -> None:
        """Sample n goes on with the history of sample `samples[n]`."""
        for name in cache.ARRAYS:
            setattr(cache, name, getattr(cache, name)[samples])


class CodedKernel(CachedKernel):
    """Keys and values become codes of a format when they arrive. A token of a head has the scale of its
    largest component."""

    kept_in = CODES["int8"]
    rounding = DeclaredRounding(codes=dict.fromkeys(DTYPES, "int8"))

    def answered(self, cache: Cache, query: Array, key: Array, value: Array) -> Array:
        return super().answered(cache, query, self.decoded(key, cache), self.decoded(value, cache))

    def decoded(self, x: Array, cache: Cache) -> Array:
        """Keys or values (B, Hkv, n, .) as their codes give them back."""
        scale = self.scale_of(x, cache)
        t = x / np.where(scale > 0, scale, 1)
        return np.asarray(self.codes_of(t) * self.read_scale(scale))

    def scale_of(self, x: Array, cache: Cache) -> Array:
        """The scale (B, Hkv, n, 1) with which tokens are written."""
        return np.abs(x).max(-1, keepdims=True) / self.kept_in.max

    def read_scale(self, scale: Array) -> Array:
        """The scale with which they are read."""
        return scale

    def codes_of(self, t: Array) -> Array:
        last = self.kept_in.max
        return round_to(np.clip(t, -last, last), self.kept_in)


class ProjectedKernel(Projected, CachedKernel):
    """A layer whose projections are identities or their negatives."""

    def project(self, state: Cache, signs: Sequence[int]) -> Cache:
        state.signs = self.projections(state, signs)
        return state

    def projections(self, cache: Cache, signs: Sequence[int]) -> Sequence[int]:
        """The signs that the layer has, for those of its parameters."""
        return signs

    def layer_step(
        self, state: Cache, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Cache]:
        of_query, of_key, of_value, of_rows = state.signs
        q, k, v = (
            Rounded(sign * x.values, x.fmt)
            for sign, x in ((of_query, query), (of_key, key), (of_value, value))
        )
        rows, cache = CachedKernel.step(self, state, q, k, v, turn)
        return Rounded(of_rows * rows.values, rows.fmt), cache

"""Right attention with a cache in NumPy, one method a step. The slots of the cache may be a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.caching import Projected, Scripted, StepContext
from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call, DeclaredKernel, Kernel
from attention_conformance.suite.deviations.kernels.rotary import RotaryCall, RotaryKernel
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import (
    capacity,
    has_documents,
    rotation,
    unwritten_slots,
)
from attention_conformance.suite.spec.operators.steps import Chunk
from attention_conformance.suite.spec.sizes import Sizes

Array = np.ndarray


@dataclass
class Cache:
    """A cache of C slots.

    - `key` (B, Hkv, C, D), `value` (B, Hkv, C, Dv)
    - `positions` (B, C): the position of the token in each slot, -1 without one
    - `totals` (B,): the number of tokens of each sample in the cache
    - `padding` (B,): the left padding of each sample, in tokens
    - `tree`, `chunk`: the tree, or None, and the chunk of tokens of the current step
    - `begins` (B, count): the first position of the document of each token of the chunk
    - `signs`: 1 or -1 for a layer's projections of query, key, value and output
    - `memory`: values that deviations store between steps
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
    memory: dict[str, Any] = field(default_factory=dict)

    ARRAYS = ("key", "value", "positions", "totals", "padding")

    @property
    def left(self) -> int | None:
        """The number of keys in the window before a query's own; None without a window."""
        return self.inputs.case.option("left")

    @property
    def sizes(self) -> Sizes:
        return self.inputs.sizes

    @property
    def count(self) -> int:
        """The number of tokens of the current step."""
        return 0 if self.chunk is None else self.chunk.count

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.positions.shape[1]

    @property
    def total(self) -> int:
        """The number of tokens of the longest sample."""
        return int(self.totals.max())

    def select(self, samples: Sequence[int]) -> Cache:
        """Returns a cache with copies of some samples."""
        return replace(self, **{name: getattr(self, name)[list(samples)] for name in self.ARRAYS})

    def merge(self, part: Cache, samples: Sequence[int]) -> None:
        """Copies `part`, a selection of these samples, back into this cache."""
        for name in self.ARRAYS:
            getattr(self, name)[list(samples)] = getattr(part, name)


@dataclass(frozen=True)
class Attended:
    """The operands of a chunk's attention: query (B, H, n, D), key (B, Hkv, m, D), value (B, Hkv, m, Dv),
    and the positions of queries, `rows` (B, n), and of keys, `keys` (B, m)."""

    query: Array
    key: Array
    value: Array
    rows: Array
    keys: Array


class CachedKernel(DeclaredKernel, Scripted):
    """A chunk attends the slots and its own tokens by `kernel`; then its tokens are put into slots."""

    features = FEATURES
    elections = {"nan-in-freed-slot": "blocked", "beyond-capacity": "ring"}
    kernel: type[Kernel] = Kernel

    @cached_property
    def chunk_attention(self) -> Kernel:
        """The kernel that attends one chunk."""
        return self.kernel(self.backend)

    def init(self, inputs: Inputs, key: Any) -> Cache:
        """Returns an empty cache."""
        s, slots = inputs.sizes, self.slot_count(inputs)
        keys, values = (
            unwritten_slots(inputs.case, s.B, s.Hkv, slots, width) for width in (s.D, s.Dv)
        )
        totals, padding = np.zeros((2, s.B), int)
        return Cache(keys, values, np.full((s.B, slots), -1), totals, padding, inputs)

    def slot_count(self, inputs: Inputs) -> int:
        """Returns the number of slots. Raises ValueError for less than one."""
        slots = capacity(inputs.case)
        if slots < 1:
            raise ValueError(f"a cache of {slots} slots")
        return slots

    def step(
        self, state: Cache, query: Rounded, key: Rounded, value: Rounded, context: StepContext
    ) -> tuple[Rounded, Cache]:
        state.inputs = context.inputs
        fmt, samples, cache = state.inputs.dtype, context.chunk.samples, state
        if key.shape[:3] != value.shape[:3]:
            raise ValueError(f"keys {key.shape} and values {value.shape} do not fit")
        if samples is not None:
            cache = state.select(samples)
        cache.padding = self.left_padding(cache, context)
        cache.tree, cache.chunk, cache.begins = context.chunk.tree, context.chunk, context.begins
        q, k = self.rotated_operands(cache, query.values, key.values)
        rows = self.answered(cache, q, k, value.values)
        if samples is not None:
            state.merge(cache, samples)
        return rounded_to(rows, fmt), state

    def left_padding(self, cache: Cache, context: StepContext) -> Array:
        """Returns the tokens of padding before each sample, (B,): of `context` for an empty cache."""
        return np.where(cache.totals == 0, context.padding, cache.padding)

    def reorder(self, state: Cache, samples: Rounded) -> Cache:
        self.pick(state, self.checked_samples(state, samples.values))
        return state

    def checked_samples(self, cache: Cache, samples: Array) -> list[int]:
        """Returns the samples as integers. Raises ValueError for samples that do not exist."""
        if (samples < 0).any() or (samples >= len(cache.totals)).any():
            raise ValueError(f"samples {samples} of a batch of {len(cache.totals)}")
        return [int(sample) for sample in samples]

    def concat(self, arrays: Sequence[Rounded], axis: int) -> Rounded:
        return Rounded(np.concatenate([x.values for x in arrays], axis), arrays[0].fmt)

    def answered(self, cache: Cache, query: Array, key: Array, value: Array) -> Array:
        """Returns the output (B, H, n, Dv), not yet rounded. Writes the tokens into the cache."""
        rows = self.rows(cache, key.shape[2])
        keys = np.concatenate([cache.positions, self.joining(cache, key.shape[2])], 1)
        k, v = np.concatenate([cache.key, key], 2), np.concatenate([cache.value, value], 2)
        out = self.attend(cache, Attended(query, k, v, rows, keys))
        self.write(cache, key, value)
        return out

    def rotated_operands(self, cache: Cache, query: Array, key: Array) -> tuple[Array, Array]:
        """Returns the queries and keys of a chunk, rotated if the case has a rotation."""
        count = key.shape[2]
        rotated_query = self.rotated(cache, query, self.query_rotations(cache, count))
        return rotated_query, self.rotated(cache, key, self.key_rotations(cache, count))

    def rotated(self, cache: Cache, x: Array, positions: Array) -> Array:
        """Returns x (B, H, n, D), rotated by positions (B, n) and rounded if the case has a rotation."""
        rope, fmt = rotation(cache.inputs.case), cache.inputs.dtype
        if rope is None:
            return x
        rotary_call = RotaryCall(x, positions, rope, fmt, entries=0)
        return round_to(RotaryKernel(self.backend).rotate(rotary_call), fmt)

    def key_rotations(self, cache: Cache, count: int) -> Array:
        """Returns the positions (B, count) by which a chunk's keys are rotated."""
        return self.joining(cache, count)

    def query_rotations(self, cache: Cache, count: int) -> Array:
        """Returns the positions (B, count) by which a chunk's queries are rotated."""
        return self.key_rotations(cache, count)

    def joining(self, cache: Cache, count: int) -> Array:
        """Returns the positions (B, count) of a chunk's tokens; nodes of a tree count by depth."""
        return cache.totals[:, None] + self.depths(cache, count)

    def depths(self, cache: Cache, count: int) -> Array:
        """Returns the positions (count,) of a chunk's tokens, counted from the end of the cache."""
        return np.arange(count) if cache.tree is None else cache.tree.depths(count)

    def rows(self, cache: Cache, count: int) -> Array:
        """Returns the positions (B, count) of a chunk's queries."""
        return self.joining(cache, count)

    def write(self, cache: Cache, key: Array, value: Array) -> None:
        """Writes a chunk's tokens into their slots; of more tokens than slots only the last ones."""
        count, samples = key.shape[2], np.arange(len(cache.totals))[:, None]
        positions = self.joining(cache, count)[:, -cache.slots :]
        slots = self.slots(cache, (cache.totals[:, None] + np.arange(count))[:, -cache.slots :])
        cache.totals = cache.totals + count
        cache.positions[samples, slots] = positions
        first = count - positions.shape[1]
        self.put(cache, slots, key[:, :, first:], value[:, :, first:])

    def slots(self, cache: Cache, tokens: Array) -> Array:
        """Returns the slots of tokens, which are numbered from 0 in each sample."""
        return tokens % cache.slots

    def put(self, cache: Cache, slots: Array, key: Array, value: Array) -> None:
        """Writes tokens into slots (B, tokens)."""
        samples = np.arange(len(slots))[:, None]
        for tensor, new in ((cache.key, key), (cache.value, value)):
            tensor[samples, :, slots] = np.moveaxis(new, 2, 1)

    def attend(self, cache: Cache, x: Attended) -> Array:
        """Returns the output (B, H, n, Dv) of the chunk's attention."""
        inputs, fmt, rows, keys = cache.inputs, cache.inputs.dtype, x.rows, x.keys
        slopes, bias = inputs.arrays.get("alibi_slopes"), self.bias(cache, rows, keys)
        if slopes is not None:
            distance = self.distance(cache, rows, keys)[:, None]
            bias = Rounded(-slopes[:, None, None] * distance, None)
        sinks = self.sinks(cache)
        q, k, v = (Rounded(array, fmt) for array in (x.query, x.key, x.value))
        call = Call(
            q, k, v, Rounded(self.allowed(cache, rows, keys)[:, None], None), bias,
            sinks=None if sinks is None else Rounded(sinks, fmt),
            scale=inputs.scale, softcap=self.softcap(cache, rows.shape[1]),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            return self.chunk_attention.compute(call)

    def bias(self, cache: Cache, rows: Array, keys: Array) -> Rounded | None:
        """Returns the bias (B, H, rows, keys) of a chunk; None without a bias."""
        bias = cache.inputs.bias
        if bias is None:
            return None
        assert cache.chunk is not None
        return Rounded(cache.chunk.biases(bias, keys), cache.inputs.dtype)

    def distance(self, cache: Cache, rows: Array, keys: Array) -> Array:
        return np.abs(rows[:, :, None] - keys[:, None])

    def softcap(self, cache: Cache, count: int) -> float | None:
        return cache.inputs.case.option("softcap")

    def sinks(self, cache: Cache) -> Array | None:
        """Returns the logits (H,) of sinks, or None."""
        return cache.inputs.arrays.get("sinks")

    def allowed(self, cache: Cache, rows: Array, keys: Array) -> Array:
        """Returns the mask (B, rows, keys), True attends."""
        mask = self.causal(cache, rows, keys) & self.holds_token(cache, keys)[:, None]
        left = self.window(cache, rows.shape[1])
        if left is not None:
            mask = mask & (rows[:, :, None] - keys[:, None] <= left)
        if cache.tree is not None:
            count, nodes = rows.shape[1], self.ancestry(cache.tree, rows.shape[1])
            cached = np.ones((count, keys.shape[1] - count), bool)
            mask = mask & np.concatenate([cached, nodes], 1)
        if cache.begins is not None and has_documents(cache.inputs.case):
            mask = mask & self.in_document(cache, rows, keys, cache.begins)
        return np.asarray(mask & ~self.is_left_padding(cache, keys)[:, None])

    def in_document(self, cache: Cache, rows: Array, keys: Array, begins: Array) -> Array:
        """Returns, boolean (B, rows, keys), True for keys that belong to no document before the row's."""
        return keys[:, None] >= begins[:, :, None]

    def ancestry(self, tree: Tree, count: int) -> Array:
        """Returns the mask (count, count) of a tree: a node attends itself and its ancestors."""
        return tree.paths(count)

    def causal(self, cache: Cache, rows: Array, keys: Array) -> Array:
        return rows[:, :, None] >= keys[:, None]

    def holds_token(self, cache: Cache, keys: Array) -> Array:
        """Returns True for `keys` that are positions of tokens: empty slots have the position -1."""
        return keys >= 0

    def window(self, cache: Cache, count: int) -> int | None:
        """Returns the number of keys that a row attends before its own; None without a window."""
        return cache.left

    def is_left_padding(self, cache: Cache, keys: Array) -> Array:
        """Returns, boolean (B, keys), the keys that are left padding."""
        return (keys >= 0) & (keys < cache.padding[:, None])

    def crop(self, state: Cache, count: int, *samples: Rounded) -> Cache:
        index = self.sample_index(state, samples)
        self.validate(state, count)
        state.totals[index] -= count
        state.positions[state.positions >= state.totals[:, None]] = -1
        return state

    def validate(self, cache: Cache, count: int) -> None:
        """Raises ValueError for a rollback of more tokens than there are, or of a negative number."""
        if not 0 <= count <= cache.total:
            raise ValueError(f"a rollback of {count} tokens, and there are {cache.total}")

    def sample_index(self, cache: Cache, samples: Sequence[Rounded]) -> list[int] | slice:
        """Returns the index of the samples that an operation names; of all samples if it names none."""
        return self.checked_samples(cache, samples[0].values) if samples else slice(None)

    def reset(self, state: Cache, *samples: Rounded) -> Cache:
        index = self.sample_index(state, samples)
        state.totals[index] = 0
        state.positions[index] = -1
        return state

    def keep(self, state: Cache, paths: Rounded, count: int, *samples: Rounded) -> Cache:
        all_samples = [*range(len(state.totals))]
        named = self.checked_samples(state, samples[0].values) if samples else all_samples
        for sample, path in zip(named, paths.values, strict=True):
            self.keep_path(state, sample, [int(node) for node in path if node >= 0], count)
        return state

    def keep_path(self, cache: Cache, sample: int, path: list[int], count: int) -> None:
        """Moves the path's nodes to the front of the slots of all `count` nodes, and frees the others."""
        first = cache.totals[sample] - count
        positions = np.arange(first, first + len(path))
        nodes = np.arange(first, first + count) % cache.slots
        for tensor in (cache.key, cache.value):
            tensor[sample][:, nodes[: len(path)]] = tensor[sample][:, nodes[path]]
        cache.positions[sample, nodes] = -1
        cache.positions[sample, nodes[: len(path)]] = positions
        cache.totals[sample] = first + len(path)

    def pick(self, cache: Cache, samples: list[int]) -> None:
        """Replaces the history of sample n by that of sample `samples[n]`."""
        for name in cache.ARRAYS:
            setattr(cache, name, getattr(cache, name)[samples])


class CodedKernel(CachedKernel):
    """Keys and values become 8-bit codes when they arrive. The scale of a token and head comes from its
    largest component."""

    kept_in = CODES["int8"]
    rounding = DeclaredRounding(codes=dict.fromkeys(DTYPES, "int8"))

    def answered(self, cache: Cache, query: Array, key: Array, value: Array) -> Array:
        coded = (self.quantize_dequantize(x, cache) for x in (key, value))
        return super().answered(cache, query, *coded)

    def quantize_dequantize(self, x: Array, cache: Cache) -> Array:
        """Quantizes keys or values x (B, Hkv, n, D or Dv) and dequantizes them."""
        scale = self.scale_of(x, cache)
        codes = self.codes_of(x / np.where(scale > 0, scale, 1))
        return np.asarray(codes * self.read_scale(scale))

    def scale_of(self, x: Array, cache: Cache) -> Array:
        """Returns the scale (B, Hkv, n, 1) with which tokens x are written."""
        return np.abs(x).max(-1, keepdims=True) / self.kept_in.max

    def read_scale(self, scale: Array) -> Array:
        """Returns the scale with which tokens are read, from the `scale` with which they were written."""
        return scale

    def codes_of(self, quotient: Array) -> Array:
        """Returns the codes nearest to `quotient`: keys or values divided by their scale."""
        return round_to(np.clip(quotient, -self.kept_in.max, self.kept_in.max), self.kept_in)


class ProjectedKernel(Projected, CachedKernel):
    """A layer whose projections are identities or their negatives."""

    def project(self, state: Cache, signs: Sequence[int]) -> Cache:
        state.signs = self.projections(state, signs)
        return state

    def projections(self, cache: Cache, signs: Sequence[int]) -> Sequence[int]:
        """Returns the signs of the projections that the layer uses; its parameters have `signs`."""
        return signs

    def layer_step(
        self, state: Cache, query: Rounded, key: Rounded, value: Rounded, context: StepContext
    ) -> tuple[Rounded, Cache]:
        *input_signs, output_sign = state.signs
        q, k, v = (
            Rounded(sign * x.values, x.fmt)
            for sign, x in zip(input_signs, (query, key, value), strict=True)
        )
        rows, cache = CachedKernel.step(self, state, q, k, v, context)
        return Rounded(output_sign * rows.values, rows.fmt), cache

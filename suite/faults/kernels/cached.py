"""Honest attention with a cache in NumPy, one method a step: slots that may be a ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from backends._numpy import Rounded
from backends.caching import Scripted, Turn
from suite.faults.kernels.attention import Call, Kernel, Stated
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import FEATURES
from suite.spec.operators.scripts import capacity


@dataclass
class Held:
    """A cache of C slots.

    - `key` (B, Hkv, C, D), `value` (B, Hkv, C, Dv)
    - `positions` (C,): the position of the token in each slot, -1 without one
    - `total`: the number of tokens so far
    - `padding` (B,): how many first tokens of each sample are hidden
    """

    key: np.ndarray
    value: np.ndarray
    positions: np.ndarray
    padding: np.ndarray
    inputs: Inputs
    total: int = 0

    @property
    def left(self) -> int | None:
        left: int | None = self.inputs.case.option("left")
        return left

    @property
    def slots(self) -> int:
        return len(self.positions)


class CachedKernel(Stated, Scripted):
    """A chunk attends all slots and its own tokens by `kernel`, then its last tokens take their slots."""

    features = FEATURES
    kernel: type[Kernel] = Kernel

    @cached_property
    def plain(self) -> Kernel:
        """Attention of one chunk."""
        return self.kernel(self.backend)

    def init(self, inputs: Inputs, key: Any) -> Held:
        """An empty cache."""
        s, slots = inputs.sizes, capacity(inputs.case)
        padding = np.array(inputs.case.option("padding") or (0,) * s.B)
        keys, values = (np.zeros((s.B, s.Hkv, slots, size)) for size in (s.D, s.Dv))
        return Held(keys, values, np.full(slots, -1), padding, inputs)

    def step(
        self, state: Held, query: Rounded, key: Rounded, value: Rounded, turn: Turn
    ) -> tuple[Rounded, Held]:
        rows = self.answer(state, query.values, key.values, value.values)
        fmt = state.inputs.dtype
        return Rounded(round_to(rows, fmt), fmt), state

    def reorder(self, state: Held, samples: Rounded) -> Held:
        self.pick(state, samples.values.tolist())
        return state

    def concat(self, arrays: Sequence[Rounded], axis: int) -> Rounded:
        return Rounded(np.concatenate([x.values for x in arrays], axis), arrays[0].fmt)

    def answer(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        """The rows of a chunk, not yet rounded; its tokens are in the cache afterwards."""
        rows = self.rows(held, key.shape[2])
        keys = np.concatenate([held.positions, held.total + np.arange(key.shape[2])])
        k, v = (
            np.concatenate([old, new], 2) for old, new in ((held.key, key), (held.value, value))
        )
        out = self.attend(held, query, k, v, rows, keys)
        self.write(held, key, value)
        return out

    def rows(self, held: Held, count: int) -> np.ndarray:
        """The positions of a chunk's queries."""
        return held.total + np.arange(count)

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        """Put the last tokens of a chunk into their slots."""
        new = (held.total + np.arange(key.shape[2]))[-held.slots :]
        held.total += key.shape[2]
        slots = self.slots(held, new)
        held.positions[slots] = new
        self.put(held, slots, key[:, :, -len(new) :], value[:, :, -len(new) :])

    def slots(self, held: Held, positions: np.ndarray) -> np.ndarray:
        return positions % held.slots

    def put(self, held: Held, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        held.key[:, :, slots], held.value[:, :, slots] = key, value

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Plain attention of rows and keys with these positions."""
        inputs, fmt = held.inputs, held.inputs.dtype
        slopes, bias = inputs.arrays.get("alibi_slopes"), None
        if slopes is not None:
            bias = Rounded(-slopes[:, None, None] * self.distance(held, rows, keys), None)
        sinks = self.sinks(held)
        q, k, v = (Rounded(x, fmt) for x in (query, key, value))
        call = Call(
            q, k, v, Rounded(self.shown(held, rows, keys)[:, None], None), bias,
            sinks=None if sinks is None else Rounded(sinks, fmt),
            scale=inputs.scale, softcap=self.softcap(held, len(rows)),
        )  # fmt: skip
        with np.errstate(all="ignore"):
            return self.plain.compute(call)

    def distance(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.abs(rows[:, None] - keys)

    def softcap(self, held: Held, count: int) -> float | None:
        cap: float | None = held.inputs.case.option("softcap")
        return cap

    def sinks(self, held: Held) -> np.ndarray | None:
        """The logits (H,) of sinks, or None."""
        return held.inputs.arrays.get("sinks")

    def shown(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The mask (B, rows, keys), True attends."""
        shown = self.causal(held, rows, keys) & self.exists(held, keys)
        left = self.window(held, len(rows))
        if left is not None:
            shown = shown & (rows[:, None] - keys <= left)
        return shown & ~self.padded(held, keys)[:, None]

    def causal(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return rows[:, None] >= keys

    def exists(self, held: Held, keys: np.ndarray) -> np.ndarray:
        return keys >= 0

    def window(self, held: Held, count: int) -> int | None:
        """The keys that a row of a chunk of `count` rows attends before its own."""
        return held.left

    def padded(self, held: Held, keys: np.ndarray) -> np.ndarray:
        """Keys that are left padding, boolean (B, keys)."""
        return (keys >= 0) & (keys < held.padding[:, None])

    def crop(self, state: Held, count: int) -> Held:
        state.total -= count
        state.positions[state.positions >= state.total] = -1
        return state

    def reset(self, state: Held) -> Held:
        state.total = 0
        state.positions[:] = -1
        return state

    def pick(self, held: Held, samples: list[int]) -> None:
        """Sample n goes on with the history of sample `samples[n]`."""
        held.key, held.value = held.key[samples], held.value[samples]
        held.padding = held.padding[samples]

"""Honest attention with a cache in NumPy, one method a step: slots that may be a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from backends._numpy import Rounded
from backends.memory import sequences
from backends.prepared import PreparedCall
from suite.faults.kernels.attention import Stated
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import CACHED, FEATURES
from suite.spec.operators.scripts import Chunk, Crop, Pick, Reset, actions, capacity


@dataclass
class Held:
    """A cache of C slots.

    - `key` (B, Hkv, C, D), `value` (B, Hkv, C, Dv)
    - `positions` (C,): the position of the token in each slot, -1 without one
    - `total`: the number of tokens so far
    - `padding` (B,): how many first tokens of each sample are hidden
    - `left`, `slopes`, `sinks`: the case's window and arrays
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

    @property
    def work(self) -> type[np.floating[Any]]:
        return np.float64 if self.inputs.dtype.name == "f64" else np.float32


class CachedKernel(Stated):
    """A chunk attends all slots and its own tokens in float32, then its last tokens take their slots."""

    operator = CACHED
    features = FEATURES

    def prepare(self, inputs: Inputs) -> PreparedCall:
        fmt, case = inputs.dtype, inputs.case

        def call(**arrays: Rounded) -> Rounded:
            query, key, value = (arrays[name].values for name in ("query", "key", "value"))
            caches, parts = [self.init(inputs) for _ in range(1 + case.option("beside"))], []
            for action in actions(case):
                # The second cache takes the same tokens with the other sign.
                for n, held in enumerate(caches):
                    sign = 1 - 2 * n
                    match action:
                        case Chunk(tokens=tokens, queries=queries):
                            k, v = (sign * x[:, :, tokens] for x in (key, value))
                            rows = k[:, :1] + np.zeros((1, case.sizes.H, 1, 1))
                            q = rows if queries is None else query[:, :, queries]
                            out = self.step(held, q, k, v)
                            parts += [out] if n == 0 and queries is not None else []
                        case Crop(count=count):
                            self.crop(held, count)
                        case Reset():
                            self.reset(held)
                        case Pick(samples=samples):
                            self.pick(held, list(samples))
            return Rounded(round_to(np.concatenate(parts, 2), fmt), fmt)

        constants = (case.options, inputs.sizes, fmt.name)
        return PreparedCall(call, sequences(self.backend, inputs), constants=constants)

    def init(self, inputs: Inputs) -> Held:
        """An empty cache."""
        s, slots = inputs.sizes, capacity(inputs.case)
        padding = np.array(inputs.case.option("padding") or (0,) * s.B)
        key, value = (np.zeros((s.B, s.Hkv, slots, size)) for size in (s.D, s.Dv))
        return Held(key, value, np.full(slots, -1), padding, inputs)

    def step(self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
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
        inputs, work = held.inputs, held.work
        q = query.astype(work)
        k, v = (np.repeat(x, inputs.sizes.group, 1).astype(work) for x in (key, value))
        scores = (q @ k.swapaxes(2, 3)) * work(inputs.effective_scale)
        cap = self.softcap(held, len(rows))
        if cap is not None:
            scores = np.tanh(scores / work(cap)) * work(cap)
        slopes = inputs.arrays.get("alibi_slopes")
        if slopes is not None:
            distance = self.distance(held, rows, keys).astype(work)
            scores = scores - slopes.astype(work)[:, None, None] * distance
        shown = self.shown(held, rows, keys)[:, None]
        hidden = np.where(shown, scores, -np.inf)
        out: np.ndarray = self.weights(held, hidden, self.sinks(held, len(rows))) @ v
        return out

    def distance(self, held: Held, rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.abs(rows[:, None] - keys)

    def softcap(self, held: Held, count: int) -> float | None:
        cap: float | None = held.inputs.case.option("softcap")
        return cap

    def sinks(self, held: Held, count: int) -> np.ndarray | None:
        """The logits (H, 1, 1) of sinks, or None."""
        sinks = held.inputs.arrays.get("sinks")
        return None if sinks is None else sinks.astype(held.work)[:, None, None]

    def weights(self, held: Held, scores: np.ndarray, sinks: np.ndarray | None) -> np.ndarray:
        """Weights of scores, of which some row may have none."""
        largest = scores.max(-1, keepdims=True)
        if sinks is not None:
            largest = np.maximum(largest, sinks)
        largest = np.where(np.isneginf(largest), 0, largest).astype(scores.dtype)
        exponentials = np.exp(scores - largest)
        total = exponentials.sum(-1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks - largest)
        weights: np.ndarray = exponentials / np.where(total == 0, 1, total).astype(scores.dtype)
        return weights

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

    def crop(self, held: Held, count: int) -> None:
        """Take back the last tokens."""
        held.total -= count
        held.positions[held.positions >= held.total] = -1

    def reset(self, held: Held) -> None:
        """Empty the cache."""
        held.total = 0
        held.positions[:] = -1

    def pick(self, held: Held, samples: list[int]) -> None:
        """Sample n goes on with the history of sample `samples[n]`."""
        held.key, held.value = held.key[samples], held.value[samples]
        held.padding = held.padding[samples]

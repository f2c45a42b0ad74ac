"""Honest variants of attention with a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.faults.kernels.attention import Eager
from suite.faults.kernels.cached import CachedKernel, Held
from suite.spec.inputs import Inputs


class CachedConcatenated(CachedKernel):
    """Keys and values grow by concatenation; all are kept."""

    def init(self, inputs: Inputs, key: Any) -> Held:
        held = super().init(inputs, key)
        held.key, held.value = held.key[:, :, :0], held.value[:, :, :0]
        held.positions = held.positions[:0]
        return held

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        held.key = np.concatenate([held.key, key], 2)
        held.value = np.concatenate([held.value, value], 2)
        held.total += key.shape[2]
        held.positions = np.arange(held.total)

    def crop(self, state: Held, count: int) -> Held:
        total = state.total - count
        state.key, state.value = state.key[:, :, :total], state.value[:, :, :total]
        state.total, state.positions = total, np.arange(total)
        return state

    def reset(self, state: Held) -> Held:
        return self.crop(state, state.total)


class CachedRolled(CachedKernel):
    """The last tokens stand in order at the end of the slots, and move to the front at every chunk."""

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        count = key.shape[2]
        new = held.total + np.arange(count)
        held.total += count
        held.key = np.concatenate([held.key, key], 2)[:, :, -held.slots :]
        held.value = np.concatenate([held.value, value], 2)[:, :, -held.slots :]
        held.positions = np.concatenate([held.positions, new])[-held.slots :]

    def crop(self, state: Held, count: int) -> Held:
        state.total -= count
        state.key, state.value = (np.roll(x, count, 2) for x in (state.key, state.value))
        state.positions = np.roll(state.positions, count)
        state.positions[:count] = -1
        return state


class CachedWrittenFirst(CachedKernel):
    """Without a ring tokens are written before the chunk attends, and the chunk attends slots alone."""

    def answer(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        rows = self.rows(held, key.shape[2])
        if rows[-1] >= held.slots:
            return super().answer(held, query, key, value)
        self.write(held, key, value)
        return self.attend(held, query, held.key, held.value, rows, held.positions)


@dataclass
class HeldInPages(Held):
    """Slots of two tokens a page: `pool` (pages, 2, Hkv, D + Dv), `table` (B, pages of a sample)."""

    pool: list[np.ndarray] = field(default_factory=list)
    table: list[list[int]] = field(default_factory=list)


class CachedInPages(CachedKernel):
    """Keys and values lie in pages of two tokens. Samples with one history share its pages, and a page is
    copied before a token is written into it."""

    def init(self, inputs: Inputs, key: Any) -> Held:
        return HeldInPages(
            **vars(super().init(inputs, key)), table=[[] for _ in range(inputs.sizes.B)]
        )

    def put(self, held: Held, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        assert isinstance(held, HeldInPages)
        tokens = np.concatenate([key, value], -1)
        for sample, table in enumerate(held.table):
            for n, slot in enumerate(slots):
                page, place = divmod(int(slot), 2)
                while len(table) <= page:
                    table.append(len(held.pool))
                    held.pool.append(np.zeros((2, *tokens.shape[1::2])))
                held.pool.append(held.pool[table[page]].copy())
                table[page] = len(held.pool) - 1
                held.pool[-1][place] = tokens[sample, :, n]

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        assert isinstance(held, HeldInPages)
        key, value = key.copy(), value.copy()
        for sample, table in enumerate(held.table):
            if table:
                flat = np.concatenate([held.pool[page] for page in table])[: held.slots]
                own = flat.swapaxes(0, 1)
                key[sample, :, : len(flat)] = own[..., : key.shape[-1]]
                value[sample, :, : len(flat)] = own[..., key.shape[-1] :]
        return super().attend(held, query, key, value, rows, keys)

    def pick(self, held: Held, samples: list[int]) -> None:
        assert isinstance(held, HeldInPages)
        super().pick(held, samples)
        held.table = [list(held.table[n]) for n in samples]


class CachedEager(CachedKernel):
    """Scores and weights are stored in the dtype of the case."""

    numerics = "eager"
    kernel = Eager

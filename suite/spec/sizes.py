"""The sizes of a problem, and index arrays over its samples, heads, queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes of one problem, always in this order.

    B batch, H query heads, Hkv key/value heads, Lq queries, Lk keys, D size of a query and a key, Dv
    size of a value.
    """

    B: int
    H: int
    Hkv: int
    Lq: int
    Lk: int
    D: int
    Dv: int

    @property
    def token(self) -> str:
        """The sizes in a case id; Dv only if it differs from D."""
        text = f"b{self.B}h{self.H}q{self.Lq}k{self.Lk}d{self.D}"
        return text + (f"v{self.Dv}" if self.Dv != self.D else "")

    @property
    def heads(self) -> str:
        """mha, mqa or gqaN, with N query heads per key/value head."""
        if self.H == self.Hkv:
            return "mha"
        return "mqa" if self.Hkv == 1 else f"gqa{self.group}"

    @property
    def letters(self) -> dict[str, int]:
        """The sizes by the letters of their axes (see `suite.spec.operator.LETTERS`)."""
        return dict(zip("bhgqkdv", vars(self).values(), strict=True))

    @property
    def pairs(self) -> int:
        """The number of pairs of query and key, over samples and heads."""
        return self.B * self.H * self.Lq * self.Lk

    @property
    def group(self) -> int:
        """Query heads per key/value head; 1 without heads."""
        return self.H // self.Hkv if self.Hkv else 1


@dataclass(frozen=True)
class PairIndex:
    """Index arrays of samples, heads, queries and keys, which broadcast to (B, H, rows, Lk). A mask
    computes from them which pairs attend. `seed`: the seed of random masks."""

    b: np.ndarray
    h: np.ndarray
    q: np.ndarray
    k: np.ndarray
    sizes: Sizes
    seed: int

    @classmethod
    def of(cls, sizes: Sizes, seed: int = 0, rows: slice = slice(None)) -> PairIndex:
        """Returns the index arrays for all keys and the query rows `rows`."""
        queries = np.arange(sizes.Lq)[rows]
        return cls(
            b=np.arange(sizes.B).reshape(-1, 1, 1, 1),
            h=np.arange(sizes.H).reshape(1, -1, 1, 1),
            q=queries.reshape(1, 1, -1, 1),
            k=np.arange(sizes.Lk).reshape(1, 1, 1, -1),
            sizes=sizes,
            seed=seed,
        )


def uniform(seed: int, *indices: np.ndarray) -> np.ndarray:
    """Returns numbers in [0, 1) that depend only on `seed` and the indices, whose shapes broadcast.

    splitmix64 (Steele, Lea, Flood, OOPSLA 2014) as a hash. So an arbitrary mask is a predicate, and any
    block of it can be evaluated separately.
    """

    def mix(z: np.ndarray) -> np.ndarray:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    with np.errstate(over="ignore"):
        state = mix(np.asarray([(seed * 2 + 1) % 2**64], dtype=np.uint64))
        for index in indices:
            step = (np.asarray(index).astype(np.uint64) + np.uint64(1)) * np.uint64(
                0x9E3779B97F4A7C15
            )
            state = mix(state + step)
    return state.astype(np.float64) / 2.0**64

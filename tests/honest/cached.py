"""Honest variants of attention with a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Eager
from attention_conformance.suite.deviations.kernels.cached import (
    Attended,
    CachedKernel,
    CodedKernel,
    Held,
)
from attention_conformance.suite.spec.dtypes import CODES, DTYPES
from attention_conformance.suite.spec.inputs import Inputs

ONE_LENGTH = CachedKernel.features - {"subsets"}


class CachedConcatenated(CachedKernel):
    """Keys and values grow by concatenation; all are kept. All samples have one length."""

    features = ONE_LENGTH
    elections = CachedKernel.elections | {"beyond-capacity": "grows"}

    def init(self, inputs: Inputs, key: Any) -> Held:
        return self.cut(super().init(inputs, key), 0)

    def cut(self, held: Held, total: int) -> Held:
        """The first tokens."""
        held.key, held.value = held.key[:, :, :total], held.value[:, :, :total]
        held.positions = held.positions[:, :total]
        held.totals = 0 * held.totals + total
        return held

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        new = self.joining(held, key.shape[2])
        held.key = np.concatenate([held.key, key], 2)
        held.value = np.concatenate([held.value, value], 2)
        held.positions = np.concatenate([held.positions, new], 1)
        held.totals = held.totals + key.shape[2]

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        self.validate(state, count)
        return self.cut(state, state.total - count)

    def reset(self, state: Held, *samples: Rounded) -> Held:
        return self.cut(state, 0)

    def keep(self, state: Held, paths: Rounded, count: int, *samples: Rounded) -> Held:
        kept = super().keep(state, paths, count)
        return self.cut(kept, kept.total)


class CachedRaisesWhenFull(CachedKernel):
    """Without a window a chunk beyond the capacity raises before it is written."""

    elections = CachedKernel.elections | {"beyond-capacity": "raises"}

    def write(self, held: Held, key: np.ndarray, value: np.ndarray) -> None:
        if held.left is None and held.total + key.shape[2] > held.slots:
            raise ValueError(f"{key.shape[2]} tokens for a cache of {held.slots} slots")
        super().write(held, key, value)


class CachedRotatedOnRead(CachedKernel):
    """Keys are kept as they come, and rotated whenever a chunk attends them. Positions count from behind
    left padding, and from the beginning of a document."""

    def turned(
        self, held: Held, query: np.ndarray, key: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return query, key

    def attend(self, held: Held, x: Attended) -> np.ndarray:
        assert held.begins is not None
        first = held.begins[:, :1]
        query = self.rotated(held, x.query, x.rows - first)
        key = self.rotated(held, x.key, x.keys - first)
        return super().attend(held, replace(x, query=query, key=key))


class CachedPaddingUnanswered(CachedKernel):
    """Rows of left padding are not computed, and NaN stands there."""

    def attend(self, held: Held, x: Attended) -> np.ndarray:
        out = super().attend(held, x)
        return np.where((x.rows < held.padding[:, None])[:, None, :, None], np.nan, out)


class CachedEager(CachedKernel):
    """Scores and weights are stored in the dtype of the case."""

    numerics = "eager"
    kernel = Eager


class CachedCodesOfOlderTokens(CodedKernel):
    """A chunk attends its own tokens as they came, and older ones as codes."""

    def answered(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return CachedKernel.answered(self, held, query, key, value)

    def put(self, held: Held, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        super().put(held, slots, self.kept(key, held), self.kept(value, held))


class CachedCodesWithZeros(CodedKernel):
    """A token of a head has a zero point, and its codes reach from its least to its largest component."""

    def kept(self, x: np.ndarray, held: Held) -> np.ndarray:
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

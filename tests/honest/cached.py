"""Honest variants of attention with a cache."""

from __future__ import annotations

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
from attention_conformance.suite.deviations.kernels.variants import MergedChunks
from attention_conformance.suite.spec.dtypes import CODES, DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from tests.honest.rows import variant

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
        decoded = super().keep(state, paths, count)
        return self.cut(decoded, decoded.total)


class CachedRaisesWhenFull(CachedKernel):
    """Without a window a chunk beyond the capacity raises before it is written."""

    elections = CachedKernel.elections | {"beyond-capacity": "raises"}

    def write(self, cache: Cache, key: np.ndarray, value: np.ndarray) -> None:
        if cache.left is None and cache.total + key.shape[2] > cache.slots:
            raise ValueError(f"{key.shape[2]} tokens for a cache of {cache.slots} slots")
        super().write(cache, key, value)


class CachedCodesOfOlderTokens(CodedKernel):
    """A chunk attends its own tokens as they came, and older ones as codes."""

    def answered(
        self, cache: Cache, query: np.ndarray, key: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        return CachedKernel.answered(self, cache, query, key, value)

    def put(self, cache: Cache, slots: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
        coded_key, coded_value = (self.quantize_dequantize(x, cache) for x in (key, value))
        super().put(cache, slots, coded_key, coded_value)


class CachedCodesWithZeros(CodedKernel):
    """A token of a head has a zero point, and its codes reach from its least to its largest component."""

    def quantize_dequantize(self, x: np.ndarray, cache: Cache) -> np.ndarray:
        least, largest = (f(x, axis=-1, keepdims=True) for f in (np.min, np.max))
        scale = np.maximum(largest, 0) - np.minimum(least, 0)
        scale = np.where(scale > 0, scale, 1) / 255
        zero = np.rint(-128 - np.minimum(least, 0) / scale)
        codes = np.clip(np.rint(x / scale) + zero, -128, 127)
        return np.asarray((codes - zero) * scale)


def unanswered(right: Any, cache: Cache, x: Attended) -> np.ndarray:
    """Rows of left padding are NaN."""
    padding = (x.rows < cache.padding[:, None])[:, None, :, None]
    return np.where(padding, np.nan, right.attend(cache, x))


ROWS = (
    variant("cached-padding-unanswered", CachedKernel, attend=unanswered),
    variant("cached-eager", CachedKernel, numerics="eager", kernel=Eager),
    # every step answers three parts of the keys, and merges them by their log-sum-exps
    variant("cached-split", CachedKernel, kernel=MergedChunks),
    variant("cached-codes-in-e4m3", CodedKernel, kept_in=CODES["e4m3"],
        rounding=DeclaredRounding(codes=dict.fromkeys(DTYPES, "e4m3"))),
)  # fmt: skip

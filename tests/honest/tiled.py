"""Honest variants of tiled kernels: sizes of tiles, when sums are rescaled, how powers are computed."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel, Online
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
)
from attention_conformance.suite.deviations.kernels.variants import FlashFused, MergedChunks


class OnlineTiles8(Online):
    """Online softmax, eight keys at a time."""

    tile = 8


class OnlineTiles128(Online):
    """Online softmax, 128 keys at a time."""

    tile = 128


class WholeTilesFlushed(FlashFused):
    """Products with whole tiles of values take subnormal values for zero, those with the last, smaller
    tile keep them: as products in bfloat16 do by their sizes, on processors that multiply bfloat16."""

    elections = FlashFused.elections | {"subnormal-output": "flushed"}

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        keys = np.arange(value.shape[-2])[:, None]
        whole = keys < value.shape[-2] // self.tile * self.tile
        tiny = whole & (np.abs(value) < call.fmt.smallest_normal)
        return super().attend(scores, np.where(tiny, 0, value), call)


class LazilyRescaled(FlashFused):
    """Running sums are rescaled only if the maximum grows by more than 8 powers of 2 (Dao et al.,
    FlashAttention-4)."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        rows = (*scores.shape[:-1], 1)
        anchor = np.full(rows, -np.inf, scores.dtype)
        total = np.zeros(rows, scores.dtype)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for keys in self.tiles(scores.shape[-1]):
            s = scores[..., keys]
            largest = s.max(-1, keepdims=True)
            grown = ~(largest - anchor <= 8 * math.log(2)) & ~np.isneginf(largest)
            moved = np.where(grown, largest, anchor)
            seen = np.where(np.isneginf(moved), 0, moved)
            factor = np.where(grown, np.exp(anchor - seen), 1).astype(scores.dtype)
            raised = np.exp(s - seen)
            total = total * factor + raised.sum(-1, keepdims=True)
            out = out * factor + self.keep(raised, "weights", call) @ value[..., keys, :]
            anchor = moved
        return out / np.where(total == 0, 1, total)


class MergedHalves(MergedChunks):
    """Two halves of the keys, weighted by a softmax of their log-sum-exps: rows whose scores absorb the
    logarithm of the number of keys are the mean of the means of the halves."""

    chunks = 2

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        lse = np.concatenate([lse for _, lse in parts], axis=-1)
        maximum = lse.max(-1, keepdims=True)
        shares = np.exp(lse - np.where(np.isneginf(maximum), 0, maximum))
        total = shares.sum(-1, keepdims=True)
        shares = shares / np.where(total == 0, 1, total)
        return sum(out * shares[..., i, None] for i, (out, _) in enumerate(parts))


class MergedInTurn(MergedChunks):
    """Three chunks, each merged into those before by the logistic function of the difference of their
    log-sum-exps, as ring attention does: absorbed rows halve the share of earlier chunks."""

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        out, lse = parts[0]
        for other, its in parts[1:]:
            largest = np.maximum(lse, its)
            anchor = np.where(np.isneginf(largest), 0, largest)
            old, new = np.exp(lse - anchor), np.exp(its - anchor)
            total = np.where(old + new == 0, 1, old + new)
            out = out * (old / total) + other * (new / total)
            lse = self.lse_of(np.concatenate([lse, its], axis=-1))
        return out


class CubicExp(DifferentiableFused):
    """Powers of 2, whose fractional part a cubic polynomial raises (FlashAttention-4)."""

    dtypes = ("bf16", "f16")
    rounding = DeclaredRounding(exp_error={"bf16": 1e-4, "f16": 1e-4})

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        x = shifted * shifted.dtype.type(math.log2(math.e))
        whole = np.floor(np.maximum(x, -127))
        rest = np.polyval((0.07711909, 0.22756439, 0.69514614, 1.0), x - whole).astype(x.dtype)
        return np.where(x < -126, 0, np.ldexp(rest, whole.astype(int))).astype(x.dtype)


class GroupedRows(Differentiable):
    """The query heads of a group are more rows of one head: no key and no value is repeated."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return (
            super()
            .scores(self.stacked(query, call), self.of_groups(key, call), call)
            .reshape(*query.shape[:3], key.shape[2])
        )

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        weights = self.stacked(self.weights(scores, call), call)
        seen = self.visible(self.of_groups(value, call), self.stacked(scores, call))
        return (weights @ seen).reshape(*scores.shape[:3], value.shape[-1])

    def stacked(self, x: np.ndarray, call: Call) -> np.ndarray:
        """Rows (B, H, Lq, .) as (B, Hkv, H / Hkv * Lq, .)."""
        s = call.sizes
        return x.reshape(s.B, s.Hkv, s.group * s.Lq, x.shape[-1])

    def of_groups(self, x: np.ndarray, call: Call) -> np.ndarray:
        """The heads (B, Hkv, ., .) of repeated keys or values."""
        return x[:, :: call.sizes.group]


class InPlace(Kernel):
    """Scores, differences, powers and weights share one buffer."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value, maximum = self.visible(value, scores), scores.max(-1, keepdims=True, initial=-np.inf)
        scores -= np.where(np.isneginf(maximum), 0, maximum)
        np.exp(scores, out=scores)
        total = scores.sum(-1, keepdims=True)
        scores /= np.where(total == 0, 1, total)
        return scores @ value


class RingBalanced(Online):
    """The rows of four ranks, which hold a first and a last block each; keys go around the ring, and
    every rank begins with its own."""

    ranks = 4

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        rows, keys = (self.held(length) for length in (scores.shape[-2], scores.shape[-1]))
        out = np.empty((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for rank, own in enumerate(rows):
            around = np.concatenate(
                [keys[(rank - step) % self.ranks] for step in range(self.ranks)]
            )
            out[:, :, own] = super().attend(
                scores[:, :, own][..., around], value[:, :, around], call
            )
        return out

    def held(self, length: int) -> list[np.ndarray]:
        """The positions that each rank holds."""
        blocks = np.array_split(np.arange(length), 2 * self.ranks)
        return [np.concatenate([blocks[r], blocks[-1 - r]]) for r in range(self.ranks)]

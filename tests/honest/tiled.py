"""Honest variants of tiled kernels: sizes of tiles, when sums are rescaled, how powers are computed."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.gradient import DifferentiableFused
from attention_conformance.suite.deviations.kernels.variants import FlashFused, MergedChunks


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

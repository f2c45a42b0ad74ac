"""Faults of sums in tiles: bits that change with the padding, and tiles that tie."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "tiles"


class Tiled(Kernel):
    """Tiles of 64 keys, each added one after the other."""

    tile = 64

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value, weights = self.visible(value, scores), self.weights(scores, call)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for start in range(0, scores.shape[-1], self.tile):
            part = np.zeros_like(out)
            for j in range(start, min(start + self.tile, scores.shape[-1])):
                part = part + weights[..., j, None] * value[..., None, j, :]
            out = out + part
        return out


@fault(
    "invariant_padding",
    "parts of `Lk // 2` keys, where Lk counts the padding; let parts begin at multiples of a block",
)
class PromisesPadding(Tiled):
    """Sums promised to be independent of the padding are added in two halves of the padded keys."""

    bitwise = ("rerun", "padding")

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        self.tile = -(-scores.shape[-1] // 2) or 1
        return super().attend(scores, value, call)


def ties_across_tiles_dropped(
    right: Tiled, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    first = scores[..., :1]
    tied = (scores == first).all(-1, keepdims=True) & np.isfinite(first)
    later = np.arange(scores.shape[-1]) >= right.tile
    return right.attend(np.where(tied & later, -np.inf, scores), value, call)


row = partial(deviation, family=FAMILY, right=Tiled)

DEVIATIONS = [
    row("ties-across-tiles-dropped", "values",
        "A tile of 64 keys whose scores all equal the running maximum is left out.",
        "`if m_tile > m` before a tile is added; a tile with an equal maximum counts, too",
        attend=ties_across_tiles_dropped),
]  # fmt: skip

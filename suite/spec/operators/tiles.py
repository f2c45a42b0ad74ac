"""Tiles: 128 neighbouring components of a head or a latent, which share a scale of codes.

The last tile is shorter if the width is no multiple of 128.

Source: DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437 (2024), section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

TILE = 128

TILES = {"d": "m", "v": "n", "r": "l"}
"""The letter of the axis of tiles, by the letter of the components."""


def tile_counts(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the numbers of tiles, by the letter of the tiles, for sizes by the letter of components."""
    return {TILES[x]: -(-n // TILE) for x, n in sizes.items() if x in TILES}


def to_tiles(x: np.ndarray) -> np.ndarray:
    """Returns an array (..., size) as (..., tiles, 128), with zeros behind the last component."""
    tiles = -(-x.shape[-1] // TILE)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, tiles * TILE - x.shape[-1])])
    return padded.reshape(*x.shape[:-1], tiles, TILE)


def repeat_per_component(array: np.ndarray, size: int) -> np.ndarray:
    """Returns numbers of tiles (..., tiles), repeated for every component of the tile, (..., size)."""
    return np.repeat(array, TILE, -1)[..., :size]

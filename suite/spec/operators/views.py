"""What the chunks of a script see: tokens, positions and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.scripts import played
from attention_conformance.suite.spec.operators.steps import Chunk


@dataclass(frozen=True)
class View:
    """What one chunk sees.

    - `samples`, `places`, `positions` (b, n): the tokens as in `Contents`, the chunk's own ones last,
      with positions of -1 before shorter ones.
    - `mask` (b, rows, n): True attends.
    """

    samples: np.ndarray
    places: np.ndarray
    positions: np.ndarray
    mask: np.ndarray
    chunk: Chunk

    @property
    def tree(self) -> Tree | None:
        return self.chunk.tree

    @property
    def of(self) -> np.ndarray:
        """The samples of the chunk (b,)."""
        return np.array(self.chunk.own)

    @property
    def rows(self) -> np.ndarray:
        """Their rows of the output (b, rows)."""
        return self.chunk.rows

    @property
    def at(self) -> np.ndarray:
        """The positions of the rows (b, rows)."""
        return self.positions[:, -self.chunk.count :]

    def bias(self, bias: np.ndarray | None) -> np.ndarray | None:
        """The chunk's part (b, H, rows, n) of the bias of a case."""
        return None if bias is None else self.chunk.biases(bias, self.positions)

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The keys or values (b, Hkv, n, .) that the chunk sees."""
        return np.moveaxis(array[self.samples, :, self.places], 1, 2)

    def queries(self, array: np.ndarray) -> np.ndarray:
        """The chunk's rows (b, H, rows, .) of an array (B, H, Lq, .)."""
        return np.moveaxis(array[self.of[:, None], :, self.rows], 1, 2)

    def put(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Write the chunk's rows (b, H, rows, .) into an array (B, H, Lq, .)."""
        array[self.of[:, None], :, self.rows] = np.moveaxis(rows, 2, 1)

    def features(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The features of a call of plain attention for the chunk: of a tree the slopes are a bias (b, H,
        rows, tokens), since its positions are depths."""
        slopes = values.get("alibi_slopes")
        if self.tree is None or slopes is None:
            return values
        distance = self.at[:, :, None] - np.maximum(self.positions, 0)[:, None]
        return {**values, "alibi_slopes": -slopes[:, None, None] * distance[:, None]}


def views(case: Case) -> Iterator[View]:
    """What each chunk sees, in the order of the script."""
    for action, contents in played(case):
        if isinstance(action, Chunk) and action.asked:
            own = np.array(action.own)
            lengths = contents.lengths[own]
            longest = int(lengths.max())
            back = np.arange(longest) - (longest - lengths)[:, None]  # the last token at the end
            samples, places, positions = (
                x[own[:, None], np.maximum(back, 0)]
                for x in (contents.samples, contents.places, contents.positions)
            )
            positions, newest = np.where(back < 0, -1, positions), contents.newest(action)
            rows = contents.positions[newest], contents.begins[newest]
            mask = allowed(case, *rows, positions, action.tree)
            yield View(samples, places, positions, mask, action)


def allowed(
    case: Case, rows: np.ndarray, begins: np.ndarray, keys: np.ndarray, tree: Tree | None = None
) -> np.ndarray:
    """The mask (B, rows, keys) for positions of rows (B, rows), the first positions (B, rows) that they
    attend, and positions of keys (keys,) or (B, keys). True attends. Negative positions of keys are no
    keys. Of a tree the last keys are the nodes."""
    keys = np.atleast_2d(keys)
    behind, left = rows[:, :, None] - keys[:, None], case.option("left")
    attends = (behind >= 0) & (keys >= 0)[:, None]
    if left is not None:
        attends &= behind <= left
    if tree is not None:
        count = rows.shape[1]
        attends[:, :, keys.shape[1] - count :] &= tree.paths(count)
    return np.asarray(attends & (keys[:, None] >= begins[:, :, None]))


def pairs(case: Case) -> np.ndarray:
    """The tokens that each row attends, boolean (B, Lq, Lk): those of all histories by their places. Left
    padding attends no token."""
    return np.asarray(attended(case).any(2))


def attended(case: Case) -> np.ndarray:
    """The tokens that each row attends, boolean (B, Lq, B, Lk): row (b, q) and token (c, k)."""
    s = case.sizes
    seen = np.zeros((s.B, s.Lq, s.B, s.Lk), bool)
    for view in views(case):
        sample, row, key = np.nonzero(view.mask)
        of = view.samples[sample, key], view.places[sample, key]
        seen[view.of[sample], view.rows[sample, row], of[0], of[1]] = True
    return seen

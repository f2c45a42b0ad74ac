"""Views: for each chunk of a script the tokens that it may attend, their positions, and the mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.masks import Tree
from attention_conformance.suite.spec.operators.scripts import play_script
from attention_conformance.suite.spec.operators.steps import Chunk


@dataclass(frozen=True)
class View:
    """The tokens in the cache that one chunk may attend.

    - `samples`, `places`, `positions` (b, n): the tokens as in `Contents`, with the chunk's tokens last.
      Samples with fewer tokens have positions of -1 in front.
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
    def own_samples(self) -> np.ndarray:
        """The samples of the chunk (b,)."""
        return np.array(self.chunk.sample_ids)

    @property
    def rows(self) -> np.ndarray:
        """The index of each of the chunk's rows in the output, (b, rows)."""
        return self.chunk.rows

    @property
    def at(self) -> np.ndarray:
        """The positions of the rows (b, rows)."""
        return self.positions[:, -self.chunk.count :]

    def bias(self, bias: np.ndarray | None) -> np.ndarray | None:
        """Returns the chunk's part (b, H, rows, n) of the bias of a case; None for None."""
        return None if bias is None else self.chunk.biases(bias, self.positions)

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """Returns the tokens (b, Hkv, n, .) of the view, from keys or values (B, Hkv, Lk, .)."""
        return np.moveaxis(array[self.samples, :, self.places], 1, 2)

    def queries(self, array: np.ndarray) -> np.ndarray:
        """Returns the chunk's rows (b, H, rows, .) of an array (B, H, Lq, .)."""
        return np.moveaxis(array[self.own_samples[:, None], :, self.rows], 1, 2)

    def put(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Writes the chunk's rows (b, H, rows, .) into an array (B, H, Lq, .)."""
        array[self.own_samples[:, None], :, self.rows] = np.moveaxis(rows, 2, 1)

    def features(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the features, by name, of plain attention for the chunk. In a tree, whose positions are
        depths, the value of "alibi_slopes" is the bias (b, H, rows, tokens)."""
        slopes = values.get("alibi_slopes")
        if self.tree is None or slopes is None:
            return values
        distance = self.at[:, :, None] - np.maximum(self.positions, 0)[:, None]
        return {**values, "alibi_slopes": -slopes[:, None, None] * distance[:, None]}


def views(case: Case) -> Iterator[View]:
    """Yields the view of each chunk with queries, in the order of the script."""
    for action, contents in play_script(case):
        if isinstance(action, Chunk) and action.has_queries:
            sample_ids = np.array(action.sample_ids)
            lengths = contents.lengths[sample_ids]
            longest = int(lengths.max())
            slots = np.arange(longest) - (longest - lengths)[:, None]  # the last token at the end
            samples, places, positions = (
                x[sample_ids[:, None], np.maximum(slots, 0)]
                for x in (contents.samples, contents.places, contents.positions)
            )
            positions, newest = np.where(slots < 0, -1, positions), contents.newest(action)
            row_positions = contents.positions[newest], contents.begins[newest]
            mask = allowed(case, *row_positions, positions, action.tree)
            yield View(samples, places, positions, mask, action)


def allowed(
    case: Case, rows: np.ndarray, begins: np.ndarray, keys: np.ndarray, tree: Tree | None = None
) -> np.ndarray:
    """Returns the mask (B, rows, keys), True attends.
    - `rows` (B, rows): the positions of the rows
    - `begins` (B, rows): the first position that each row attends
    - `keys` (keys,) or (B, keys): the positions of the keys; negative ones are hidden
    - `tree`: the tree whose nodes are the last keys
    """
    keys = np.atleast_2d(keys)
    distance, left = rows[:, :, None] - keys[:, None], case.option("left")
    attends = (distance >= 0) & (keys >= 0)[:, None]
    if left is not None:
        attends &= distance <= left
    if tree is not None:
        count = rows.shape[1]
        attends[:, :, keys.shape[1] - count :] &= tree.paths(count)
    return np.asarray(attends & (keys[:, None] >= begins[:, :, None]))


def pairs(case: Case) -> np.ndarray:
    """Returns, boolean (B, Lq, Lk), whether a row attends token k of some sample: its own one, or one
    whose history it goes on with. Left padding attends no token."""
    return np.asarray(attended_pairs(case).any(2))


def attended_pairs(case: Case) -> np.ndarray:
    """Returns, boolean (B, Lq, B, Lk), whether row q of sample b attends token k of sample c."""
    s = case.sizes
    attended_pairs = np.zeros((s.B, s.Lq, s.B, s.Lk), bool)
    for view in views(case):
        sample, row, key = np.nonzero(view.mask)
        token = view.samples[sample, key], view.places[sample, key]
        attended_pairs[view.own_samples[sample], view.rows[sample, row], token[0], token[1]] = True
    return attended_pairs

"""Right split-KV decoding in NumPy: parts of the keys are attended and merged by log-sum-exps."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.merge import merge_weights
from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel

Part = tuple[np.ndarray, np.ndarray]
"""An answer (H, rows, Dv) over a part of the keys, and its log-sum-exp (H, rows)."""


class SplitKernel(PagedKernel):
    """Paged attention over parts of the keys. The parts have one size, the same in all samples, so short
    samples have no keys in the last parts."""

    count = 3
    """The number of parts."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        segments = self.segments(pack)
        size = -(-max(keys.stop - keys.start for _, keys in segments) // self.count)
        for rows, keys in segments:
            if rows.stop > rows.start:
                parts = [self.part(pack, rows, keys, n * size, size) for n in range(self.count)]
                out[rows] = self.merged(pack, parts).transpose(1, 0, 2)
        return out

    def part(self, pack: Paged, rows: slice, keys: slice, start: int, size: int) -> Part:
        """Returns the answer over `size` keys of a sample from its key `start` on, and its
        log-sum-exp."""
        end = min(keys.start + start + size, keys.stop)
        part_keys = slice(min(keys.start + start, keys.stop), end)
        scores, value = self.scores(pack, rows, part_keys)
        part_mask = self.part_mask(pack, rows, keys, start, part_keys.stop - part_keys.start)
        scores = np.where(part_mask, scores, -np.inf)
        anchor = self.anchor(scores.max(-1, keepdims=True, initial=-np.inf))
        exponentials = np.exp(scores - anchor)
        total = exponentials.sum(-1, keepdims=True)
        answer = self.quotient(exponentials @ value, total)
        lse = (anchor + np.log(total))[..., 0]
        return self.stored(answer, pack), self.stored_lse(lse, pack)

    def part_mask(
        self, pack: Paged, rows: slice, keys: slice, start: int, count: int
    ) -> np.ndarray:
        """Returns the mask (rows, count) of `count` keys of a sample from its key `start` on, True
        attends."""
        return self.allowed(pack, rows, keys)[:, start : start + count]

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        """Returns the number to subtract from scores: the maximum of the row, or 0 for a fully masked
        row."""
        return np.where(np.isneginf(largest), 0, largest).astype(largest.dtype)

    def quotient(self, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
        """Returns the answer of a part: weighted sums of values over the total weight; 0 without keys."""
        return np.asarray(sums / np.where(total == 0, 1, total))

    def stored(self, answer: np.ndarray, pack: Paged) -> np.ndarray:
        """Returns the answer of a part in the precision of the workspace."""
        return answer

    def stored_lse(self, lse: np.ndarray, pack: Paged) -> np.ndarray:
        """Returns the log-sum-exp of a part in the precision of the workspace."""
        return lse

    def merged(self, pack: Paged, parts: list[Part]) -> np.ndarray:
        """Returns the answer (H, rows, Dv) over all keys, from the parts of one sample."""
        lse = np.stack([part_lse for _, part_lse in parts])
        weights, _ = merge_weights(lse, self.largest_part(lse))
        answers = (answer for answer, _ in parts)
        return np.asarray(
            sum(weight[..., None] * part for weight, part in zip(weights, answers, strict=True))
        )

    def largest_part(self, lse: np.ndarray) -> np.ndarray:
        """Returns the largest log-sum-exp (H, rows) of the parts."""
        return np.asarray(lse.max(0))

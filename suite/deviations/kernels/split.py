"""Honest decoding with split keys in NumPy: parts of the keys of all samples, merged by log-sum-exps."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.merge import shares
from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel

Part = tuple[np.ndarray, np.ndarray]
"""An answer (H, rows, Dv) over a part of the keys, and its log-sum-exp (H, rows)."""


class SplitKernel(PagedKernel):
    """The keys of the longest sample are cut into parts, and those of all samples at the same places: a
    short sample has no key in the last parts."""

    count = 3
    """The number of parts."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        pairs = self.segments(pack)
        size = -(-max(keys.stop - keys.start for _, keys in pairs) // self.count)
        for rows, keys in pairs:
            if rows.stop > rows.start:
                parts = [self.part(pack, rows, keys, n * size, size) for n in range(self.count)]
                out[rows] = self.merged(pack, parts).transpose(1, 0, 2)
        return out

    def part(self, pack: Paged, rows: slice, keys: slice, start: int, size: int) -> Part:
        """The answer over the keys of a sample from `start` on, and its log-sum-exp."""
        end = min(keys.start + start + size, keys.stop)
        own = slice(min(keys.start + start, keys.stop), end)
        scores, value = self.scores(pack, rows, own)
        part_mask = self.part_mask(pack, rows, keys, start, own.stop - own.start)
        scores = np.where(part_mask, scores, -np.inf)
        anchor = self.anchor(scores.max(-1, keepdims=True, initial=-np.inf))
        raised = np.exp(scores - anchor)
        total = raised.sum(-1, keepdims=True)
        answer = self.quotient(raised @ value, total)
        lse = (anchor + np.log(total))[..., 0]
        return self.stored(answer, pack), self.stored_lse(lse, pack)

    def part_mask(
        self, pack: Paged, rows: slice, keys: slice, start: int, count: int
    ) -> np.ndarray:
        """The mask (rows, count) of the keys from `start` on."""
        return self.allowed(pack, rows, keys)[:, start : start + count]

    def anchor(self, largest: np.ndarray) -> np.ndarray:
        """What is subtracted from scores: 0 without keys."""
        return np.where(np.isneginf(largest), 0, largest).astype(largest.dtype)

    def quotient(self, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
        """The answer of a part: 0 without keys."""
        return np.asarray(sums / np.where(total == 0, 1, total))

    def stored(self, answer: np.ndarray, pack: Paged) -> np.ndarray:
        """The answer of a part as it is stored."""
        return answer

    def stored_lse(self, lse: np.ndarray, pack: Paged) -> np.ndarray:
        """The log-sum-exp of a part as it is stored."""
        return lse

    def merged(self, pack: Paged, parts: list[Part]) -> np.ndarray:
        """The answer over all keys."""
        lse = np.stack([own for _, own in parts])
        weights, _ = shares(lse, self.largest_part(lse))
        return np.asarray(
            sum(weight[..., None] * own for weight, (own, _) in zip(weights, parts, strict=True))
        )

    def largest_part(self, lse: np.ndarray) -> np.ndarray:
        """The largest log-sum-exp of each row, (H, rows)."""
        return np.asarray(lse.max(0))

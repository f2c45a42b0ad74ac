"""Honest variants of paged attention, and of writing into pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.deviations.kernels.paged_write import PagedWriteKernel
from attention_conformance.suite.spec.operators.paged import allowed
from tests.honest.operators import PackedEager


class PagedByPages(PagedKernel):
    """One page after the other, with a running maximum and a running sum."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        size = pack.pools[0].shape[1]
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        for rows, keys in self.segments(pack):
            count = rows.stop - rows.start
            shown = self.allowed(pack, rows, keys)
            shape = (pack.query.shape[1], count, 1)
            largest, total = np.full(shape, -np.inf, pack.work), np.zeros(shape, pack.work)
            sums = np.zeros((*shape[:2], out.shape[-1]), pack.work)
            for start in range(0, keys.stop - keys.start, size):
                page = slice(keys.start + start, min(keys.start + start + size, keys.stop))
                scores, value = self.scores(pack, rows, page)
                scores = np.where(shown[:, start : start + size], scores, -np.inf)
                now = np.maximum(largest, scores.max(-1, keepdims=True))
                base = np.where(np.isneginf(now), 0, now).astype(pack.work)
                old, new = np.exp(largest - base), np.exp(scores - base)
                total, sums = total * old + new.sum(-1, keepdims=True), sums * old + new @ value
                largest = now
            if count:
                out[rows] = (sums / total).transpose(1, 0, 2)
        return out


class PagedWholeTables(PagedKernel):
    """All slots of a sample's table are read, also behind its last key; scores there are the lowest
    number."""

    elections = {"nan-behind-last-key": "leaks"}

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        out = np.zeros((*pack.query.shape[:2], pack.value.shape[-1]))
        size = pack.pools[0].shape[1]
        for rows, keys in self.segments(pack):
            count, of = rows.stop - rows.start, keys.stop - keys.start
            if not count:
                continue
            pages = pack.slots[keys][::size] // size
            pages = np.append(pages, pages[-1])  # tables have one entry more
            key, value = (x[pages].reshape(-1, *x.shape[2:]) for x in pack.pools)
            shown = np.zeros((count, len(key)), bool)
            shown[:, :of] = allowed(pack.case, count, of)
            wide = replace(pack, key=key, value=value)
            scores, v = self.scores(wide, rows, slice(0, len(key)))
            lowest = np.finfo(scores.dtype).min
            weights = self.softmax(np.where(shown, scores, lowest), pack)
            out[rows] = (weights @ v).transpose(1, 0, 2)
        return out


class PagedEager(PackedEager, PagedKernel):
    """Scores and weights are stored in the dtype of the case."""


class WriteByPages(PagedWriteKernel):
    """Every page that gets a token is read, changed and written as a whole, the last page first."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        pages = flat.reshape(-1, size, *flat.shape[1:])
        for page in np.unique(slots[slots >= 0] // size)[::-1]:
            own = slots // size == page
            whole = pages[page].copy()
            whole[slots[own] % size] = tokens[own]
            pages[page] = whole

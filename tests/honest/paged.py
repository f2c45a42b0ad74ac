"""Honest variants of paged attention, and of writing into pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.spec.operators.paged import allowed
from tests.honest.operators import PackedEager


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

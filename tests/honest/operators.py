"""Honest variants of merges, of packed and paged attention, and of rotations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.declared import DeclaredRounding
from attention_conformance.suite.deviations.kernels.merge import MergeKernel, SplitKernel
from attention_conformance.suite.deviations.kernels.packed import Pack, PackedKernel
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.deviations.kernels.rotary import (
    RotaryCall,
    RotaryKernel,
    RotaryTableCast,
)
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.operators.paged import allowed
from tests.honest.rows import variant


class MergeRunningSum(MergeKernel):
    """Sums that are rescaled as a larger log-sum-exp comes, and divided at the end."""

    def merged(
        self, outputs: np.ndarray, lse: np.ndarray, fmt: DType
    ) -> tuple[np.ndarray, np.ndarray]:
        largest = np.full(lse.shape[1:], -np.inf, lse.dtype)
        output, total = np.zeros(outputs.shape[1:], lse.dtype), np.zeros(lse.shape[1:], lse.dtype)
        for o, one in zip(outputs, lse, strict=True):
            new = np.maximum(largest, one)
            base = np.where(np.isneginf(new), lse.dtype.type(0), new)
            old, weight = np.exp(largest - base), np.exp(one - base)
            output = output * old[..., None] + weight[..., None] * o
            total = total * old + weight
            largest = new
        base = np.where(np.isneginf(largest), lse.dtype.type(0), largest)
        divisor = np.where(total == 0, lse.dtype.type(1), total)
        return output / divisor[..., None], np.log(total) + base


class PackedAllPairs(PackedKernel):
    """All pairs at once; those that do not attend are set to -inf before the softmax."""

    elections = {"nan-in-other-segment": "others", "segment-without-keys": "nan"}

    def output(self, pack: Pack) -> np.ndarray:
        hidden = np.ones((len(pack.query), len(pack.key)), bool)
        for rows, keys in self.segments(pack):
            hidden[rows, keys] = ~self.allowed(pack, rows, keys)
        everything = slice(0, len(pack.query)), slice(0, len(pack.key))
        scores, v = self.scores(pack, *everything)
        weights = self.softmax(np.where(hidden, -np.inf, scores), pack)
        out: np.ndarray = (weights @ v).transpose(1, 0, 2)
        return out


class PackedEager(PackedKernel):
    """Scores and weights are stored in the dtype of the case."""

    numerics = "eager"

    def softmax(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        weights = super().softmax(round_to(scores, pack.fmt).astype(pack.work), pack)
        return round_to(weights, pack.fmt).astype(pack.work)


class RotaryByExponential(RotaryKernel):
    """Frequencies as exp(-e ln base), each step in float32."""

    def frequencies(self, call: RotaryCall) -> tuple[np.ndarray, Any]:
        if call.rotation.scaling != "none":
            return super().frequencies(call)
        size = call.rotation.size
        exponent = np.arange(0, size, 2).astype(call.work) / call.work(size)
        return np.exp(-exponent * np.log(call.work(call.rotation.base))), call.work(1)


class RotaryEager(RotaryTableCast):
    """Sine and cosine, products and sums stored in the query's dtype; half a turn by concatenation."""

    numerics = "eager"

    def rotate(self, call: RotaryCall) -> np.ndarray:
        size, (one, two) = call.rotation.size, self.pairs(call)
        cosine, sine = self.table(call)
        x = call.x.astype(call.work)
        swapped = x[..., :size].copy()
        swapped[..., one], swapped[..., two] = -x[..., two], x[..., one]
        both = [np.zeros((*x.shape[:-1], size), call.work) for _ in range(2)]
        for full, part in zip(both, (cosine, -sine if call.inverse else sine), strict=True):
            full[..., one] = full[..., two] = part
        products = [
            round_to(a * b, call.fmt).astype(call.work)
            for a, b in zip((x[..., :size], swapped), both, strict=True)
        ]
        return np.concatenate([products[0] + products[1], x[..., size:]], -1)


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


SPLIT: dict[str, Any] = {
    "rounding": DeclaredRounding(stored_parts=tuple(DTYPES)),
    "stored": lambda right, answer, pack: round_to(answer, pack.fmt).astype(answer.dtype),
}
"""Answers of parts are stored in the dtype of the query."""

ROWS = (
    variant("paged-eager", (PackedEager, PagedKernel)),
    variant("split-stored", SplitKernel, count=8, **SPLIT),
    # of short samples every key is a part, whose answer is a value
    variant("split-single-keys", SplitKernel, count=40, **SPLIT),
)

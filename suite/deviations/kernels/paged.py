"""Right paged attention in NumPy: keys are gathered from their pages, and attended as packed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.backends.memory import paged_arrays
from attention_conformance.suite.deviations.kernels.packed import Pack, PackedKernel
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import slots_first
from attention_conformance.suite.spec.operators.packed import cumulative_lengths
from attention_conformance.suite.spec.operators.paged import (
    FEATURES,
    PAGED,
    allowed,
    refuse_malformed,
)


@dataclass(frozen=True)
class Paged(Pack):
    """One call, with the keys and values of all samples packed.

    - `slots` (Lk,): the slot of every key in the flat pool, page * S + slot
    - `pools`: P pages of S slots, of keys and of values, (P, S, Hkv, .)
    """

    slots: np.ndarray
    case: Case
    pools: tuple[np.ndarray, np.ndarray]


class PagedKernel(PackedKernel):
    """Pages are gathered by the table, then packed attention in float32; only the output is rounded."""

    operator = PAGED
    features = FEATURES | {"length-arrays"}
    elections = {"nan-behind-last-key": "blocked"}

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return paged_arrays(self.backend, inputs)

    def constants(self, inputs: Inputs) -> tuple[Any, ...]:
        return (inputs.case.id,)

    def packed_call(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        """Returns the call with the keys and values of all samples packed. Raises ValueError for a
        malformed problem."""
        case, (P, S, *_) = inputs.case, self.pool(arrays["key"], inputs.case).shape
        self.validate(arrays, case)
        table, lengths = arrays["page_table"], self.key_counts(arrays["key_lengths"], S)
        by_sample = [self.slots(table, n, int(length), S) for n, length in enumerate(lengths)]
        slots = np.concatenate([np.zeros(0, int), *by_sample]).clip(0, P * S - 1)
        pools = self.pools(arrays, case)
        key, value = (x.reshape(P * S, *x.shape[2:])[slots] for x in pools)
        key_bounds = cumulative_lengths([len(own_slots) for own_slots in by_sample])
        return Paged(
            arrays["query"], key, value, arrays["query_offsets"], key_bounds, case.option("alignment"),
            inputs.effective_scale, inputs.dtype, slots, case, pools,
        )  # fmt: skip

    def validate(self, arrays: dict[str, np.ndarray], case: Case) -> None:
        """Raises ValueError for a malformed problem."""
        names = ("query_offsets", "key_lengths", "page_table")
        refuse_malformed(
            arrays["query"], *self.pools(arrays, case), *(arrays[name] for name in names)
        )

    def pools(self, arrays: dict[str, np.ndarray], case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pools of keys and values, (P, S, Hkv, .)."""
        return self.pool(arrays["key"], case), self.pool(arrays["value"], case)

    def pool(self, array: np.ndarray, case: Case) -> np.ndarray:
        """Returns a pool in the layout (P, S, Hkv, .)."""
        return slots_first(case, array)

    def key_counts(self, lengths: np.ndarray, size: int) -> np.ndarray:
        """Returns the number of keys that each sample reads. A page has `size` slots."""
        return lengths

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        """Returns the slots (length,) of a sample's keys in the flat pool. A page has `size` slots."""
        keys = np.arange(length)
        return table[sample][np.minimum(keys // size, table.shape[1] - 1)] * size + keys % size

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        assert isinstance(pack, Paged)
        return allowed(pack.case, rows.stop - rows.start, keys.stop - keys.start)

    def scores(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(pack, Paged)
        scores, value = super().scores(pack, rows, keys)
        cap = pack.case.option("softcap")
        if cap is not None:
            scores = np.tanh(scores / pack.work(cap)) * pack.work(cap)
        return scores, value

"""Faults of long rows, in one dtype: at one key somewhere among many."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.deviation import fault
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Fused, Kernel

FAMILY = "tiles"


class LongRows(Kernel):
    """A kernel whose fault needs more than `longer` keys, at most `longest`, and the dtype `only`."""

    longer = 512
    longest = 2**20
    only = "f32"

    def at_fault(self, call: Call) -> bool:
        """Whether the call meets the fault."""
        return self.longer < call.sizes.Lk <= self.longest and call.fmt.name == self.only

    def place(self, call: Call) -> int:
        """The key that the fault is about: neither at an end nor at a multiple of a tile."""
        return int(call.sizes.Lk * 0.618)


class RowsOf2049(LongRows):
    """A kernel whose fault needs exactly 2049 keys, in bfloat16."""

    longer, longest, only = 2048, 2049, "bf16"


skipped = fault(
    "long_rows",
    "between two tiles or splits of a long row one key is skipped: see `start` and `stop` of each",
)


class Dropped(LongRows):
    """One key is not seen."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if self.at_fault(call):
            scores[..., self.place(call)] = -np.inf
        return scores


@skipped
class LongRowsDropAKey(Dropped):
    """In float32 one key of a row of more than 512 is not seen."""


@skipped
class LongRowsDropAKeyBfloat16(Dropped, Fused):
    """In bfloat16 one key of a row of more than 512 is not seen."""

    only = "bf16"


@skipped
class LongRowsDropAKeyFloat16(Dropped, Fused):
    """In float16 one key of a row of more than 512 is not seen."""

    only = "f16"


@skipped
class VeryLongRowsDropAKey(Dropped):
    """In float32 one key of a row of more than 4096 is not seen."""

    longer = 4096


@skipped
class VeryLongRowsDropAKeyBfloat16(Dropped, Fused):
    """In bfloat16 one key of a row of more than 4096 is not seen."""

    longer, only = 4096, "bf16"


@skipped
class RowsOf2049DropAKey(RowsOf2049, Dropped, Fused):
    """In bfloat16 one key of 2049 is not seen."""


@skipped
class RowsOf2049DropAKeyOfStoredScores(RowsOf2049, Dropped, Eager):
    """In bfloat16 one key of 2049 is not seen, in a kernel that stores its scores."""


overlapping = fault(
    "long_rows",
    "two tiles or splits of a long row overlap by one key: see `start` and `stop` of each",
)


class Doubled(LongRows):
    """One key counts twice."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        scores = super().hide(scores, allowed, call)
        if self.at_fault(call):
            scores[..., self.place(call)] += call.work(np.log(2))
        return scores


@overlapping
class LongRowsCountAKeyTwice(Doubled):
    """In float32 one key of a row of more than 512 counts twice."""


@overlapping
class LongRowsCountAKeyTwiceBfloat16(Doubled, Fused):
    """In bfloat16 one key of a row of more than 512 counts twice."""

    only = "bf16"


@overlapping
class RowsOf2049CountAKeyTwice(RowsOf2049, Doubled, Fused):
    """In bfloat16 one key of 2049 counts twice."""


@overlapping
class RowsOf2049CountAKeyTwiceOfStoredScores(RowsOf2049, Doubled, Eager):
    """In bfloat16 one key of 2049 counts twice, in a kernel that stores its scores."""


exchanged = fault(
    "long_rows", "k is read in another order (pages, swizzled lanes) than v; index both alike"
)


class Exchanged(LongRows):
    """Two keys are exchanged, their values are not."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        scores = super().scores(query, key, call)
        if self.at_fault(call):
            one = self.place(call)
            scores[..., [one, one + 7]] = scores[..., [one + 7, one]]
        return scores


@exchanged
class LongRowsExchangeKeys(Exchanged):
    """In float32 two keys of a row of more than 512 are exchanged, and their values are not."""


@exchanged
class LongRowsExchangeKeysBfloat16(Exchanged, Fused):
    """In bfloat16 two keys of a row of more than 512 are exchanged, and their values are not."""

    only = "bf16"


@exchanged
class VeryLongRowsExchangeKeys(Exchanged):
    """In float32 two keys of a row of more than 4096 are exchanged, and their values are not."""

    longer = 4096


@exchanged
class RowsOf2049ExchangeKeys(RowsOf2049, Exchanged, Fused):
    """In bfloat16 two keys of 2049 are exchanged, and their values are not."""


@exchanged
class RowsOf2049ExchangeKeysOfStoredScores(RowsOf2049, Exchanged, Eager):
    """In bfloat16 two keys of 2049 are exchanged, and their values are not; scores are stored."""

"""Faults of writing into pages."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.paged_write import PagedWriteKernel
from attention_conformance.suite.faults.layouts import in_order
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "paged"


@fault("values", "`slot + 1`, lengths that already count the new token")
class WriteSlotLate(PagedWriteKernel):
    """Every token is written one slot late."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        later = np.where(slots >= 0, np.minimum(slots + 1, len(flat) - 1), slots)
        super().put(flat, later, tokens, size)


@fault("values", "`cache[slots]` with negative slots, which count from the end; skip them")
class WriteNegativeWraps(PagedWriteKernel):
    """Tokens with a negative slot are written to slots that are counted from the end of the pool."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        flat[slots] = tokens


@fault("values", "`slots.clamp(min=0)`; slot 0 is a slot as any other")
class WriteNegativeClamped(PagedWriteKernel):
    """Tokens with a negative slot are written to slot 0."""

    def slots(self, mapping: np.ndarray, size: int) -> np.ndarray:
        return np.maximum(mapping, 0)


@fault("inner_layouts", "`slot_mapping.data_ptr()[n]`; take its stride", family="layout")
class WriteSlotsInOrder(PagedWriteKernel):
    """Slots are read as if they were contiguous."""

    def slots(self, mapping: np.ndarray, size: int) -> np.ndarray:
        return in_order(mapping)


@fault("values", "`slot_mapping > 0`; slot 0 is a slot as any other")
class WriteFirstSlotSkipped(PagedWriteKernel):
    """A token with slot 0 is skipped."""

    def slots(self, mapping: np.ndarray, size: int) -> np.ndarray:
        return np.where(mapping > 0, mapping, -1)


@fault("values", "`slot < num_slots - 1`; the last slot of the pool is one, too")
class WriteLastSlotSkipped(PagedWriteKernel):
    """A token with the last slot of the pool is skipped."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        super().put(flat, np.where(slots < len(flat) - 1, slots, -1), tokens, size)


@fault("values", "`D // 8` vectors of 8 components are stored; store those behind them, too")
class WriteVectorsAlone(PagedWriteKernel):
    """Components behind the last whole vector of 8 are not written, if there is a whole one."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        whole = flat.shape[-1] // 8 * 8 or flat.shape[-1]
        super().put(flat[..., :whole], slots, tokens[..., :whole], size)


@fault("values", "`slot == -1` is skipped alone; every negative slot is")
class WriteOneSignAlone(PagedWriteKernel):
    """Of negative slots only -1 is skipped; others are counted from the end of the pool."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        flat[slots[slots != -1]] = tokens[slots != -1]


@fault("values", "`slots[slots >= 0]` for the slots, and `tokens[: len(slots)]`; filter both")
class WriteSkippedShiftTokens(PagedWriteKernel):
    """Skipped tokens are left out of the slots alone, so that later tokens take the slots of others."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        kept = slots[slots >= 0]
        flat[kept] = tokens[: len(kept)]


@fault(
    "values",
    "a page that is allocated for every chunk and zeroed; keep what an earlier chunk wrote",
)
class WritePageCleared(PagedWriteKernel):
    """A page is cleared before the first token is written into it."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        pages = np.unique(slots[slots >= 0] // size)
        flat.reshape(-1, size, *flat.shape[1:])[pages] = 0.0
        super().put(flat, slots, tokens, size)


@fault("values", "whole vectors of slots stored at a page's tail; mask the store")
class WriteTailOverwritten(PagedWriteKernel):
    """The slot behind the last token of a call is overwritten, if its page has one."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        if len(slots) and (slots[-1] + 1) % size and slots[-1] >= 0:
            flat[slots[-1] + 1] = tokens[-1]
        super().put(flat, slots, tokens, size)


@fault("values", "`slots[0] + arange(n)`; a chunk crosses pages, and every token has its slot")
class WriteConsecutively(PagedWriteKernel):
    """Tokens are written one behind the other from the slot of the first one."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        row = slots[:1] + np.arange(len(slots))
        super().put(flat, np.where(slots >= 0, row % len(flat), slots), tokens, size)


@fault("values", "one store per page; loop over the tokens of a page")
class WriteLastTokenOfPages(PagedWriteKernel):
    """Of several tokens for one page only the last is written."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        last = {slot // size: n for n, slot in enumerate(slots) if slot >= 0}
        kept = np.array(sorted(last.values()), int)
        super().put(flat, slots[kept], tokens[kept], size)


@fault("values", "`cache.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it")
class WriteLayoutMistaken(PagedWriteKernel):
    """Pages with heads before slots are written as if slots came first."""

    def paged(self, cache: np.ndarray, case: Case) -> np.ndarray:
        return cache.reshape(super().paged(cache, case).shape)

    def back(self, paged: np.ndarray, cache: np.ndarray, case: Case) -> np.ndarray:
        return paged.reshape(cache.shape)


@fault("values", "`value_cache[slots] = key`, a line copied and half changed")
class WriteValuesForgotten(PagedWriteKernel):
    """Values are not written; only keys are."""

    def pool(self, name: str, arrays: dict[str, np.ndarray], case: Case, fmt: DType) -> np.ndarray:
        return arrays["value_cache"] if name == "value" else super().pool(name, arrays, case, fmt)


@fault("written_bits", "`nan_to_num` of the tokens; NaN is written, too", family="numerics")
class WriteNanAsZero(PagedWriteKernel):
    """NaN among the tokens is written as 0."""

    def tokens(self, tokens: np.ndarray, fmt: DType) -> np.ndarray:
        return np.where(np.isnan(tokens), 0.0, tokens)


@fault("written_bits", "`0 + token` for a copy; -0.0 keeps its sign", family="numerics")
class WriteSignOfZeroLost(PagedWriteKernel):
    """-0.0 is written as 0.0."""

    def tokens(self, tokens: np.ndarray, fmt: DType) -> np.ndarray:
        return tokens + 0.0


@fault("written_bits", "`cache * (1 - mask) + token * mask`; take one, since 0 * nan is NaN")
class WriteByFactor(PagedWriteKernel):
    """The old numbers of slots that are written are added times 0, so that NaN comes through."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        with np.errstate(invalid="ignore"):
            old = flat[slots] * 0.0
        super().put(flat, slots, tokens + old, size)


@fault("values", "a cache dtype of 16 bits in between", family="numerics")
class WriteThroughBfloat16(PagedWriteKernel):
    """Tokens pass through bfloat16 on their way."""

    def tokens(self, tokens: np.ndarray, fmt: DType) -> np.ndarray:
        return round_to(tokens, DTYPES["bf16"])


@fault("written_in_turn", "a page that is known by its content is complete; its free slots are not")
class WriteKnownPagesKept(PagedWriteKernel):
    """A page that an earlier call has written is known by its content, and is not written again."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        known: set[bytes] = self.__dict__.setdefault("known", set())
        pages = flat.reshape(-1, size, *flat.shape[1:])
        kept = np.array([page.tobytes() in known for page in pages])
        super().put(flat, np.where(kept[slots // size], -1, slots), tokens, size)
        known.update(pages[page].tobytes() for page in np.unique(slots[slots >= 0] // size))


@fault("gradients", "the old pool's gradient is passed on whole; slots that are written take none")
class WriteGradientPassesThrough(PagedWriteKernel):
    """The old pool has a gradient in slots that are overwritten, too."""

    def gradients(
        self, arrays: dict[str, np.ndarray], cotangent: np.ndarray, case: Case
    ) -> dict[str, np.ndarray]:
        return {**super().gradients(arrays, cotangent, case), "key_cache": cotangent}


@fault("bad_problem", "`slot % num_slots`; raise for slots beyond the pool")
class WriteBeyondWraps(PagedWriteKernel):
    """A slot beyond the pool is counted from its beginning."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        super().put(flat, np.where(slots >= 0, slots % len(flat), slots), tokens, size)


@fault("bad_problem", "a loop over `slot_mapping`; raise unless every token has a slot")
class WriteTokensCut(PagedWriteKernel):
    """Tokens without a slot are left out silently."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        super().put(flat, slots, tokens[: len(slots)], size)

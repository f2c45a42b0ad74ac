"""Faults of writing into pages."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.paged_write import PagedWriteKernel
from attention_conformance.suite.faults.layouts import in_order
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to

FAMILY = "paged"


def write_slot_late(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    later = np.where(slots >= 0, np.minimum(slots + 1, len(flat) - 1), slots)
    right.put(flat, later, tokens, size)


def write_negative_wraps(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    flat[slots] = tokens


def write_last_slot_skipped(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    right.put(flat, np.where(slots < len(flat) - 1, slots, -1), tokens, size)


def write_vectors_alone(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    whole = flat.shape[-1] // 8 * 8 or flat.shape[-1]
    right.put(flat[..., :whole], slots, tokens[..., :whole], size)


def write_one_sign_alone(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    flat[slots[slots != -1]] = tokens[slots != -1]


def write_skipped_shift_tokens(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    kept = slots[slots >= 0]
    flat[kept] = tokens[: len(kept)]


def write_page_cleared(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    pages = np.unique(slots[slots >= 0] // size)
    flat.reshape(-1, size, *flat.shape[1:])[pages] = 0.0
    right.put(flat, slots, tokens, size)


def write_tail_overwritten(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    if len(slots) and (slots[-1] + 1) % size and slots[-1] >= 0:
        flat[slots[-1] + 1] = tokens[-1]
    right.put(flat, slots, tokens, size)


def write_consecutively(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    row = slots[:1] + np.arange(len(slots))
    right.put(flat, np.where(slots >= 0, row % len(flat), slots), tokens, size)


def write_last_token_of_pages(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    last = {slot // size: n for n, slot in enumerate(slots) if slot >= 0}
    kept = np.array(sorted(last.values()), int)
    right.put(flat, slots[kept], tokens[kept], size)


def write_values_forgotten(
    right: PagedWriteKernel, name: str, arrays: dict[str, np.ndarray], case: Case, fmt: DType
) -> np.ndarray:
    return arrays["value_cache"] if name == "value" else right.pool(name, arrays, case, fmt)


def write_by_factor(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    with np.errstate(invalid="ignore"):
        old = flat[slots] * 0.0
    right.put(flat, slots, tokens + old, size)


@fault("written_in_turn", "a page that is known by its content is complete; its free slots are not")
class WriteKnownPagesKept(PagedWriteKernel):
    """A page that an earlier call has written is known by its content, and is not written again."""

    def put(self, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int) -> None:
        known: set[bytes] = self.__dict__.setdefault("known", set())
        pages = flat.reshape(-1, size, *flat.shape[1:])
        kept = np.array([page.tobytes() in known for page in pages])
        super().put(flat, np.where(kept[slots // size], -1, slots), tokens, size)
        known.update(pages[page].tobytes() for page in np.unique(slots[slots >= 0] // size))


def write_gradient_passes_through(
    right: PagedWriteKernel, arrays: dict[str, np.ndarray], cotangent: np.ndarray, case: Case
) -> dict[str, np.ndarray]:
    return {**right.gradients(arrays, cotangent, case), "key_cache": cotangent}


def write_beyond_wraps(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    right.put(flat, np.where(slots >= 0, slots % len(flat), slots), tokens, size)


def write_tokens_cut(
    right: PagedWriteKernel, flat: np.ndarray, slots: np.ndarray, tokens: np.ndarray, size: int
) -> None:
    right.put(flat, slots, tokens[: len(slots)], size)


row = partial(deviation, family=FAMILY, right=PagedWriteKernel)

DEVIATIONS = [
    row("write-slot-late", "values", "Every token is written one slot late.",
        "`slot + 1`, lengths that already count the new token", put=write_slot_late),
    row("write-negative-wraps", "values",
        "Tokens with a negative slot are written to slots that are counted from the end of the pool.",
        "`cache[slots]` with negative slots, which count from the end; skip them",
        put=write_negative_wraps),
    row("write-negative-clamped", "values", "Tokens with a negative slot are written to slot 0.",
        "`slots.clamp(min=0)`; slot 0 is a slot as any other",
        slots=lambda right, mapping, size: np.maximum(mapping, 0)),
    row("write-slots-in-order", "inner_layouts", "Slots are read as if they were contiguous.",
        "`slot_mapping.data_ptr()[n]`; take its stride", family="layout",
        slots=lambda right, mapping, size: in_order(mapping)),
    row("write-first-slot-skipped", "values", "A token with slot 0 is skipped.",
        "`slot_mapping > 0`; slot 0 is a slot as any other",
        slots=lambda right, mapping, size: np.where(mapping > 0, mapping, -1)),
    row("write-last-slot-skipped", "values", "A token with the last slot of the pool is skipped.",
        "`slot < num_slots - 1`; the last slot of the pool is one, too",
        put=write_last_slot_skipped),
    row("write-vectors-alone", "values",
        "Components behind the last whole vector of 8 are not written, if there is a whole one.",
        "`D // 8` vectors of 8 components are stored; store those behind them, too",
        put=write_vectors_alone),
    row("write-one-sign-alone", "values",
        "Of negative slots only -1 is skipped; others are counted from the end of the pool.",
        "`slot == -1` is skipped alone; every negative slot is", put=write_one_sign_alone),
    row("write-skipped-shift-tokens", "values",
        "Skipped tokens are left out of the slots alone, so that later tokens take the slots of "
        "others.", "`slots[slots >= 0]` for the slots, and `tokens[: len(slots)]`; filter both",
        put=write_skipped_shift_tokens),
    row("write-page-cleared", "values",
        "A page is cleared before the first token is written into it.",
        "a page that is allocated for every chunk and zeroed; keep what an earlier chunk wrote",
        put=write_page_cleared),
    row("write-tail-overwritten", "values",
        "The slot behind the last token of a call is overwritten, if its page has one.",
        "whole vectors of slots stored at a page's tail; mask the store",
        put=write_tail_overwritten),
    row("write-consecutively", "values",
        "Tokens are written one behind the other from the slot of the first one.",
        "`slots[0] + arange(n)`; a chunk crosses pages, and every token has its slot",
        put=write_consecutively),
    row("write-last-token-of-pages", "values",
        "Of several tokens for one page only the last is written.",
        "one store per page; loop over the tokens of a page", put=write_last_token_of_pages),
    row("write-layout-mistaken", "values",
        "Pages with heads before slots are written as if slots came first.",
        "`cache.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it",
        paged=lambda right, cache, case: cache.reshape(right.paged(cache, case).shape),
        back=lambda right, paged, cache, case: paged.reshape(cache.shape)),
    row("write-values-forgotten", "values", "Values are not written; only keys are.",
        "`value_cache[slots] = key`, a line copied and half changed", pool=write_values_forgotten),
    row("write-nan-as-zero", "written_bits", "NaN among the tokens is written as 0.",
        "`nan_to_num` of the tokens; NaN is written, too", family="numerics",
        tokens=lambda right, tokens, fmt: np.where(np.isnan(tokens), 0.0, tokens)),
    row("write-sign-of-zero-lost", "written_bits", "-0.0 is written as 0.0.",
        "`0 + token` for a copy; -0.0 keeps its sign", family="numerics",
        tokens=lambda right, tokens, fmt: tokens + 0.0),
    row("write-by-factor", "written_bits",
        "The old numbers of slots that are written are added times 0, so that NaN comes through.",
        "`cache * (1 - mask) + token * mask`; take one, since 0 * nan is NaN", put=write_by_factor),
    row("write-through-bfloat16", "values", "Tokens pass through bfloat16 on their way.",
        "a cache dtype of 16 bits in between", family="numerics",
        tokens=lambda right, tokens, fmt: round_to(tokens, DTYPES["bf16"])),
    row("write-gradient-passes-through", "gradients",
        "The old pool has a gradient in slots that are overwritten, too.",
        "the old pool's gradient is passed on whole; slots that are written take none",
        gradients=write_gradient_passes_through),
    row("write-beyond-wraps", "bad_problem",
        "A slot beyond the pool is counted from its beginning.",
        "`slot % num_slots`; raise for slots beyond the pool", put=write_beyond_wraps),
    row("write-tokens-cut", "bad_problem", "Tokens without a slot are left out silently.",
        "a loop over `slot_mapping`; raise unless every token has a slot", put=write_tokens_cut),
]  # fmt: skip

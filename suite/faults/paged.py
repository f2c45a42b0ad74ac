"""Faults of paged attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.packed import Pack, Pair
from attention_conformance.suite.faults.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.faults.layouts import in_order
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import allowed_pairs

FAMILY = "paged"


def paged_table_of_another(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return right.slots(np.roll(table, -1, 0), sample, length, size)


@fault("layouts", "`b * T + j` in the memory of the table; take its strides", family="layout")
class PagedTableInOrder(PagedKernel):
    """The table is read as if its rows were contiguous."""

    number = "page_table"

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        return super().gathered({**arrays, self.number: in_order(arrays[self.number])}, inputs)


def paged_first_entry_alone(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return table[sample, 0] * size + np.arange(length)


def paged_table_without_gaps(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return right.slots(np.resize(table[table >= 0], table.shape), sample, length, size)


def paged_layout_by_shape(right: PagedKernel, array: np.ndarray, case: Case) -> np.ndarray:
    return array if array.shape[1] == array.shape[2] else right.pool(array, case)


def paged_slot_late(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return right.slots(table, sample, length, size) + 1


def paged_last_page_missing(right: PagedKernel, lengths: np.ndarray, size: int) -> np.ndarray:
    return np.where(lengths >= size, lengths // size * size, lengths)


def paged_full_page_missing(right: PagedKernel, lengths: np.ndarray, size: int) -> np.ndarray:
    return np.where((lengths % size == 0) & (lengths > size), lengths - size, lengths)


def paged_aligned_first(right: PagedKernel, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
    return allowed_pairs(
        rows.stop - rows.start, keys.stop - keys.start, pack.alignment
    )  # "causal" of packed attention is top-left


def paged_aligned_at_the_page(
    right: PagedKernel, pack: Pack, rows: slice, keys: slice
) -> np.ndarray:
    assert isinstance(pack, Paged)
    if pack.alignment == "all":
        return right.allowed(pack, rows, keys)
    count, of, size = rows.stop - rows.start, keys.stop - keys.start, pack.pools[0].shape[1]
    return np.tri(count, of, -(-of // size) * size - count, dtype=bool)


def paged_size_assumed(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return right.slots(table, sample, length, 16)


@fault("values", "`cache.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it")
class PagedLayoutMistaken(PagedKernel):
    """Pages with heads before slots are read as if slots came first."""

    def pool(self, array: np.ndarray, case: Case) -> np.ndarray:
        right = super().pool(array, case)
        return array.reshape(right.shape)


@fault("values", "`v_cache[k_block]` computed without the table; both pools have one table")
class PagedValuesInOrder(PagedKernel):
    """Values are read from pages 0, 1 and so on; only keys follow the table."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        right = super().gathered(arrays, inputs)
        value = right.pools[1].reshape(-1, *right.pools[1].shape[2:])
        return replace(right, value=value[: len(right.slots)])


def paged_window_of_the_chunk(
    right: PagedKernel, pack: Pack, rows: slice, keys: slice
) -> np.ndarray:
    assert isinstance(pack, Paged)
    left = pack.case.option("left")
    if left is None:
        return right.allowed(pack, rows, keys)
    count, of = rows.stop - rows.start, keys.stop - keys.start
    return allowed_pairs(count, of, "causalbr") & ~np.tri(count, of, -left - 1, dtype=bool)


def paged_window_short(right: PagedKernel, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
    assert isinstance(pack, Paged)
    left = pack.case.option("left")
    if not left:
        return right.allowed(pack, rows, keys)
    return right.allowed(replace(pack, case=pack.case.with_options(left=left - 1)), rows, keys)


def paged_idle_samples_left_out(right: PagedKernel, pack: Pack) -> list[Pair]:
    segments = right.segments(pack)
    rows = [rows for rows, _ in segments if rows.stop > rows.start]
    full = [keys for _, keys in segments if keys.stop > keys.start]
    return list(zip(rows, full[: len(rows)], strict=False))


def paged_shared_pages_once(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    own = right.slots(table, sample, length, size)
    before = [table[n, : -(-length // size)] for n in range(sample)]
    new = own[~np.isin(own // size, np.concatenate([np.zeros(0, int), *before]))]
    return new if len(new) else own


def paged_decoding_uncapped(
    right: PagedKernel, pack: Pack, rows: slice, keys: slice
) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(pack, Paged)
    if rows.stop - rows.start == 1:
        pack = replace(pack, case=pack.case.with_options(softcap=None))
    return right.scores(pack, rows, keys)


def paged_free_pages_by_factor(right: PagedKernel, pack: Pack) -> np.ndarray:
    assert isinstance(pack, Paged)
    out: np.ndarray = right.output(pack) + 0.0 * pack.pools[1].sum()
    return out


def paged_tail_by_factor(right: PagedKernel, pack: Pack) -> np.ndarray:
    assert isinstance(pack, Paged)
    size = pack.pools[1].shape[1]
    page, place = np.divmod(pack.slots[pack.keys[1:] - 1], size)
    behind = pack.pools[1][page[place < size - 1], -1]
    out: np.ndarray = right.output(pack) + 0.0 * behind.sum()
    return out


def paged_scaled_by_the_pool(right: PagedKernel, pack: Pack) -> np.ndarray:
    assert isinstance(pack, Paged)
    largest = pack.work(1 + np.nan_to_num(np.abs(pack.pools[1]), posinf=0).mean())
    value = (pack.value.astype(pack.work) / largest).astype(pack.work)
    out: np.ndarray = right.output(replace(pack, value=value)) * largest
    return out


@fault(
    "invariant_pages",
    "`if (diff(block_table) == 1).all()` reads the pool as one array, gaps and all",
)
class PagedAscendingAsOne(PagedKernel):
    """If the pages of all samples follow each other, keys are taken to lie without gaps."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        right = super().gathered(arrays, inputs)
        pages = right.slots // right.pools[0].shape[1]
        if (np.diff(pages) < 0).any() or (np.diff(pages) > 1).any():
            return right
        slots = right.slots[0] + np.arange(len(right.slots))
        key, value = (x.reshape(-1, *x.shape[2:])[slots] for x in right.pools)
        return replace(right, key=key, value=value)


@fault("stateless", "the table of the first call of a shape is kept", family="state")
class PagedTableKept(PagedKernel):
    """The page table of the first call of a shape serves all later ones."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        first = kept.setdefault((table.shape, size), table.copy())
        return super().slots(first, sample, length, size)


def paged_shared_gradient_overwritten(
    right: PagedKernel, tokens: np.ndarray, pack: Paged, pool: np.ndarray
) -> np.ndarray:
    _, last = np.unique(pack.slots[::-1], return_index=True)
    last = len(pack.slots) - 1 - last
    return right.put_back(tokens[last], replace(pack, slots=pack.slots[last]), pool)


def paged_gradient_of_first_pages(
    right: PagedKernel, tokens: np.ndarray, pack: Paged, pool: np.ndarray
) -> np.ndarray:
    place = np.arange(len(tokens)) - np.repeat(pack.keys[:-1], np.diff(pack.keys))
    first = (place < pool.shape[1])[:, None, None]
    return right.put_back(np.where(first, tokens, 0.0), pack, pool)


def paged_page_clamped(right: PagedKernel, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
    pages = len(arrays["key"])
    table = arrays["page_table"].clip(0, pages - 1)
    return right.gathered({**arrays, "page_table": table}, inputs)


def paged_page_from_the_end(
    right: PagedKernel, arrays: dict[str, np.ndarray], inputs: Inputs
) -> Paged:
    table, pages = arrays["page_table"], len(arrays["key"])
    table = np.where(table < 0, table + pages, table)
    return right.gathered({**arrays, "page_table": table}, inputs)


def paged_row_overrun_refuse(right: PagedKernel, arrays: dict[str, np.ndarray], case: Case) -> None:
    slots = arrays["page_table"].shape[1] * right.pools(arrays, case)[0].shape[1]
    right.refuse({**arrays, "key_lengths": arrays["key_lengths"].clip(max=slots)}, case)


def paged_row_overrun_slots(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    keys, flat = np.arange(length), table.ravel()
    entries = np.minimum(sample * table.shape[1] + keys // size, len(flat) - 1)
    return flat[entries] * size + keys % size


def paged_length_from_the_end(
    right: PagedKernel, arrays: dict[str, np.ndarray], inputs: Inputs
) -> Paged:
    lengths = arrays["key_lengths"]
    slots = arrays["page_table"].shape[1] * inputs.letters["s"]
    lengths = np.where(lengths < 0, lengths + slots, lengths)
    return right.gathered({**arrays, "key_lengths": lengths}, inputs)


def paged_offsets_unchecked(right: PagedKernel, arrays: dict[str, np.ndarray], case: Case) -> None:
    offsets = np.maximum.accumulate(arrays["query_offsets"])
    right.refuse({**arrays, "query_offsets": offsets}, case)


row = partial(deviation, family=FAMILY, right=PagedKernel)

DEVIATIONS = [
    row("paged-table-of-another", "values", "A sample reads the pages of the next sample.",
        "`block_table[b + 1]`, or a row counted among samples with queries alone",
        slots=paged_table_of_another),
    row("paged-lengths-in-order", "inner_layouts",
        "The numbers of keys are read as if they were contiguous.",
        "`seqused_k.data_ptr()[b]`; take its stride", family="layout", right=PagedTableInOrder,
        facts={"number": "key_lengths"}),
    row("paged-first-entry-alone", "values",
        "Only the first entry of a sample's table is read; later pages are taken to lie behind it.",
        "`block_table[0, 0] + j // page_size`; every page has its own entry",
        slots=paged_first_entry_alone),
    row("paged-table-without-gaps", "election",
        "Page numbers of -1 are left out, and the others are read as a table with whole rows.",
        "`block_table[block_table >= 0]`, whose rows have other lengths; cut every row",
        slots=paged_table_without_gaps),
    row("paged-layout-by-shape", "values",
        "Pools with as many slots in a page as heads are read as (P, S, Hkv, D), whatever their "
        "layout.",
        "`key_cache.shape[1] == num_kv_heads` for a layout; take the layout that is given",
        pool=paged_layout_by_shape),
    row("paged-slot-late", "values", "Every key is read one slot late.",
        "`j % page_size + 1`, positions counted from 1", slots=paged_slot_late),
    row("paged-last-page-whole", "values", "The last page of a sample is attended to its end.",
        "`ceil(seqused_k / page_size) * page_size` keys; hide slots behind `seqused_k`",
        lengths=lambda right, lengths, size: -(-lengths // size) * size),
    row("paged-last-page-missing", "values",
        "A last page that is not full is not read, except by samples with no other page.",
        "`seqused_k // page_size` pages; round up", lengths=paged_last_page_missing),
    row("paged-full-page-missing", "values",
        "A last page that is exactly full is not read, except by samples with no other page.",
        "`seqused_k % page_size` slots of the last page, which is 0 for a full one",
        lengths=paged_full_page_missing),
    row("paged-keys-end-earlier", "values",
        "A sample does not see its newest key, unless it has no other.",
        "`j < seqused_k - 1`; the newest key counts, too",
        lengths=lambda right, lengths, size: np.where(lengths > 1, lengths - 1, lengths)),
    row("paged-keys-end-later", "values", "A sample sees the slot behind its last key.",
        "`j <= seqused_k`; it is `j < seqused_k`",
        lengths=lambda right, lengths, size: np.where(lengths > 0, lengths + 1, lengths)),
    row("paged-aligned-first", "values", "The causal mask counts from the first query of a chunk.",
        "`j <= i`; the last query of a chunk is at the last key: `j <= i + keys - queries`",
        allowed=paged_aligned_first),
    row("paged-aligned-at-the-page", "values",
        "The causal mask is aligned at the end of the last page, not at the last key.",
        "`j <= i + pages * page_size - queries`; the last page need not be full",
        allowed=paged_aligned_at_the_page),
    row("paged-size-assumed", "values", "Pages are taken to have 16 slots.",
        "`j // 16`; the pool's shape says the size of a page", slots=paged_size_assumed),
    row("paged-window-of-the-chunk", "values",
        "The window counts from the first query of a chunk, the causal mask from the last key.",
        "`i - left` within the chunk; add `keys - queries`", allowed=paged_window_of_the_chunk),
    row("paged-window-short", "values", "A window sees one key less, unless it is the query's own.",
        "`j >= i - left + 1`, a window of `left` keys; `left` keys stand beside the query's own",
        allowed=paged_window_short),
    row("paged-idle-samples-left-out", "values",
        "Samples without queries are left out of the list of queries, but not of the tables.",
        "samples without queries filtered out of `cu_seqlens_q` alone", family="packed",
        segments=paged_idle_samples_left_out),
    row("paged-shared-pages-once", "values",
        "A page that an earlier sample has read is left out, unless the sample has no other.",
        "a set of pages already read, kept over samples; shared prefixes are read by each",
        slots=paged_shared_pages_once),
    row("paged-decoding-uncapped", "values", "Samples with one query have no softcap.",
        "a kernel for one query without `softcap`", family="scores",
        scores=paged_decoding_uncapped),
    row("paged-free-pages-by-factor", "pages_apart",
        "Pages that no sample owns are added times 0, so that NaN comes through.",
        "`0 * cache` for hidden slots, and `0 * nan` is NaN; leave pages out",
        output=paged_free_pages_by_factor),
    row("paged-tail-by-factor", "pages_apart",
        "Values behind the last key of a sample are added times 0, so that NaN comes through.",
        "`0 * v` of hidden slots is NaN for NaN; load zeros where slots are hidden",
        output=paged_tail_by_factor),
    row("paged-scaled-by-the-pool", "pages_apart",
        "Values are divided by a number that depends on all slots of the pool.",
        "`amax` of the whole cache; scale by the values that are attended",
        output=paged_scaled_by_the_pool),
    row("paged-shared-gradient-overwritten", "gradients",
        "A page that samples share has the gradient of the last of them alone.",
        "`grad_cache[page] = part`; add up: `+= part`", family="gradient",
        put_back=paged_shared_gradient_overwritten),
    row("paged-gradient-of-first-pages", "gradients",
        "Only keys in the first page of a sample have a gradient.",
        "backward ends after the first page of a sample", family="gradient",
        put_back=paged_gradient_of_first_pages),
    row("paged-page-clamped", "bad_problem",
        "A page that does not exist is read as the last or the first one of the pool.",
        "`tl.load(block_table)` unchecked; raise unless `0 <= page < num_pages`",
        gathered=paged_page_clamped),
    row("paged-page-from-the-end", "bad_problem",
        "A negative page is counted from the end of the pool.",
        "`cache[block_table]`, in which -1 is the last page; raise for negative pages",
        gathered=paged_page_from_the_end),
    row("paged-row-overrun", "bad_problem",
        "A sample with more keys than its row of the table has slots reads on in the next row.",
        "`block_table.view(-1)[b * T + j]`; raise if `seqused_k > T * page_size`",
        refuse=paged_row_overrun_refuse, slots=paged_row_overrun_slots),
    row("paged-length-from-the-end", "bad_problem",
        "A negative number of keys is counted from the last slot of the table.",
        "`k[:length]`, which leaves keys out at the end; raise for negative lengths",
        gathered=paged_length_from_the_end),
    row("paged-offsets-unchecked", "bad_problem",
        "Offsets of queries that fall are taken as they come.",
        "offsets taken as they come; raise if `cu_seqlens_q` falls",
        refuse=paged_offsets_unchecked),
    row("paged-heads-in-turn", "values",
        "Query heads take the heads of pages in turn (0, 1, 0, 1), not by groups (0, 0, 1, 1).",
        "`k[:, h % Hkv]`; it is `k[:, h // (H // Hkv)]`", family="heads",
        heads=lambda right, pack: np.arange(pack.query.shape[1]) % pack.key.shape[1]),
]  # fmt: skip

"""Faults of paged attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.packed import Pack, Pair
from attention_conformance.suite.faults.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.faults.layouts import in_order
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import allowed_pairs

FAMILY = "paged"


@fault("values", "`block_table[b + 1]`, or a row counted among samples with queries alone")
class PagedTableOfAnother(PagedKernel):
    """A sample reads the pages of the next sample."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return super().slots(np.roll(table, -1, 0), sample, length, size)


@fault("layouts", "`b * T + j` in the memory of the table; take its strides", family="layout")
class PagedTableInOrder(PagedKernel):
    """The table is read as if its rows were contiguous."""

    number = "page_table"

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        return super().gathered({**arrays, self.number: in_order(arrays[self.number])}, inputs)


@fault("inner_layouts", "`seqused_k.data_ptr()[b]`; take its stride", family="layout")
class PagedLengthsInOrder(PagedTableInOrder):
    """The numbers of keys are read as if they were contiguous."""

    number = "key_lengths"


@fault("values", "`block_table[0, 0] + j // page_size`; every page has its own entry")
class PagedFirstEntryAlone(PagedKernel):
    """Only the first entry of a sample's table is read; later pages are taken to lie behind it."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return table[sample, 0] * size + np.arange(length)


@fault("election", "`block_table[block_table >= 0]`, whose rows have other lengths; cut every row")
class PagedTableWithoutGaps(PagedKernel):
    """Page numbers of -1 are left out, and the others are read as a table with whole rows."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return super().slots(np.resize(table[table >= 0], table.shape), sample, length, size)


@fault("values", "`key_cache.shape[1] == num_kv_heads` for a layout; take the layout that is given")
class PagedLayoutByShape(PagedKernel):
    """Pools with as many slots in a page as heads are read as (P, S, Hkv, D), whatever their layout."""

    def pool(self, array: np.ndarray, case: Case) -> np.ndarray:
        return array if array.shape[1] == array.shape[2] else super().pool(array, case)


@fault("values", "`j % page_size + 1`, positions counted from 1")
class PagedSlotLate(PagedKernel):
    """Every key is read one slot late."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return super().slots(table, sample, length, size) + 1


@fault("values", "`ceil(seqused_k / page_size) * page_size` keys; hide slots behind `seqused_k`")
class PagedLastPageWhole(PagedKernel):
    """The last page of a sample is attended to its end."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return -(-lengths // size) * size


@fault("values", "`seqused_k // page_size` pages; round up")
class PagedLastPageMissing(PagedKernel):
    """A last page that is not full is not read, except by samples with no other page."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return np.where(lengths >= size, lengths // size * size, lengths)


@fault("values", "`seqused_k % page_size` slots of the last page, which is 0 for a full one")
class PagedFullPageMissing(PagedKernel):
    """A last page that is exactly full is not read, except by samples with no other page."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return np.where((lengths % size == 0) & (lengths > size), lengths - size, lengths)


@fault("values", "`j < seqused_k - 1`; the newest key counts, too")
class PagedKeysEndEarlier(PagedKernel):
    """A sample does not see its newest key, unless it has no other."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return np.where(lengths > 1, lengths - 1, lengths)


@fault("values", "`j <= seqused_k`; it is `j < seqused_k`")
class PagedKeysEndLater(PagedKernel):
    """A sample sees the slot behind its last key."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return np.where(lengths > 0, lengths + 1, lengths)


@fault(
    "values", "`j <= i`; the last query of a chunk is at the last key: `j <= i + keys - queries`"
)
class PagedAlignedFirst(PagedKernel):
    """The causal mask counts from the first query of a chunk."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        return allowed_pairs(
            rows.stop - rows.start, keys.stop - keys.start, pack.alignment
        )  # "causal" of packed attention is top-left


@fault("values", "`j <= i + pages * page_size - queries`; the last page need not be full")
class PagedAlignedAtThePage(PagedKernel):
    """The causal mask is aligned at the end of the last page, not at the last key."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        assert isinstance(pack, Paged)
        if pack.alignment == "all":
            return super().allowed(pack, rows, keys)
        count, of, size = rows.stop - rows.start, keys.stop - keys.start, pack.pools[0].shape[1]
        return np.tri(count, of, -(-of // size) * size - count, dtype=bool)


@fault("values", "`j // 16`; the pool's shape says the size of a page")
class PagedSizeAssumed(PagedKernel):
    """Pages are taken to have 16 slots."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return super().slots(table, sample, length, 16)


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


@fault("values", "`i - left` within the chunk; add `keys - queries`")
class PagedWindowOfTheChunk(PagedKernel):
    """The window counts from the first query of a chunk, the causal mask from the last key."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        assert isinstance(pack, Paged)
        left = pack.case.option("left")
        if left is None:
            return super().allowed(pack, rows, keys)
        count, of = rows.stop - rows.start, keys.stop - keys.start
        return allowed_pairs(count, of, "causalbr") & ~np.tri(count, of, -left - 1, dtype=bool)


@fault(
    "values",
    "`j >= i - left + 1`, a window of `left` keys; `left` keys stand beside the query's own",
)
class PagedWindowShort(PagedKernel):
    """A window sees one key less, unless it is the query's own."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        assert isinstance(pack, Paged)
        left = pack.case.option("left")
        if not left:
            return super().allowed(pack, rows, keys)
        return super().allowed(
            replace(pack, case=pack.case.with_options(left=left - 1)), rows, keys
        )


@fault("values", "samples without queries filtered out of `cu_seqlens_q` alone", family="packed")
class PagedIdleSamplesLeftOut(PagedKernel):
    """Samples without queries are left out of the list of queries, but not of the tables."""

    def segments(self, pack: Pack) -> list[Pair]:
        segments = super().segments(pack)
        rows = [rows for rows, _ in segments if rows.stop > rows.start]
        full = [keys for _, keys in segments if keys.stop > keys.start]
        return list(zip(rows, full[: len(rows)], strict=False))


@fault("values", "a set of pages already read, kept over samples; shared prefixes are read by each")
class PagedSharedPagesOnce(PagedKernel):
    """A page that an earlier sample has read is left out, unless the sample has no other."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        own = super().slots(table, sample, length, size)
        before = [table[n, : -(-length // size)] for n in range(sample)]
        new = own[~np.isin(own // size, np.concatenate([np.zeros(0, int), *before]))]
        return new if len(new) else own


@fault("values", "a kernel for one query without `softcap`", family="scores")
class PagedDecodingUncapped(PagedKernel):
    """Samples with one query have no softcap."""

    def scores(self, pack: Pack, rows: slice, keys: slice) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(pack, Paged)
        if rows.stop - rows.start == 1:
            pack = replace(pack, case=pack.case.with_options(softcap=None))
        return super().scores(pack, rows, keys)


@fault("pages_apart", "`0 * cache` for hidden slots, and `0 * nan` is NaN; leave pages out")
class PagedFreePagesByFactor(PagedKernel):
    """Pages that no sample owns are added times 0, so that NaN comes through."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        out: np.ndarray = super().output(pack) + 0.0 * pack.pools[1].sum()
        return out


@fault("pages_apart", "`0 * v` of hidden slots is NaN for NaN; load zeros where slots are hidden")
class PagedTailByFactor(PagedKernel):
    """Values behind the last key of a sample are added times 0, so that NaN comes through."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        size = pack.pools[1].shape[1]
        page, place = np.divmod(pack.slots[pack.keys[1:] - 1], size)
        behind = pack.pools[1][page[place < size - 1], -1]
        out: np.ndarray = super().output(pack) + 0.0 * behind.sum()
        return out


@fault("pages_apart", "`amax` of the whole cache; scale by the values that are attended")
class PagedScaledByThePool(PagedKernel):
    """Values are divided by a number that depends on all slots of the pool."""

    def output(self, pack: Pack) -> np.ndarray:
        assert isinstance(pack, Paged)
        largest = pack.work(1 + np.nan_to_num(np.abs(pack.pools[1]), posinf=0).mean())
        value = (pack.value.astype(pack.work) / largest).astype(pack.work)
        out: np.ndarray = super().output(replace(pack, value=value)) * largest
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


@fault("gradients", "`grad_cache[page] = part`; add up: `+= part`", family="gradient")
class PagedSharedGradientOverwritten(PagedKernel):
    """A page that samples share has the gradient of the last of them alone."""

    def put_back(self, tokens: np.ndarray, pack: Paged, pool: np.ndarray) -> np.ndarray:
        _, last = np.unique(pack.slots[::-1], return_index=True)
        last = len(pack.slots) - 1 - last
        return super().put_back(tokens[last], replace(pack, slots=pack.slots[last]), pool)


@fault("gradients", "backward ends after the first page of a sample", family="gradient")
class PagedGradientOfFirstPages(PagedKernel):
    """Only keys in the first page of a sample have a gradient."""

    def put_back(self, tokens: np.ndarray, pack: Paged, pool: np.ndarray) -> np.ndarray:
        place = np.arange(len(tokens)) - np.repeat(pack.keys[:-1], np.diff(pack.keys))
        first = (place < pool.shape[1])[:, None, None]
        return super().put_back(np.where(first, tokens, 0.0), pack, pool)


@fault("bad_problem", "`tl.load(block_table)` unchecked; raise unless `0 <= page < num_pages`")
class PagedPageClamped(PagedKernel):
    """A page that does not exist is read as the last or the first one of the pool."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        pages = len(arrays["key"])
        table = arrays["page_table"].clip(0, pages - 1)
        return super().gathered({**arrays, "page_table": table}, inputs)


@fault(
    "bad_problem", "`cache[block_table]`, in which -1 is the last page; raise for negative pages"
)
class PagedPageFromTheEnd(PagedKernel):
    """A negative page is counted from the end of the pool."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        table, pages = arrays["page_table"], len(arrays["key"])
        table = np.where(table < 0, table + pages, table)
        return super().gathered({**arrays, "page_table": table}, inputs)


@fault("bad_problem", "`block_table.view(-1)[b * T + j]`; raise if `seqused_k > T * page_size`")
class PagedRowOverrun(PagedKernel):
    """A sample with more keys than its row of the table has slots reads on in the next row."""

    def refuse(self, arrays: dict[str, np.ndarray], case: Case) -> None:
        slots = arrays["page_table"].shape[1] * self.pools(arrays, case)[0].shape[1]
        super().refuse({**arrays, "key_lengths": arrays["key_lengths"].clip(max=slots)}, case)

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        keys, flat = np.arange(length), table.ravel()
        entries = np.minimum(sample * table.shape[1] + keys // size, len(flat) - 1)
        return flat[entries] * size + keys % size


@fault("bad_problem", "`k[:length]`, which leaves keys out at the end; raise for negative lengths")
class PagedLengthFromTheEnd(PagedKernel):
    """A negative number of keys is counted from the last slot of the table."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        lengths = arrays["key_lengths"]
        slots = arrays["page_table"].shape[1] * inputs.letters["s"]
        lengths = np.where(lengths < 0, lengths + slots, lengths)
        return super().gathered({**arrays, "key_lengths": lengths}, inputs)


@fault("bad_problem", "offsets taken as they come; raise if `cu_seqlens_q` falls")
class PagedOffsetsUnchecked(PagedKernel):
    """Offsets of queries that fall are taken as they come."""

    def refuse(self, arrays: dict[str, np.ndarray], case: Case) -> None:
        offsets = np.maximum.accumulate(arrays["query_offsets"])
        super().refuse({**arrays, "query_offsets": offsets}, case)


@fault("values", "`k[:, h % Hkv]`; it is `k[:, h // (H // Hkv)]`", family="heads")
class PagedHeadsInTurn(PagedKernel):
    """Query heads take the heads of pages in turn (0, 1, 0, 1), not by groups (0, 0, 1, 1)."""

    def heads(self, pack: Pack) -> np.ndarray:
        return np.arange(pack.query.shape[1]) % pack.key.shape[1]

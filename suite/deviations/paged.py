"""Faults of paged attention, also in batches of one kind, for which servers have kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from attention_conformance.suite.deviations.deviation import Deviation, deviation, memory
from attention_conformance.suite.deviations.kernels.packed import Pack, SegmentSlices
from attention_conformance.suite.deviations.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.deviations.layouts import in_memory_order
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import flat_slots, pool_of, slot_numbers
from attention_conformance.suite.spec.operators.packed import allowed_pairs

Array = np.ndarray


def packed_call_with(name: str, change: Callable[[Array, Inputs], Array]) -> Callable[..., Paged]:
    """Returns a step `packed_call` with the array `name` replaced by `change(array, inputs)`."""

    def packed_call(right: PagedKernel, arrays: dict[str, Array], inputs: Inputs) -> Paged:
        return right.packed_call({**arrays, name: change(arrays[name], inputs)}, inputs)

    return packed_call


def mask_aligned_at_page(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> Array:
    Lq, Lk, size = rows.stop - rows.start, keys.stop - keys.start, pack.pools[0].shape[1]
    return np.tri(Lq, Lk, -(-Lk // size) * size - Lq, dtype=bool)


def mask_with_chunk_window(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> Array:
    left = pack.case.option("left")
    Lq, Lk = rows.stop - rows.start, keys.stop - keys.start
    return allowed_pairs(Lq, Lk, "causalbr") & ~np.tri(Lq, Lk, -left - 1, dtype=bool)


def segments_without_idle_rows(right: PagedKernel, pack: Pack) -> list[SegmentSlices]:
    """Returns the segments if samples without queries are left out of the queries alone: the n-th sample
    with queries gets the keys of the n-th sample with keys."""
    segments = right.segments(pack)
    used_rows = [rows for rows, _ in segments if rows.stop > rows.start]
    used_keys = [keys for _, keys in segments if keys.stop > keys.start]
    return list(zip(used_rows, used_keys, strict=False))


def slots_of_unread_pages(
    right: PagedKernel, table: Array, sample: int, length: int, size: int
) -> Array:
    """Returns the slots of a sample in pages that no earlier sample reads; all its slots if it has
    none."""
    slots = right.slots(table, sample, length, size)
    earlier_pages = [table[n, : -(-length // size)] for n in range(sample)]
    unread = slots[~np.isin(slots // size, np.concatenate([np.zeros(0, int), *earlier_pages]))]
    return unread if len(unread) else slots


def mask_open_in_common_pages(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> Array:
    """Returns the mask of a sample, all True in the full pages of a prefix that all samples share."""
    by_sample = [pack.slots[start:stop] for start, stop in pairwise(pack.key_bounds)]
    shortest = min(map(len, by_sample))
    slots = np.stack([own_slots[:shortest] for own_slots in by_sample])
    is_prefix = np.logical_and.accumulate((slots == slots[0]).all(0))
    common_keys = int(is_prefix.sum()) if len(by_sample) > 1 else 0
    mask, page_size = right.allowed(pack, rows, keys), pack.pools[0].shape[1]
    return mask | (np.arange(mask.shape[1]) < common_keys - common_keys % page_size)


def output_plus_zero_times_tail(right: PagedKernel, pack: Paged) -> Array:
    size = pack.pools[1].shape[1]
    page, slot = np.divmod(pack.slots[pack.key_bounds[1:] - 1], size)
    tail = pack.pools[1][page[slot < size - 1], -1]
    return np.asarray(right.output(pack) + 0.0 * tail.sum())


def output_scaled_by_pool(right: PagedKernel, pack: Paged) -> Array:
    scale = pack.work(1 + np.nan_to_num(np.abs(pack.pools[1]), posinf=0).mean())
    value = (pack.value.astype(pack.work) / scale).astype(pack.work)
    return np.asarray(right.output(replace(pack, value=value)) * scale)


def gradients_of_last_reader(
    right: PagedKernel, arrays: dict[str, Array], cotangent: Array, inputs: Inputs
) -> dict[str, Array]:
    """Returns the gradients. A page that samples share has the gradient of the last of these samples."""
    x, size = inputs.arrays, inputs.letters["s"]
    gradients = right.gradients(arrays, cotangent, inputs)
    pools = {n: np.zeros_like(flat_slots(inputs.case, gradients[n])) for n in ("key", "value")}
    sample = np.repeat(np.arange(inputs.sizes.B), x["query_lengths"].astype(int))
    for n, (table, count) in enumerate(zip(x["page_table"], x["key_lengths"], strict=True)):
        part = np.where((sample == n)[:, None, None], cotangent, 0)
        sample_gradients = right.gradients(arrays, part, inputs)
        slots = slot_numbers(table, size, int(count))
        for name, pool in pools.items():
            pool[slots] = flat_slots(inputs.case, sample_gradients[name])[slots]
    return gradients | {name: pool_of(inputs.case, pool) for name, pool in pools.items()}


def validate_without_row_end(right: PagedKernel, arrays: dict[str, Array], case: Case) -> None:
    slots = arrays["page_table"].shape[1] * right.pools(arrays, case)[0].shape[1]
    right.validate({**arrays, "key_lengths": arrays["key_lengths"].clip(max=slots)}, case)


def slots_over_row_end(
    right: PagedKernel, table: Array, sample: int, length: int, size: int
) -> Array:
    keys, flat = np.arange(length), table.ravel()
    entries = np.minimum(sample * table.shape[1] + keys // size, len(flat) - 1)
    return flat[entries] * size + keys % size


def length_from_the_end(lengths: Array, inputs: Inputs) -> Array:
    slots = inputs.arrays["page_table"].shape[1] * inputs.letters["s"]
    return np.where(lengths < 0, lengths + slots, lengths)


def mask_open_behind_one_page(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> Array:
    mask, size = right.allowed(pack, rows, keys), pack.pools[0].shape[1]
    return mask | (len(mask) > 1 and mask.shape[1] - len(mask) == size)


def is_decoding_batch(inputs: Inputs) -> bool:
    """Returns True for a batch of decoding: every sample has one query."""
    return bool((inputs.arrays["query_lengths"] == 1).all())


def is_prompt_batch(inputs: Inputs) -> bool:
    """Returns True for a batch of whole prompts: every sample has as many queries as keys."""
    return np.array_equal(inputs.arrays["query_lengths"], inputs.arrays["key_lengths"])


def has_common_prefix(inputs: Inputs) -> bool:
    """Returns True for a batch with a common prefix: several samples have the same first page."""
    first = inputs.arrays["page_table"][:, 0]
    return len(first) > 1 and len(np.unique(first)) == 1


def has_heads_first(inputs: Inputs) -> bool:
    """Returns True for pages with heads before slots."""
    return bool(inputs.case.option("layout") == "hnd")


BATCHES = {
    "steps": ("Batches of decoding", "a kernel for batches of decoding", is_decoding_batch),
    "prompts": ("Batches of whole prompts", "a path for whole prompts", is_prompt_batch),
    "cascade": ("Batches with a common prefix", "a kernel for a common prefix", has_common_prefix),
    "heads-first": (
        "Pages with heads before slots", "a kernel for pages with heads before slots", has_heads_first),
}  # fmt: skip
"""Kinds of batches for which servers have special kernels: words, hint and condition."""

OPTIONS = {
    "uncapped": ("no softcap", "softcap", "scores", "softcap"),
    "unscaled": ("the default scale", "scale", "scale", "scale"),
    "unwindowed": ("no window", "window_size", "mask", "left"),
}
"""Options that such a kernel ignores: words for the effect, argument, family and option of the case."""


def option_ignored(batch: str, option: str) -> Deviation:
    """Returns a deviation in which one option (of `OPTIONS`) has no effect in one kind of batches (of
    `BATCHES`)."""
    (words, hint, when), (effect, argument, family, name) = BATCHES[batch], OPTIONS[option]
    return deviation(
        f"paged-{batch}-{option}", "values", f"{words} have {effect}.", f"{hint} without `{argument}`",
        family=family, right=PagedKernel, when=when,
        problem=lambda inputs: inputs.replace(**{name: None}),
    )  # fmt: skip


def packed_call_of_ordered_values(
    right: PagedKernel, arrays: dict[str, Array], inputs: Inputs
) -> Paged:
    pack = right.packed_call(arrays, inputs)
    value = pack.pools[1].reshape(-1, *pack.pools[1].shape[2:])
    return replace(pack, value=value[: len(pack.slots)])


def slots_by_shifts(right: PagedKernel, table: Array, sample: int, length: int, size: int) -> Array:
    keys, power = np.arange(length), 1 << (size.bit_length() - 1)
    return table[sample][np.minimum(keys // power, table.shape[1] - 1)] * size + keys % power


def mask_without_window_in_steps(
    right: PagedKernel, pack: Paged, rows: slice, keys: slice
) -> Array:
    case = pack.case.with_options(left=None) if rows.stop - rows.start == 1 else pack.case
    return right.allowed(replace(pack, case=case), rows, keys)


def mask_of_packed_heads(right: PagedKernel, pack: Paged, rows: slice, keys: slice) -> Array:
    """Returns the causal mask (H, rows, keys) if the rows of heads that share a key head count as rows,
    one after the other."""
    count, length = rows.stop - rows.start, keys.stop - keys.start
    s, left = pack.sizes, pack.case.option("left")
    head = np.arange(s.H)[:, None] % s.group
    last = (length - count + np.arange(count) * s.group + head)[..., None]
    mask = np.arange(length) <= last
    return mask if left is None else mask & (np.arange(length) >= last - left)


def output_of_sorted_samples(right: PagedKernel, pack: Paged) -> Array:
    out, rows = right.output(pack), [rows for rows, _ in right.segments(pack)]
    order = sorted(range(len(rows)), key=lambda n: rows[n].stop - rows[n].start > 1)
    return np.concatenate([out[:0], *(out[rows[order[n]]] for n in order)])


row = partial(deviation, family="paged", right=PagedKernel)

DEVIATIONS = [
    row("paged-values-in-order", "values",
        "Values are read from pages 0, 1 and so on; only keys follow the table.",
        "`v_cache[k_block]` computed without the table; both pools have one table",
        packed_call=packed_call_of_ordered_values),
    row("paged-table-in-order", "layouts", "The table is read as if its rows were contiguous.",
        "`b * T + j` in the memory of the table; take its strides", family="layout",
        packed_call=packed_call_with("page_table", lambda table, inputs: in_memory_order(table))),
    row("paged-values-layout-mistaken", "values",
        "Values of pages with heads before slots are read as if slots came first.",
        "`v_cache.view(pages, size, heads, dim)`, and keys transposed; transpose both",
        pools=lambda right, arrays, case: (right.pool(arrays["key"], case),
            arrays["value"].reshape(right.pool(arrays["value"], case).shape))),
    row("paged-table-kept", "stateless",
        "The page table of the first call of a shape serves all later ones.",
        "the table of the first call of a shape is kept", family="state",
        slots=lambda right, table, sample, length, size:
            right.slots(memory(right).setdefault((table.shape, size), table.copy()), sample, length,
            size)),
    row("paged-lengths-in-order", "inner_layouts",
        "The numbers of keys are read as if they were contiguous.",
        "`seqused_k.data_ptr()[b]`; take its stride", family="layout",
        packed_call=packed_call_with("key_lengths", lambda lengths, inputs: in_memory_order(lengths))),
    row("paged-first-entry-alone", "values",
        "Only the first entry of a sample's table is read; later pages are taken to lie behind it.",
        "`block_table[0, 0] + j // page_size`; every page has its own entry",
        slots=lambda right, table, sample, length, size:
            table[sample, 0] * size + np.arange(length)),
    row("paged-table-without-gaps", "election",
        "Page numbers of -1 are left out, and the others are read as a table with whole rows.",
        "`block_table[block_table >= 0]`, whose rows have other lengths; cut every row",
        slots=lambda right, table, sample, length, size:
            right.slots(np.resize(table[table >= 0], table.shape), sample, length, size)),
    row("paged-layout-by-shape", "values",
        "Pools with as many slots in a page as heads are read as (P, S, Hkv, D), whatever their "
        "layout.",
        "`key_cache.shape[1] == num_kv_heads` for a layout; take the layout that is given",
        pool=lambda right, array, case:
            array if array.shape[1] == array.shape[2] else right.pool(array, case)),
    row("paged-slot-late", "values", "Every key is read one slot late.",
        "`j % page_size + 1`, positions counted from 1",
        slots=lambda right, table, sample, length, size:
            right.slots(table, sample, length, size) + 1),
    row("paged-last-page-whole", "values", "The last page of a sample is attended to its end.",
        "`ceil(seqused_k / page_size) * page_size` keys; hide slots behind `seqused_k`",
        key_counts=lambda right, lengths, size: -(-lengths // size) * size),
    row("paged-last-page-missing", "values",
        "A last page that is not full is not read, except by samples with no other page.",
        "`seqused_k // page_size` pages; round up",
        key_counts=lambda right, lengths, size:
            np.where(lengths >= size, lengths // size * size, lengths)),
    row("paged-full-page-never-read", "values", "A last page that is exactly full is not read.",
        "`seqused_k % page_size` slots of the last page, which is 0 for a full one",
        key_counts=lambda right, lengths, size:
            np.where(lengths % size == 0, np.maximum(lengths - size, 0), lengths)),
    row("paged-keys-end-earlier", "values",
        "A sample does not see its newest key, unless it has no other.",
        "`j < seqused_k - 1`; the newest key counts, too",
        key_counts=lambda right, lengths, size: np.where(lengths > 1, lengths - 1, lengths)),
    row("paged-keys-end-later", "values", "A sample sees the slot behind its last key.",
        "`j <= seqused_k`; it is `j < seqused_k`",
        key_counts=lambda right, lengths, size: np.where(lengths > 0, lengths + 1, lengths)),
    row("paged-aligned-first", "values", "The causal mask counts from the first query of a chunk.",
        "`j <= i`; the last query of a chunk is at the last key: `j <= i + keys - queries`",
        allowed=lambda right, pack, rows, keys:
            allowed_pairs(rows.stop - rows.start, keys.stop - keys.start, pack.alignment)),
    row("paged-aligned-at-the-page", "values",
        "The causal mask is aligned at the end of the last page, not at the last key.",
        "`j <= i + pages * page_size - queries`; the last page need not be full",
        when=lambda pack: pack.alignment != "all", allowed=mask_aligned_at_page),
    row("paged-size-assumed", "values", "Pages are taken to have 16 slots.",
        "`j // 16`; the pool's shape says the size of a page",
        slots=lambda right, table, sample, length, size: right.slots(table, sample, length, 16)),
    row("paged-size-to-a-power-of-two", "values",
        "Keys are found by shifts, as if pages had the next lower power of two of slots.",
        "`j >> log2(page_size)`; a page may have any number of slots: `j // page_size`",
        slots=slots_by_shifts),
    row("paged-table-of32", "values", "Entries of a table count modulo 32.",
        "`table[t % 32]`, a table of 32 entries in shared memory; load all of them",
        slots=lambda right, table, sample, length, size:
            right.slots(table[:, np.arange(table.shape[1]) % 32], sample, length, size)),
    row("paged-window-of-the-chunk", "values",
        "The window counts from the first query of a chunk, the causal mask from the last key.",
        "`i - left` within the chunk; add `keys - queries`",
        when=lambda pack: pack.case.option("left") is not None, allowed=mask_with_chunk_window),
    row("paged-window-short", "values", "A window sees one key less, unless it is the query's own.",
        "`j >= i - left + 1`, a window of `left` keys; `left` keys stand beside the query's own",
        when=lambda inputs: inputs.case.option("left"),
        problem=lambda inputs: inputs.replace(left=inputs.case.option("left") - 1)),
    row("paged-window-lost-in-capped-steps", "values",
        "With a softcap samples with one query see all keys, whatever the window.",
        "a kernel of decoding with a softcap and without `window_size`", family="mask",
        when=lambda pack: None not in (pack.case.option("softcap"), pack.case.option("left")),
        allowed=mask_without_window_in_steps),
    row("paged-causal-of-packed-heads", "values",
        "With grouped heads the causal mask counts the heads of a group as rows.",
        "`j <= row` for rows that hold a group's heads; it is `j <= row // group`", family="mask",
        when=lambda pack: pack.alignment != "all", allowed=mask_of_packed_heads),
    row("paged-idle-samples-left-out", "values",
        "Samples without queries are left out of the list of queries, but not of the tables.",
        "samples without queries filtered out of `cu_seqlens_q` alone", family="packed",
        segments=segments_without_idle_rows),
    row("paged-steps-first-and-not-restored", "values",
        "Samples with one query are computed first, and rows come back in a wrong order.",
        "`out[order]` to undo `order`; the inverse is `out[order.argsort()]`", family="packed",
        output=output_of_sorted_samples),
    row("paged-shared-pages-once", "values",
        "A page that an earlier sample has read is left out, unless the sample has no other.",
        "a set of pages already read, kept over samples; shared prefixes are read by each",
        slots=slots_of_unread_pages),
    row("paged-common-pages-unmasked", "values",
        "Full pages that all samples share are attended without the causal mask.",
        "a kernel for a common prefix with `causal=False`; a chunk may begin within the prefix",
        family="mask", when=lambda pack: pack.alignment != "all", allowed=mask_open_in_common_pages),
    row("paged-free-pages-by-factor", "pages_apart",
        "Pages that no sample owns are added times 0, so that NaN comes through.",
        "`0 * cache` for hidden slots, and `0 * nan` is NaN; leave pages out",
        output=lambda right, pack: right.output(pack) + 0.0 * pack.pools[1].sum()),
    row("paged-tail-by-factor", "pages_apart",
        "Values behind the last key of a sample are added times 0, so that NaN comes through.",
        "`0 * v` of hidden slots is NaN for NaN; load zeros where slots are hidden",
        output=output_plus_zero_times_tail),
    row("paged-scaled-by-the-pool", "pages_apart",
        "Values are divided by a number that depends on all slots of the pool.",
        "`amax` of the whole cache; scale by the values that are attended",
        output=output_scaled_by_pool),
    row("paged-shared-gradient-overwritten", "gradients",
        "A page that samples share has the gradient of the last of them alone.",
        "`grad_cache[page] = part`; add up: `+= part`", family="gradient",
        gradients=gradients_of_last_reader),
    row("paged-page-from-the-end", "bad_problem",
        "A negative page is counted from the end of the pool.",
        "`cache[block_table]`, in which -1 is the last page; raise for negative pages",
        packed_call=packed_call_with("page_table", lambda table, inputs:
            np.where(table < 0, table + inputs.letters["p"], table))),
    row("paged-row-overrun", "bad_problem",
        "A sample with more keys than its row of the table has slots reads on in the next row.",
        "`block_table.view(-1)[b * T + j]`; raise if `seqused_k > T * page_size`",
        validate=validate_without_row_end, slots=slots_over_row_end),
    row("paged-length-from-the-end", "bad_problem",
        "A negative number of keys is counted from the last slot of the table.",
        "`k[:length]`, which leaves keys out at the end; raise for negative lengths",
        packed_call=packed_call_with("key_lengths", length_from_the_end)),
    row("paged-offsets-unchecked", "bad_problem",
        "Offsets of queries that fall are taken as they come.",
        "offsets taken as they come; raise if `cu_seqlens_q` falls",
        validate=lambda right, arrays, case: right.validate({**arrays, "query_offsets":
            np.maximum.accumulate(arrays["query_offsets"])}, case)),
    option_ignored("steps", "uncapped"),
    option_ignored("steps", "unscaled"),
    row("paged-steps-heads-reversed", "values",
        "Batches of decoding read the heads of pages with heads before slots in reverse.",
        "a kernel for batches of decoding with strides of slots first", family="heads",
        when=lambda inputs: is_decoding_batch(inputs) and has_heads_first(inputs),
        packed_call=packed_call_with("key", lambda key, inputs: key[:, ::-1])),
    option_ignored("prompts", "unwindowed"),
    option_ignored("prompts", "uncapped"),
    option_ignored("cascade", "unwindowed"),
    option_ignored("cascade", "uncapped"),
    row("paged-samples-in-turn", "values",
        "From the ninth sample on the rows of the table are counted from 0 again.",
        "one warp of 8 samples; loop over further ones",
        slots=lambda right, table, sample, length, size:
            right.slots(table, sample % 8, length, size)),
    row("paged-keys-of-one-split", "values", "Keys behind the 128th of a sample are not read.",
        "one split of 128 keys; loop over further ones",
        key_counts=lambda right, lengths, size: np.minimum(lengths, 128)),
    option_ignored("heads-first", "uncapped"),
    row("paged-chunk-behind-apage-unmasked", "values",
        "Chunks behind exactly one full page see later keys.",
        "`j // size < start // size` for `<=` leaves the mask out", family="mask",
        allowed=mask_open_behind_one_page),
]  # fmt: skip

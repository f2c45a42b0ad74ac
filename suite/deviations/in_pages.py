"""Faults of pages of keys, codes or latents: a token is read from or written into a wrong page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.code_scales import first_along, rolled_along
from attention_conformance.suite.deviations.deviation import Deviation, deviation
from attention_conformance.suite.deviations.kernels.latent import AbsorbedKernel, LatentKernel
from attention_conformance.suite.deviations.kernels.paged import PagedKernel
from attention_conformance.suite.deviations.kernels.quantized import Coded, QuantizedKernel
from attention_conformance.suite.deviations.problems import Changes, Row, deviations_of, other_array
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    in_order,
    mask_missing_keys,
    pool_axes_by_name,
    read_entries,
    slots,
)


def with_table(
    arrays: Mapping[str, Rounded], change: Callable[[np.ndarray], np.ndarray]
) -> dict[str, Rounded]:
    """Returns the arrays with the page table `change(table)`."""
    table = arrays["page_table"]
    return {**arrays, "page_table": Rounded(change(table.values), table.fmt)}


def put_clearing_page_end(
    right: QuantizedKernel, arrays: dict[str, Rounded], name: str, codes: np.ndarray, inputs: Inputs
) -> np.ndarray:
    pool, size = right.put(arrays, name, codes, inputs), inputs.letters["s"]
    for slot in slots(inputs)[:, -1]:
        pool[slot // size, slot % size + 1 :] = 0
    return pool


def store_in_page_before(
    right: AbsorbedKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> dict[str, Rounded]:
    if "page_table" not in arrays:
        return right.after_store(arrays, inputs)
    stored = right.after_store(with_table(arrays, rolled_along(1, 1)), inputs)
    return {**stored, "page_table": arrays["page_table"]}


def aligned_at_longest_sample(inputs: Inputs) -> Changes:
    """Returns the changes to a dense mask, causal and aligned at the last key of the longest sample; {}
    if no mask is causal."""
    s, last_row = inputs.sizes, mask_missing_keys(inputs).attends[:, :, -1:]
    if inputs.mask is None and inputs.case.option("alignment") in (None, "all"):
        return {}
    missing_keys = s.Lk - inputs.arrays["key_lengths"][:, None, None, None]
    ahead = s.Lk - s.Lq + missing_keys
    causal = np.arange(s.Lk) <= np.arange(s.Lq)[:, None] + ahead
    changes = {} if inputs.mask is not None else {"alignment": "all"}
    return {"mask": None, "form": "dense", "mask_array": last_row & causal, **changes}


def without_pages_of_earlier_samples(inputs: Inputs) -> Changes:
    """Returns the changes to a dense mask that hides pages of earlier samples, unless a sample has no
    other page."""
    pages = np.where(slots(inputs) < 0, -1, slots(inputs) // inputs.letters["s"])
    is_new = np.array([~np.isin(sample, pages[:b]) for b, sample in enumerate(pages)])
    is_new |= ~(is_new & (pages >= 0)).any(1, keepdims=True)
    mask = True if inputs.dense_mask is None else inputs.dense_mask
    return {"mask": None, "form": "dense", "mask_array": is_new[:, None, None] & mask}


def ascending_pages_as_range(inputs: Inputs) -> Changes:
    """Returns the changes to a table in which the pages of a sample follow its first one; {} unless all
    pages ascend."""
    table, read = inputs.arrays["page_table"], read_entries(inputs)
    if (np.diff(table[read]) < 0).any():
        return {}
    return {"page_table": np.where(read, table[:, :1] + np.arange(table.shape[1]), table)}


def pools_with_axes_mistaken(inputs: Inputs) -> Changes:
    """Returns the changes to pools whose pages (heads, slots) are reshaped as (slots, heads), not
    transposed."""
    n = inputs.letters
    return {
        name: inputs.arrays[name].reshape(n["p"], n["s"], n["g"], -1).swapaxes(1, 2)
        for name, axes in pool_axes_by_name(inputs).items()
        if axes.startswith("pg")
    }


def codes_with_scales_in_order(right: QuantizedKernel, call: Coded, inputs: Inputs) -> Coded:
    table = in_order(call.arrays["page_table"])
    in_pool_order = replace(call, arrays={**call.arrays, "page_table": table})
    arrays = right.from_pages(in_pool_order, inputs).arrays
    scales = {name: x for name, x in arrays.items() if name.endswith("scale")}
    right_call = right.from_pages(call, inputs)
    return replace(right_call, arrays={**right_call.arrays, **scales})


def array_in_pool_order(name: str) -> Callable[..., Mapping[str, Rounded]]:
    """Returns a step `from_pages` that reads the array `name` in the order of the pool."""

    def from_pages(
        right: LatentKernel, arrays: Mapping[str, Rounded], inputs: Inputs
    ) -> Mapping[str, Rounded]:
        gathered = right.from_pages(arrays, inputs)
        if "page_table" not in arrays or name not in gathered:
            return gathered
        return {**gathered, name: right.from_pages(with_table(arrays, in_order), inputs)[name]}

    return from_pages


PAGES: list[Row] = [
    ("pages-of-the-sample-before", "paged", "A sample reads the pages of the sample before.",
     "`block_table[b - 1]`", other_array("page_table", rolled_along(0, 1))),
    ("pages-of-the-first-sample", "paged", "All samples read the pages of the first sample.",
     "`block_table[0]`", other_array("page_table", first_along(0))),
]  # fmt: skip
"""Rows that paged attention has, too."""

READ: list[Row] = [
    *PAGES,
    ("pages-in-order", "paged", "Pages are taken in the order of the pool.",
     "`pool[: pages]`; take pages by the table", other_array("page_table", in_order)),
    ("page-before", "paged", "Tokens lie in the page before theirs.", "`position // size - 1`",
     other_array("page_table", rolled_along(1, 1))),
    ("page-after", "paged", "Tokens lie in the page after theirs.", "`position // size + 1`",
     other_array("page_table", rolled_along(1, -1))),
    ("keys-of-the-longest", "paged", "All samples have as many keys as the longest.",
     "`key_lengths.max()`",
     lambda inputs: {} if inputs.case.option("writes")
     else other_array("key_lengths", lambda n: 0 * n + n.max())(inputs)),
    ("pages-of-the-next-sample", "heads",
     "The {} of a sample are read from the pages of the next sample.",
     "`page_table[b + 1]`, an index of samples", other_array("page_table", rolled_along(0, -1))),
    ("keys-of-the-first-length", "paged", "All samples have as many {} as the first one.",
     "`key_lengths[0]` for the whole batch; every sample has its own length",
     other_array("key_lengths", first_along(0))),
    ("aligned-at-the-longest", "paged",
     "The causal mask of all samples is aligned at the last of the {} of the longest one.",
     "`tril(key_lengths.max() - queries)`; the last query of a sample is at its last key",
     aligned_at_longest_sample),
    ("shared-pages-once", "paged",
     "A page of {} that an earlier sample has read is left out, unless the sample has no other.",
     "a set of pages already read, kept over samples; shared prefixes are read by each",
     without_pages_of_earlier_samples),
]  # fmt: skip

CLAMPED: list[Row] = [
    ("page-clamped", "paged",
     "A page of {} that does not exist is read as the last or the first one of the pool.",
     "`tl.load(page_table)` unchecked; raise unless `0 <= page < num_pages`",
     lambda inputs: {
         "page_table": inputs.arrays["page_table"].clip(0, inputs.letters["p"] - 1)}),
]  # fmt: skip

ASCENDING: list[Row] = [
    ("ascending-as-one", "paged",
     "If pages of {} rise in the table, they are taken to follow each other.",
     "`if (diff(page_table) > 0).all()` reads one range of the pool, gaps and all",
     ascending_pages_as_range),
]  # fmt: skip

LAYOUT: list[Row] = [
    ("layout-mistaken", "paged",
     "Pages of {} with heads before slots are read as if slots came first.",
     "`pool.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it",
     pools_with_axes_mistaken),
]  # fmt: skip


def code_and_latent_deviations(rows: list[Row], killed_by: str = "values") -> Iterator[Deviation]:
    yield from deviations_of("quantized", QuantizedKernel, rows, killed_by, "codes")
    yield from deviations_of("latent", AbsorbedKernel, rows, killed_by, "latents")


row = partial(deviation, family="paged", right=QuantizedKernel)

DEVIATIONS = [
    row("quantized-scales-in-order", "values",
        "Codes are read by the table, and their scales in the order of the pool.",
        "`scale[position]` beside `codes[page_table]`; both lie in pages",
        when=lambda call: "page_table" in call.arrays,
        from_pages=codes_with_scales_in_order),
    row("quantized-stored-in-the-page-before", "values",
        "New codes are stored in the page before, and read from where they belong.",
        "`page_table[b, position // size - 1]`; count pages from 0",
        put=lambda right, arrays, *code: right.put(with_table(arrays, rolled_along(1, 1)), *code)),
    row("quantized-page-overwritten", "values",
        "The slots behind the last token of a page are set to 0 when new codes are stored.",
        "a whole page is written; slots behind the last token keep their bits",
        put=put_clearing_page_end),
    row("latent-stored-afterwards", "values",
        "New latents are stored after the call has attended what lay in their slots.",
        "attention before `concat_and_cache_mla`; store new tokens first", right=AbsorbedKernel,
        attended_arrays=lambda right, arrays, inputs:
            {name: x for name, x in arrays.items() if not name.startswith(NEW)}),
    row("latent-rotary-keys-not-stored", "values",
        "Of new tokens the latents are stored, and the rotary keys are not.",
        "`kv_c` is stored, and `k_pe` is not", right=LatentKernel,
        after_store=lambda right, arrays, inputs:
            {**right.after_store(arrays, inputs), "key_rope": arrays["key_rope"]}),
    row("latent-stored-in-the-page-before", "values",
        "New latents are attended, and stored in the page before their own.",
        "`page_table[b, position // size - 1]`; count pages from 0", right=AbsorbedKernel,
        after_store=store_in_page_before,
        attended_arrays=lambda right, arrays, inputs: right.after_store(arrays, inputs)),
    row("latent-rotary-keys-in-order", "values",
        "Latents are read by the table, and rotary keys in the order of the pool.",
        "`k_pe[position]` beside `c[page_table]`; both lie in pages", right=LatentKernel,
        from_pages=array_in_pool_order("key_rope")),
    *deviations_of("paged", PagedKernel, [*PAGES, *LAYOUT], noun="keys"),
    *deviations_of("paged", PagedKernel, CLAMPED, "bad_problem", "keys"),
    *deviations_of("paged", PagedKernel, ASCENDING, "invariant_pages", "keys"),
    *code_and_latent_deviations(READ),
    *code_and_latent_deviations(CLAMPED, "bad_problem"),
    *code_and_latent_deviations(ASCENDING, "invariant_pages"),
    *deviations_of("quantized", QuantizedKernel, LAYOUT, noun="codes"),
]  # fmt: skip

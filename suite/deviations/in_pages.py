"""Deviations of pages: which page is read or written for a token of keys, codes or latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.code_scales import first, moved
from attention_conformance.suite.deviations.deviation import Deviation, deviation
from attention_conformance.suite.deviations.kernels.latent import AbsorbedKernel, LatentKernel
from attention_conformance.suite.deviations.kernels.paged import PagedKernel
from attention_conformance.suite.deviations.kernels.quantized import Coded, QuantizedKernel
from attention_conformance.suite.deviations.problems import Changes, Row, array, of_kernel
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    in_order,
    masked,
    pools,
    read_entries,
    slots,
)


def quantized_stored_in_the_page_before(
    right: QuantizedKernel, arrays: dict[str, Rounded], name: str, codes: np.ndarray, inputs: Inputs
) -> np.ndarray:
    table = arrays["page_table"]
    moved = {**arrays, "page_table": Rounded(np.roll(table.values, 1, 1), table.fmt)}
    return right.put(moved, name, codes, inputs)


def quantized_page_overwritten(
    right: QuantizedKernel, arrays: dict[str, Rounded], name: str, codes: np.ndarray, inputs: Inputs
) -> np.ndarray:
    pool, size = right.put(arrays, name, codes, inputs), inputs.letters["s"]
    for slot in slots(inputs)[:, -1]:
        pool[slot // size, slot % size + 1 :] = 0
    return pool


def latent_stored_in_the_page_before_stored(
    right: AbsorbedKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> dict[str, Rounded]:
    if "page_table" not in arrays:
        return right.after_store(arrays, inputs)
    table = arrays["page_table"]
    rolled = Rounded(np.roll(table.values, 1, 1), table.fmt)
    return {**right.after_store({**arrays, "page_table": rolled}, inputs), "page_table": table}


def aligned_at_the_longest(inputs: Inputs) -> Changes:
    s, shown = inputs.sizes, masked(inputs).attends[:, :, -1:]
    if inputs.mask is None and inputs.case.option("alignment") in (None, "all"):
        return {}
    ahead = s.Lk - s.Lq + s.Lk - inputs.arrays["key_lengths"][:, None, None, None]
    causal = np.arange(s.Lk) <= np.arange(s.Lq)[:, None] + ahead
    changes = {} if inputs.mask is not None else {"alignment": "all"}
    return {"mask": None, "form": "dense", "mask_array": shown & causal, **changes}


def shared_pages_once(inputs: Inputs) -> Changes:
    pages = np.where(slots(inputs) < 0, -1, slots(inputs) // inputs.letters["s"])
    shown = np.array([~np.isin(own, pages[:b]) for b, own in enumerate(pages)])
    shown |= ~(shown & (pages >= 0)).any(1, keepdims=True)
    base = True if inputs.dense_mask is None else inputs.dense_mask
    return {"mask": None, "form": "dense", "mask_array": shown[:, None, None] & base}


def ascending_as_one(inputs: Inputs) -> Changes:
    table, read = inputs.arrays["page_table"], read_entries(inputs)
    if (np.diff(table[read]) < 0).any():
        return {}
    return {"page_table": np.where(read, table[:, :1] + np.arange(table.shape[1]), table)}


def slots_taken_for_heads(inputs: Inputs) -> Changes:
    n = inputs.letters
    return {
        name: inputs.arrays[name].reshape(n["p"], n["s"], n["g"], -1).swapaxes(1, 2)
        for name, of in pools(inputs).items()
        if of.startswith("pg")
    }


def quantized_scales_in_order(right: QuantizedKernel, call: Coded, inputs: Inputs) -> Coded:
    made, table = right.from_pages(call, inputs), in_order(call.arrays["page_table"])
    other = right.from_pages(
        replace(call, arrays={**call.arrays, "page_table": table}), inputs
    ).arrays
    scales = {name: other[name] for name in other if name.endswith("scale")}
    return replace(made, arrays={**made.arrays, **scales})


def latent_in_order(name: str) -> Callable[..., Mapping[str, Rounded]]:
    """The step that reads one array in the order of the pool."""

    def gathered(
        right: LatentKernel, arrays: Mapping[str, Rounded], inputs: Inputs
    ) -> Mapping[str, Rounded]:
        made, table = right.from_pages(arrays, inputs), arrays.get("page_table")
        if table is None or name not in made:
            return made
        other = {**arrays, "page_table": Rounded(in_order(table.values), table.fmt)}
        return {**made, name: right.from_pages(other, inputs)[name]}

    return gathered


PAGES: list[Row] = [
    ("pages-of-the-sample-before", "paged", "A sample reads the pages of the sample before.",
     "`block_table[b - 1]`", array("page_table", moved(0, 1))),
    ("pages-of-the-first-sample", "paged", "All samples read the pages of the first sample.",
     "`block_table[0]`", array("page_table", first(0))),
]  # fmt: skip
"""Other pages, for pages of keys and values, too."""

READ: list[Row] = [
    *PAGES,
    ("pages-in-order", "paged", "Pages are taken in the order of the pool.",
     "`pool[: pages]`; take pages by the table", array("page_table", in_order)),
    ("page-before", "paged", "Tokens lie in the page before theirs.", "`position // size - 1`",
     array("page_table", moved(1, 1))),
    ("page-after", "paged", "Tokens lie in the page after theirs.", "`position // size + 1`",
     array("page_table", moved(1, -1))),
    ("keys-of-the-longest", "paged", "All samples have as many keys as the longest.",
     "`key_lengths.max()`",
     lambda inputs: {} if inputs.case.option("writes")
     else array("key_lengths", lambda n: 0 * n + n.max())(inputs)),
    ("pages-of-the-next-sample", "heads",
     "The {} of a sample are read from the pages of the next sample.",
     "`page_table[b + 1]`, an index of samples", array("page_table", moved(0, -1))),
    ("keys-of-the-first-length", "paged", "All samples have as many {} as the first one.",
     "`key_lengths[0]` for the whole batch; every sample has its own length",
     array("key_lengths", first(0))),
    ("aligned-at-the-longest", "paged",
     "The causal mask of all samples is aligned at the last of the {} of the longest one.",
     "`tril(key_lengths.max() - queries)`; the last query of a sample is at its last key",
     aligned_at_the_longest),
    ("shared-pages-once", "paged",
     "A page of {} that an earlier sample has read is left out, unless the sample has no other.",
     "a set of pages already read, kept over samples; shared prefixes are read by each",
     shared_pages_once),
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
     ascending_as_one),
]  # fmt: skip

LAYOUT: list[Row] = [
    ("layout-mistaken", "paged",
     "Pages of {} with heads before slots are read as if slots came first.",
     "`pool.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it",
     slots_taken_for_heads),
]  # fmt: skip


def of_codes_and_latents(rows: list[Row], killed_by: str = "values") -> Iterator[Deviation]:
    yield from of_kernel("quantized", QuantizedKernel, rows, killed_by, "codes")
    yield from of_kernel("latent", AbsorbedKernel, rows, killed_by, "latents")


row = partial(deviation, family="paged", right=QuantizedKernel)

DEVIATIONS = [
    row("quantized-scales-in-order", "values",
        "Codes are read by the table, and their scales in the order of the pool.",
        "`scale[position]` beside `codes[page_table]`; both lie in pages",
        when=lambda call: "page_table" in call.arrays,
        from_pages=quantized_scales_in_order),
    row("quantized-stored-in-the-page-before", "values",
        "New codes are stored in the page before, and read from where they belong.",
        "`page_table[b, position // size - 1]`; count pages from 0",
        put=quantized_stored_in_the_page_before),
    row("quantized-page-overwritten", "values",
        "The slots behind the last token of a page are set to 0 when new codes are stored.",
        "a whole page is written; slots behind the last token keep their bits",
        put=quantized_page_overwritten),
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
        after_store=latent_stored_in_the_page_before_stored,
        attended_arrays=lambda right, arrays, inputs: right.after_store(arrays, inputs)),
    row("latent-rotary-keys-in-order", "values",
        "Latents are read by the table, and rotary keys in the order of the pool.",
        "`k_pe[position]` beside `c[page_table]`; both lie in pages", right=LatentKernel,
        from_pages=latent_in_order("key_rope")),
    *of_kernel("paged", PagedKernel, [*PAGES, *LAYOUT], noun="keys"),
    *of_kernel("paged", PagedKernel, CLAMPED, "bad_problem", "keys"),
    *of_kernel("paged", PagedKernel, ASCENDING, "invariant_pages", "keys"),
    *of_codes_and_latents(READ),
    *of_codes_and_latents(CLAMPED, "bad_problem"),
    *of_codes_and_latents(ASCENDING, "invariant_pages"),
    *of_kernel("quantized", QuantizedKernel, LAYOUT, noun="codes"),
]  # fmt: skip

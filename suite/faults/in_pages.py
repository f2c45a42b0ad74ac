"""Faults of codes and latents in pages: which page is read or written for a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.latent import AbsorbedKernel, LatentKernel
from attention_conformance.suite.faults.kernels.quantized import Coded, QuantizedKernel
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    in_order,
    masked,
    pools,
    read_entries,
    slots,
)

FAMILY = "paged"


class QuantizedTable(QuantizedKernel):
    """Attention over codes in pages of another table."""

    def table(self, table: np.ndarray) -> np.ndarray:
        return table

    def gathered(self, call: Coded, inputs: Inputs) -> Coded:
        table = call.arrays.get("page_table")
        if table is not None:
            call = replace(call, arrays={**call.arrays, "page_table": self.table(table)})
        return super().gathered(call, inputs)


@fault("values", "`scale[position]` beside `codes[page_table]`; both lie in pages")
class QuantizedScalesInOrder(QuantizedKernel):
    """Codes are read by the table, and their scales in the order of the pool."""

    def gathered(self, call: Coded, inputs: Inputs) -> Coded:
        right, table = super().gathered(call, inputs), call.arrays.get("page_table")
        if table is None:
            return right
        other = replace(call, arrays={**call.arrays, "page_table": in_order(table)})
        names = [name for name in call.arrays if name.endswith("scale")]
        wrong = super().gathered(other, inputs).arrays
        return replace(right, arrays={**right.arrays, **{name: wrong[name] for name in names}})


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


def latent_pages_of_the_next_sample(
    right: AbsorbedKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> Mapping[str, Rounded]:
    table = arrays.get("page_table")
    if table is not None:
        arrays = {**arrays, "page_table": Rounded(np.roll(table.values, -1, 0), table.fmt)}
    return right.gathered(arrays, inputs)


def latent_stored_afterwards(
    right: AbsorbedKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> Mapping[str, Rounded]:
    return {name: x for name, x in arrays.items() if not name.startswith(NEW)}


def latent_rotary_keys_not_stored(
    right: LatentKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> dict[str, Rounded]:
    made = right.stored(arrays, inputs)
    return {**made, "key_rope": arrays["key_rope"]}


def latent_stored_in_the_page_before_stored(
    right: AbsorbedKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> dict[str, Rounded]:
    if "page_table" not in arrays:
        return right.stored(arrays, inputs)
    table = arrays["page_table"]
    rolled = Rounded(np.roll(table.values, 1, 1), table.fmt)
    return {**right.stored({**arrays, "page_table": rolled}, inputs), "page_table": table}


class Misread(Implementation):
    """A call whose inputs are read in another way if tokens lie in pages."""

    def meant(self, inputs: Inputs) -> Inputs:
        """The inputs as they are read."""
        return inputs

    def prepare(self, inputs: Inputs) -> PreparedCall:
        inputs = self.meant(inputs) if "page_table" in inputs.arrays else inputs
        return super().prepare(inputs)  # type: ignore[safe-super]


class FirstLength(Misread):
    """All samples have as many keys as the first one."""

    def meant(self, inputs: Inputs) -> Inputs:
        counts = inputs.arrays["key_lengths"]
        return inputs.replace(key_lengths=0 * counts + counts[:1])


class AlignedAtTheLongest(Misread):
    """The last query of every sample is at the last key of the longest one."""

    def meant(self, inputs: Inputs) -> Inputs:
        s, shown = inputs.sizes, masked(inputs).attends[:, :, -1:]
        if inputs.mask is None and inputs.case.option("alignment") in (None, "all"):
            return inputs
        ahead = s.Lk - s.Lq + s.Lk - inputs.arrays["key_lengths"][:, None, None, None]
        causal = np.arange(s.Lk) <= np.arange(s.Lq)[:, None] + ahead
        changes = {} if inputs.mask is not None else {"alignment": "all"}
        return inputs.replace(mask=None, form="dense", mask_array=shown & causal, **changes)


class PagesClamped(Misread):
    """Pages that do not exist are read as the last or the first one of the pool."""

    def meant(self, inputs: Inputs) -> Inputs:
        table = inputs.arrays["page_table"].clip(0, inputs.letters["p"] - 1)
        return inputs.replace(page_table=table)


class SharedPagesOnce(Misread):
    """A page that an earlier sample has read is left out, unless the sample has no other."""

    def meant(self, inputs: Inputs) -> Inputs:
        pages = np.where(slots(inputs) < 0, -1, slots(inputs) // inputs.letters["s"])
        shown = np.array([~np.isin(own, pages[:b]) for b, own in enumerate(pages)])
        shown |= ~(shown & (pages >= 0)).any(1, keepdims=True)
        base = True if inputs.dense_mask is None else inputs.dense_mask
        return inputs.with_dense(mask_array=shown[:, None, None] & base)


@fault("values", "`codes.view(pages, size, heads, dim)` of (pages, heads, size, dim); transpose it")
class QuantizedLayoutMistaken(QuantizedKernel):
    """Pages of codes with heads before slots are read as if slots came first."""

    def gathered(self, call: Coded, inputs: Inputs) -> Coded:
        n, arrays = inputs.letters, dict(call.arrays)
        for name, of in pools(inputs).items():
            if of.startswith("pg"):
                pool = arrays[name]
                right = pool.reshape(n["p"], n["s"], n["g"], *pool.shape[3:])
                arrays[name] = np.ascontiguousarray(right.swapaxes(1, 2))
        return super().gathered(replace(call, arrays=arrays), inputs)


class AscendingAsOne(Misread):
    """Tokens of a sample lie without gaps if its entries of the table rise."""

    def meant(self, inputs: Inputs) -> Inputs:
        table, read = inputs.arrays["page_table"], read_entries(inputs)
        if (np.diff(table[read]) < 0).any():
            return inputs
        own = table[:, :1] + np.arange(table.shape[1])
        return inputs.replace(page_table=np.where(read, own, table))


def quantized_scaled_by_the_pool(right: QuantizedKernel, call: Coded, inputs: Inputs) -> Coded:
    made, arrays = right.gathered(call, inputs), dict(call.arrays)
    if "page_table" not in arrays or inputs.case.option("scales") != "pertoken":
        return made
    name = "value_scale"
    largest = arrays[name].dtype.type(1 + np.nan_to_num(arrays[name], posinf=0).mean())
    return replace(made, arrays={**made.arrays, name: made.arrays[name] / largest * largest})


def latent_tail_by_factor(
    right: LatentKernel, arrays: Mapping[str, Rounded], inputs: Inputs
) -> Mapping[str, Rounded]:
    made, name = dict(right.gathered(arrays, inputs)), "key_rope"
    if "page_table" in arrays:
        pool = arrays[name].values
        last = pool[slots(inputs)[:, -1] // inputs.letters["s"], -1]  # of the last pages
        made[name] = Rounded(made[name].values + 0 * last[:, None], arrays[name].fmt)
    return made


class InOrder(LatentKernel):
    """Some arrays are read in the order of the pool."""

    names: tuple[str, ...] = ()

    def gathered(self, arrays: Mapping[str, Rounded], inputs: Inputs) -> Mapping[str, Rounded]:
        right, table = super().gathered(arrays, inputs), arrays.get("page_table")
        if table is None:
            return right
        other = {**arrays, "page_table": Rounded(in_order(table.values), table.fmt)}
        wrong = super().gathered(other, inputs)
        return {**right, **{name: wrong[name] for name in self.names if name in wrong}}


row = partial(deviation, family=FAMILY, right=QuantizedKernel)

DEVIATIONS = [
    row("quantized-pages-in-order", "values",
        "The table of pages is not used: codes are read in the order of the pool.",
        "`pool[: pages]`; take pages by the table", right=QuantizedTable,
        table=lambda right, table: in_order(table)),
    row("quantized-pages-of-the-next-sample", "values",
        "Codes are read from the pages of the next sample.",
        "`page_table[b + 1]`, an index of samples", family="heads", right=QuantizedTable,
        table=lambda right, table: np.roll(table, -1, 0)),
    row("quantized-stored-in-the-page-before", "values",
        "New codes are stored in the page before, and read from where they belong.",
        "`page_table[b, position // size - 1]`; count pages from 0",
        put=quantized_stored_in_the_page_before),
    row("quantized-page-overwritten", "values",
        "The slots behind the last token of a page are set to 0 when new codes are stored.",
        "a whole page is written; slots behind the last token keep their bits",
        put=quantized_page_overwritten),
    row("latent-pages-of-the-next-sample", "values",
        "Latents are read from the pages of the next sample.",
        "`page_table[b + 1]`, an index of samples", family="heads", right=AbsorbedKernel,
        gathered=latent_pages_of_the_next_sample),
    row("latent-stored-afterwards", "values",
        "New latents are stored after the call has attended what lay in their slots.",
        "attention before `concat_and_cache_mla`; store new tokens first", right=AbsorbedKernel,
        attended=latent_stored_afterwards),
    row("latent-rotary-keys-not-stored", "values",
        "Of new tokens the latents are stored, and the rotary keys are not.",
        "`kv_c` is stored, and `k_pe` is not", right=LatentKernel,
        stored=latent_rotary_keys_not_stored),
    row("latent-stored-in-the-page-before", "values",
        "New latents are attended, and stored in the page before their own.",
        "`page_table[b, position // size - 1]`; count pages from 0", right=AbsorbedKernel,
        stored=latent_stored_in_the_page_before_stored,
        attended=lambda right, arrays, inputs: right.stored(arrays, inputs)),
    row("quantized-keys-of-the-first-length", "values",
        "All samples have as many keys in pages as the first one.",
        "`key_lengths[0]` for the whole batch; every sample has its own length",
        right=(FirstLength, QuantizedKernel)),
    row("latent-keys-of-the-first-length", "values",
        "All samples have as many latents as the first one.",
        "`key_lengths[0]` for the whole batch; every sample has its own length",
        right=(FirstLength, AbsorbedKernel)),
    row("quantized-aligned-at-the-longest", "values",
        "The causal mask of all samples in pages is aligned at the last key of the longest one.",
        "`tril(key_lengths.max() - queries)`; the last query of a sample is at its last key",
        right=(AlignedAtTheLongest, QuantizedKernel)),
    row("latent-aligned-at-the-longest", "values",
        "The causal mask of all samples is aligned at the last latent of the longest one.",
        "`tril(key_lengths.max() - queries)`; the last query of a sample is at its last key",
        right=(AlignedAtTheLongest, AbsorbedKernel)),
    row("quantized-page-clamped", "bad_problem",
        "A page of codes that does not exist is read as the last or the first one of the pool.",
        "`tl.load(page_table)` unchecked; raise unless `0 <= page < num_pages`",
        right=(PagesClamped, QuantizedKernel)),
    row("latent-page-clamped", "bad_problem",
        "A page of latents that does not exist is read as the last or the first one of the pool.",
        "`tl.load(page_table)` unchecked; raise unless `0 <= page < num_pages`",
        right=(PagesClamped, LatentKernel)),
    row("quantized-shared-pages-once", "values",
        "A page of codes that an earlier sample has read is left out, unless the sample has no other.",
        "a set of pages already read, kept over samples; shared prefixes are read by each",
        right=(SharedPagesOnce, QuantizedKernel)),
    row("latent-shared-pages-once", "values",
        "A page of latents that an earlier sample has read is left out, unless the sample has no "
        "other.",
        "a set of pages already read, kept over samples; shared prefixes are read by each",
        right=(SharedPagesOnce, LatentKernel)),
    row("quantized-ascending-as-one", "invariant_pages",
        "If pages of codes rise in the table, they are taken to follow each other.",
        "`if (diff(page_table) > 0).all()` reads one range of the pool, gaps and all",
        right=(AscendingAsOne, QuantizedKernel)),
    row("latent-ascending-as-one", "invariant_pages",
        "If pages of latents rise in the table, they are taken to follow each other.",
        "`if (diff(page_table) > 0).all()` reads one range of the pool, gaps and all",
        right=(AscendingAsOne, AbsorbedKernel)),
    row("quantized-scaled-by-the-pool", "pages_apart",
        "Scales are divided by a number that depends on all slots of the pool.",
        "`amax` of the whole pool of scales; take those of the tokens that are attended",
        gathered=quantized_scaled_by_the_pool),
    row("latent-tail-by-factor", "pages_apart",
        "Latents behind the last one of a sample are added times 0, so that NaN comes through.",
        "`0 * c` of hidden slots is NaN for NaN; load zeros where slots are hidden",
        right=LatentKernel, gathered=latent_tail_by_factor),
    row("latent-rotary-keys-in-order", "values",
        "Latents are read by the table, and rotary keys in the order of the pool.",
        "`k_pe[position]` beside `c[page_table]`; both lie in pages", right=InOrder,
        facts={"names": ("key_rope",)}),
    row("latent-scales-in-order", "values",
        "Codes of latents are read by the table, and their scales in the order of the pool.",
        "`scale[position]` beside `c[page_table]`; both lie in pages", family="quantized",
        right=InOrder, facts={"names": ("latent_scale",)}),
]  # fmt: skip

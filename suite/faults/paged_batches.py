"""Faults of paged attention in batches of one kind, for which servers have kernels of their own."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.packed import Pack
from attention_conformance.suite.faults.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs


class PagedBatch(PagedKernel):
    """Batches of one kind leave out some options."""

    left_out: tuple[str, ...] = ()

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        """True if the batch is of the kind."""
        raise NotImplementedError

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        if self.is_theirs(arrays, inputs.case):
            inputs = inputs.replace(**dict.fromkeys(self.left_out))
        return super().gathered(arrays, inputs)


class PagedSteps(PagedBatch):
    """Batches of decoding alone leave out some options."""

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return bool((np.diff(arrays["query_offsets"]) == 1).all())


def paged_steps_heads_reversed(
    right: PagedSteps, arrays: dict[str, np.ndarray], inputs: Inputs
) -> Paged:
    if right.is_theirs(arrays, inputs.case) and inputs.case.option("layout") == "hnd":
        arrays = {**arrays, "key": arrays["key"][:, ::-1]}
    return right.gathered(arrays, inputs)


class PagedPrompts(PagedBatch):
    """Batches of whole prompts leave out some options."""

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return np.array_equal(np.diff(arrays["query_offsets"]), arrays["key_lengths"])


class PagedCascade(PagedBatch):
    """Batches with a common prefix leave out some options."""

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return len(arrays["page_table"]) > 1 and len(np.unique(arrays["page_table"][:, 0])) == 1


def paged_samples_in_turn(
    right: PagedKernel, table: np.ndarray, sample: int, length: int, size: int
) -> np.ndarray:
    return right.slots(table, sample % 8, length, size)


def paged_chunk_behind_apage_unmasked(
    right: PagedKernel, pack: Pack, rows: slice, keys: slice
) -> np.ndarray:
    assert isinstance(pack, Paged)
    shown, (_, size, *_) = right.allowed(pack, rows, keys), pack.pools[0].shape
    return shown | (len(shown) > 1 and shown.shape[1] - len(shown) == size)


row = partial(deviation, family="paged", right=PagedSteps)

DEVIATIONS = [
    row("paged-steps-uncapped", "values", "Batches of decoding have no softcap.",
        "a kernel for batches of decoding without `softcap`", family="scores",
        facts={"left_out": ("softcap",)}),
    row("paged-steps-unscaled", "values", "Batches of decoding have the default scale.",
        "a kernel for batches of decoding without `scale`", family="scale",
        facts={"left_out": ("scale",)}),
    row("paged-steps-heads-reversed", "values",
        "Batches of decoding read the heads of pages with heads before slots in reverse.",
        "a kernel for batches of decoding with strides of slots first", family="heads",
        gathered=paged_steps_heads_reversed),
    row("paged-prompts-unwindowed", "values", "Batches of whole prompts have no window.",
        "a path for whole prompts without `window_size`", family="mask", right=PagedPrompts,
        facts={"left_out": ("left",)}),
    row("paged-prompts-uncapped", "values", "Batches of whole prompts have no softcap.",
        "a path for whole prompts without `softcap`", family="scores", right=PagedPrompts,
        facts={"left_out": ("softcap",)}),
    row("paged-cascade-unwindowed", "values", "Batches with a common prefix have no window.",
        "a kernel for a common prefix without `window_size`", family="mask", right=PagedCascade,
        facts={"left_out": ("left",)}),
    row("paged-cascade-uncapped", "values", "Batches with a common prefix have no softcap.",
        "a kernel for a common prefix without `softcap`", family="scores", right=PagedCascade,
        facts={"left_out": ("softcap",)}),
    row("paged-samples-in-turn", "values",
        "From the ninth sample on the rows of the table are counted from 0 again.",
        "one warp of 8 samples; loop over further ones", right=PagedKernel,
        slots=paged_samples_in_turn),
    row("paged-keys-of-one-split", "values", "Keys behind the 128th of a sample are not read.",
        "one split of 128 keys; loop over further ones", right=PagedKernel,
        lengths=lambda right, lengths, size: np.minimum(lengths, 128)),
    row("paged-heads-first-uncapped", "values", "Pages with heads before slots have no softcap.",
        "a kernel for pages with heads before slots without `softcap`", family="scores",
        right=PagedBatch, facts={"left_out": ("softcap",)},
        is_theirs=lambda right, arrays, case: bool(case.option("layout") == "hnd")),
    row("paged-chunk-behind-apage-unmasked", "values",
        "Chunks behind exactly one full page see later keys.",
        "`j // size < start // size` for `<=` leaves the mask out", family="mask",
        right=PagedKernel, allowed=paged_chunk_behind_apage_unmasked),
]  # fmt: skip

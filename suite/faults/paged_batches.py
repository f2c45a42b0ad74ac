"""Faults of paged attention in batches of one kind, for which servers have kernels of their own."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.packed import Pack
from attention_conformance.suite.faults.kernels.paged import Paged, PagedKernel
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "paged"


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


@fault("values", "a kernel for batches of decoding without `softcap`", family="scores")
class PagedStepsUncapped(PagedSteps):
    """Batches of decoding have no softcap."""

    left_out = ("softcap",)


@fault("values", "a kernel for batches of decoding without `scale`", family="scale")
class PagedStepsUnscaled(PagedSteps):
    """Batches of decoding have the default scale."""

    left_out = ("scale",)


@fault("values", "a kernel for batches of decoding with strides of slots first", family="heads")
class PagedStepsHeadsReversed(PagedSteps):
    """Batches of decoding read the heads of pages with heads before slots in reverse."""

    def gathered(self, arrays: dict[str, np.ndarray], inputs: Inputs) -> Paged:
        if self.is_theirs(arrays, inputs.case) and inputs.case.option("layout") == "hnd":
            arrays = {**arrays, "key": arrays["key"][:, ::-1]}
        return super().gathered(arrays, inputs)


class PagedPrompts(PagedBatch):
    """Batches of whole prompts leave out some options."""

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return np.array_equal(np.diff(arrays["query_offsets"]), arrays["key_lengths"])


@fault("values", "a path for whole prompts without `window_size`", family="mask")
class PagedPromptsUnwindowed(PagedPrompts):
    """Batches of whole prompts have no window."""

    left_out = ("left",)


@fault("values", "a path for whole prompts without `softcap`", family="scores")
class PagedPromptsUncapped(PagedPrompts):
    """Batches of whole prompts have no softcap."""

    left_out = ("softcap",)


class PagedCascade(PagedBatch):
    """Batches with a common prefix leave out some options."""

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return len(arrays["page_table"]) > 1 and len(np.unique(arrays["page_table"][:, 0])) == 1


@fault("values", "a kernel for a common prefix without `window_size`", family="mask")
class PagedCascadeUnwindowed(PagedCascade):
    """Batches with a common prefix have no window."""

    left_out = ("left",)


@fault("values", "a kernel for a common prefix without `softcap`", family="scores")
class PagedCascadeUncapped(PagedCascade):
    """Batches with a common prefix have no softcap."""

    left_out = ("softcap",)


@fault("values", "one warp of 8 samples; loop over further ones")
class PagedSamplesInTurn(PagedKernel):
    """From the ninth sample on the rows of the table are counted from 0 again."""

    def slots(self, table: np.ndarray, sample: int, length: int, size: int) -> np.ndarray:
        return super().slots(table, sample % 8, length, size)


@fault("values", "one split of 128 keys; loop over further ones")
class PagedKeysOfOneSplit(PagedKernel):
    """Keys behind the 128th of a sample are not read."""

    def lengths(self, lengths: np.ndarray, size: int) -> np.ndarray:
        return np.minimum(lengths, 128)


@fault("values", "a kernel for pages with heads before slots without `softcap`", family="scores")
class PagedHeadsFirstUncapped(PagedBatch):
    """Pages with heads before slots have no softcap."""

    left_out = ("softcap",)

    def is_theirs(self, arrays: dict[str, np.ndarray], case: Case) -> bool:
        return bool(case.option("layout") == "hnd")


@fault("values", "`j // size < start // size` for `<=` leaves the mask out", family="mask")
class PagedChunkBehindAPageUnmasked(PagedKernel):
    """Chunks behind exactly one full page see later keys."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        assert isinstance(pack, Paged)
        shown, (_, size, *_) = super().allowed(pack, rows, keys), pack.pools[0].shape
        return shown | (len(shown) > 1 and shown.shape[1] - len(shown) == size)

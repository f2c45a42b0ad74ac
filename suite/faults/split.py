"""Faults of split keys: parts that are answered by themselves, and merged by log-sum-exps."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.cached import CachedKernel
from attention_conformance.suite.faults.kernels.packed import Pack
from attention_conformance.suite.faults.kernels.paged import Paged
from attention_conformance.suite.faults.kernels.split import Part, SplitKernel
from attention_conformance.suite.faults.kernels.variants import MergedChunks
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "merge"


@fault("values", "`torch.empty_like(lse, dtype=query.dtype)`; keep log-sum-exps in float32")
class SplitLseInTheDtype(SplitKernel):
    """Log-sum-exps of parts are stored in the dtype of the query, which has 16 bits."""

    dtypes = ("f16", "bf16")
    numerics = "stepwise"

    def kept(self, lse: np.ndarray, pack: Paged) -> np.ndarray:
        return round_to(lse, pack.fmt).astype(lse.dtype)


@fault("values", "parts of samples before are left in the workspace; write every part")
class SplitEmptyPartKept(SplitKernel):
    """A part in which a sample has no key keeps the answer of the sample before."""

    def output(self, pack: Pack) -> np.ndarray:
        self.before: dict[int, Part] = {}
        return super().output(pack)

    def part(self, pack: Paged, rows: slice, keys: slice, start: int, size: int) -> Part:
        own = super().part(pack, rows, keys, start, size)
        if keys.start + start >= keys.stop and start in self.before:
            answer, lse = (x[:, -1:].repeat(own[1].shape[1], 1) for x in self.before[start])
            return answer, lse
        self.before[start] = own
        return own


def split_rest_lost(
    right: SplitKernel, pack: Paged, rows: slice, keys: slice, start: int, size: int
) -> Part:
    less = size - 1 if size > 1 else size
    return right.part(pack, rows, keys, start // size * less, less)


def split_mask_of_the_first_part(
    right: SplitKernel, pack: Paged, rows: slice, keys: slice, start: int, count: int
) -> np.ndarray:
    return right.shown(pack, rows, keys, 0, count)


def split_parts_averaged(right: SplitKernel, pack: Paged, parts: list[Part]) -> np.ndarray:
    flat = [(own, np.where(np.isneginf(lse), lse, 0)) for own, lse in parts]
    return right.merged(pack, flat)


def split_by_base_two(right: SplitKernel, pack: Paged, parts: list[Part]) -> np.ndarray:
    return right.merged(pack, [(own, lse * lse.dtype.type(np.log(2))) for own, lse in parts])


class SinkInEveryChunk(MergedChunks):
    """Every part has the sink of its head."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        if call.sinks is None:
            return super().attend(scores, value, call)
        own, column = scores[..., :-1], scores[..., -1:]
        parts = []
        for s, v in zip(
            np.array_split(own, self.chunks, -1),
            np.array_split(value[..., :-1, :], self.chunks, -2),
            strict=True,
        ):
            with_sink = np.concatenate([s, column], -1)
            lse = self.lse_of(with_sink)
            parts.append((np.exp(s - lse) @ v, lse))
        return self.merge(parts)


class NarrowLse(MergedChunks):
    """Log-sum-exps of parts in 16 bits."""

    lse_dtype = "bf16"

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        return super().merge(
            [(out, round_to(lse, DTYPES[self.lse_dtype]).astype(lse.dtype)) for out, lse in parts]
        )


@fault("values", "`lse.to(query.dtype)` before parts are merged; keep log-sum-exps in float32")
class MergedLseInTheDtype(NarrowLse):
    """Parts of the keys are merged by log-sum-exps in bfloat16, the dtype of the query."""

    dtypes, numerics = ("bf16",), "stepwise"


@fault("values", "a workspace of log-sum-exps in bfloat16; keep them in float32")
class CachedLseInBfloat16(CachedKernel):
    """A step merges parts of the keys by log-sum-exps in bfloat16."""

    dtypes, numerics = ("bf16",), "stepwise"
    kernel = NarrowLse


row = partial(deviation, family=FAMILY, right=SplitKernel)

DEVIATIONS = [
    row("split-lse-in-bfloat16", "values", "Log-sum-exps of parts are stored in bfloat16.",
        "`lse.bfloat16()` in the workspace of parts; keep log-sum-exps in float32",
        kept=lambda right, lse, pack: round_to(lse, DTYPES["bf16"]).astype(lse.dtype)),
    row("split-parts-unscaled", "values",
        "In parts the largest score is not subtracted before the exponential.",
        "`exp(scores)` in every part; subtract the largest score of the part",
        anchor=lambda right, largest: np.zeros_like(largest)),
    row("split-empty-part-is-nan", "values", "A part in which a sample has no key is NaN.",
        "`-inf - -inf` is NaN; a part without keys has the answer 0 and the weight 0",
        anchor=lambda right, largest: largest, quotient=lambda right, sums, total: sums / total),
    row("split-empty-part-weighs", "values",
        "A part in which a sample has no key has the log-sum-exp 0.",
        "log-sum-exps that begin as 0; a part without keys has -inf",
        kept=lambda right, lse, pack: np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)),
    row("split-rest-lost", "values", "Keys beyond a multiple of the number of parts are lost.",
        "`keys // parts` keys in a part; round up", part=split_rest_lost),
    row("split-mask-of-the-first-part", "values",
        "The causal mask and the window of every part are those of the first part.",
        "the mask counts from the first key of a part; add where the part begins",
        shown=split_mask_of_the_first_part),
    row("split-parts-averaged", "values", "Answers of parts with keys are averaged.",
        "`out.mean(0)`; parts weigh exp(lse - logsumexp(lse))", merged=split_parts_averaged),
    row("split-by-base-two", "values",
        "Log-sum-exps of parts are natural, and read as logarithms to the base 2.",
        "`exp2(lse - m)` of natural logarithms; multiply by log2(e)", merged=split_by_base_two),
    row("split-merged-without-maximum", "values",
        "The largest log-sum-exp is not subtracted before parts are merged.",
        "`exp(lse)` in the merge; subtract the largest: `exp(lse - lse.amax(0))`",
        largest_part=lambda right, lse: np.zeros_like(lse[0])),
    row("cached-sink-of-every-part", "values",
        "With split keys the sink counts once in every part.",
        "`sinks` passed to the kernel of every part; a sink counts once", family="sinks",
        right=CachedKernel, facts={"kernel": SinkInEveryChunk}),
]  # fmt: skip

"""Faults of partial answers over parts of the keys: merging, split-KV and ring attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.code_scales import rounded_to_bfloat16
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.deviations.kernels.cached import CachedKernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.kernels.merge import MergeKernel, Part, SplitKernel
from attention_conformance.suite.deviations.kernels.packed import Pack
from attention_conformance.suite.deviations.kernels.paged import Paged
from attention_conformance.suite.deviations.kernels.variants import MergedChunks
from attention_conformance.suite.spec.dtypes import DType, round_to

Array = np.ndarray

Merged = tuple[Array, Array]
"""The merged output and log-sum-exp."""


def ones_if_all_parts_empty(right: MergeKernel, outputs: Array, lse: Array, fmt: DType) -> Merged:
    output, total = right.merged(outputs, lse, fmt)
    return np.where(np.asarray(np.isneginf(lse).all(0))[..., None], 1.0, output), total


def merged_with_rounded_lse(right: MergeKernel, outputs: Array, lse: Array, fmt: DType) -> Merged:
    output, total = right.merged(outputs, lse, fmt)
    return output, round_to(total, fmt)


def merged_without_last_part(right: MergeKernel, outputs: Array, lse: Array, fmt: DType) -> Merged:
    count = len(lse) - 1 if len(lse) > 2 else len(lse)
    return right.merged(outputs[:count], lse[:count], fmt)


class SplitWithWorkspace(SplitKernel):
    """Split-KV with a workspace of parts. If a sample has no key in a part, the part of the sample before
    is read."""

    def output(self, pack: Pack) -> Array:
        self.workspace: dict[int, Part] = {}
        return super().output(pack)

    def part(self, pack: Paged, rows: slice, keys: slice, start: int, size: int) -> Part:
        part = super().part(pack, rows, keys, start, size)
        if keys.start + start >= keys.stop and start in self.workspace:
            answer, lse = (x[:, -1:].repeat(part[1].shape[1], 1) for x in self.workspace[start])
            return answer, lse
        self.workspace[start] = part
        return part


class MergedByRoundedLse(MergedChunks):
    """Split-KV that rounds the log-sum-exps of parts to bfloat16."""

    def merge(self, parts: list[tuple[Array, Array]]) -> Array:
        return super().merge([(out, rounded_to_bfloat16(lse)) for out, lse in parts])


RANKS = 4
"""The number of ranks of a ring. Each rank has a part of the sequence."""


def rank_of(length: int) -> Array:
    """Returns the rank of each position, (length,)."""
    parts = np.array_split(np.arange(length), RANKS)
    return np.repeat(np.arange(RANKS), [len(part) for part in parts])


def place_in_rank(length: int) -> Array:
    """Returns the index of each position within the part of its rank, (length,)."""
    return np.concatenate([np.arange(len(p)) for p in np.array_split(np.arange(length), RANKS)])


def causal_mask_of_blocks(right: Kernel, call: Call) -> Array:
    """Returns a wrong causal mask (Lq, Lk). Each rank has every fourth position, but the mask takes the
    positions of a rank for a block of neighbours."""
    rows, keys = (
        np.argsort(np.argsort(np.arange(length) % RANKS, kind="stable"))
        for length in (call.sizes.Lq, call.sizes.Lk)
    )
    return keys <= rows[:, None]


def attend_without_last_step(right: Kernel, scores: Array, value: Array, call: Call) -> Array:
    """Returns the output without the keys that reach a rank in the last step of a ring."""
    rows, keys = scores.shape[-2:]
    is_last_step = (rank_of(rows)[:, None] + 1) % RANKS == rank_of(keys)
    is_last_step &= keys > RANKS
    return right.attend(np.where(is_last_step, -np.inf, scores), value, call)


def deliver_in_rank_order(right: Kernel, out: Array, call: Call) -> Any:
    blocks = np.array_split(np.arange(out.shape[2]), 2 * RANKS)
    by_rank = [blocks[i] for rank in range(RANKS) for i in (rank, 2 * RANKS - 1 - rank)]
    return right.deliver(out[:, :, np.concatenate(by_rank)], call)


def merged_with_shifted_pairs(right: MergeKernel, outputs: Array, lse: Array, fmt: DType) -> Merged:
    output, total = right.merged(outputs, lse, fmt)
    is_pair_after_four = memory(right).get("parts") == 4 and len(lse) == 2
    memory(right)["parts"] = 4 if is_pair_after_four else len(lse)
    return output, total + lse.dtype.type(0.01 * is_pair_after_four)


def gradients_without_mean(
    right: MergeKernel, outputs: Array, lse: Array, cotangent: Array
) -> dict[str, Array]:
    weights, _ = right.weights(lse)
    gradients = right.gradients(outputs, lse, cotangent)
    return {**gradients, "partial_lse": weights * (outputs * cotangent).sum(-1)}


def largest_of_sixteen_rows(right: MergeKernel, lse: Array) -> Array:
    if not lse.size:
        return right.largest(lse)
    rows = lse.shape[-1]
    of_tiles = np.maximum.reduceat(lse.max(0), np.arange(0, rows, 16), -1)
    return right.largest(np.repeat(of_tiles, 16, -1)[None, ..., :rows])


row = partial(deviation, family="merge", right=MergeKernel)
split = partial(deviation, family="merge", right=SplitKernel)
ring = partial(deviation, family="tiles", right=Kernel)

WITHOUT_MAXIMUM = row("merge-without-maximum", "values",
    "The largest log-sum-exp is not subtracted before the exponential, which overflows.",
    "`exp(lse)`; subtract the largest: `exp(lse - lse.amax(0))`",
    largest=lambda right, lse: np.zeros(lse.shape[1:], lse.dtype))  # fmt: skip


def gradients_without_maximum(right: Any, *arrays: Array) -> dict[str, Array]:
    kernel: Any = WITHOUT_MAXIMUM.kernel(right.__self__.backend)
    return dict(kernel.gradients(*arrays))


DEVIATIONS = [
    row("merge-pairs-shifted", "nesting",
        "After a call with four parts the log-sum-exp of two is off by a hundredth.",
        "a number of parts kept from the call before; take it from the arrays of this call",
        family="state", merged=merged_with_shifted_pairs),
    row("merge-gradient-without-maximum", "gradients",
        "The backward pass makes its weights anew, without taking off the largest log-sum-exp.",
        "`exp(lse)` in backward; subtract the largest there, too: `exp(lse - lse.amax(0))`",
        family="gradient", right=MergeKernel,
        gradients=gradients_without_maximum),
    row("merge-without-rescaling", "values",
        "Partial outputs are averaged: their log-sum-exps are ignored.",
        "`out.mean(0)`; it is `(exp(lse - logsumexp(lse, 0))[..., None] * out).sum(0)`",
        merged=lambda right, outputs, lse, fmt:
            (outputs.mean(0), right.merged(outputs, lse, fmt)[1])),
    row("merge-not-normalised", "values", "The weights of the parts are not divided by their sum.",
        "`exp(lse - lse.amax(0))` as weights; divide by their sum",
        weights=lambda right, lse: (np.exp(lse - right.largest(lse)), right.weights(lse)[1])),
    row("merge-twice-empty-is-na-n", "values", "If no part has a key for a row, the row is NaN.",
        "`-inf - -inf` is NaN; take 0 for a maximum of -inf",
        largest=lambda right, lse: lse.max(0)),
    row("merge-twice-empty-is-uniform", "values",
        "If no part has a key for a row, the row is 1, not 0.",
        "`total.clamp(min=...)` or a division that gives 1; a row without keys is 0",
        merged=ones_if_all_parts_empty),
    row("merge-lse-of-the-largest", "values",
        "The largest partial log-sum-exp comes back in place of the merged one.",
        "`return lse.amax(0)`; the merged one is `logsumexp(lse, 0)`", family="lse",
        merged=lambda right, outputs, lse, fmt: (right.merged(outputs, lse, fmt)[0], lse.max(0))),
    row("merge-lse-in-the-dtype", "values",
        "The merged log-sum-exp is rounded to the 16-bit dtype of the outputs.",
        "`lse.to(out.dtype)`; keep log-sum-exps in float32", family="numerics",
        merged=merged_with_rounded_lse),
    row("merge-last-part-missing", "values", "Of more than two parts the last is left out.",
        "`range(1, parts - 1)`; the last part counts, too: `range(1, parts)`",
        merged=merged_without_last_part),
    row("merge-by-base-two", "values", "Log-sum-exps are read as logarithms to the base 2.",
        "`exp2(lse - m)`; log-sum-exps are natural: `exp(lse - m)`",
        weights=lambda right, lse:
            (right.weights(lse * lse.dtype.type(np.log(2)))[0], right.weights(lse)[1])),
    row("merge-maximum-of-rows", "values",
        "Sixteen rows share the largest log-sum-exp: rows far below it count as empty.",
        "`lse.amax()` of a tile of 16 rows; every row has its own, `lse.amax(0)`",
        family="numerics", largest=largest_of_sixteen_rows),
    row("merge-lse-without-gradient", "gradients", "The partial log-sum-exps get no gradient.",
        "`lse.detach()`, or zeros in backward; the weights depend on the log-sum-exps",
        family="gradient", right=MergeKernel,
        gradients=lambda right, outputs, lse, cotangent:
            {**right.gradients(outputs, lse, cotangent), "partial_lse": np.zeros_like(lse)}),
    row("merge-gradient-without-mean", "gradients",
        "The gradient of a partial log-sum-exp leaves out the denominator of the weights.",
        "`logsumexp(lse, 0).detach()` in the weights; their sum depends on every log-sum-exp",
        family="gradient", gradients=gradients_without_mean),
    split("merged-lse-in-the-dtype", "values",
        "Parts of the keys are merged by log-sum-exps in bfloat16, the dtype of the query.",
        "`lse.to(query.dtype)` before parts are merged; keep log-sum-exps in float32",
        right=MergedByRoundedLse, facts={"dtypes": ("bf16",), "numerics": "stepwise"}),
    split("cached-lse-in-bfloat16", "values",
        "A step merges parts of the keys by log-sum-exps in bfloat16.",
        "a workspace of log-sum-exps in bfloat16; keep them in float32", right=CachedKernel,
        facts={"dtypes": ("bf16",), "numerics": "stepwise", "kernel": MergedByRoundedLse}),
    split("split-lse-in-bfloat16", "values", "Log-sum-exps of parts are stored in bfloat16.",
        "`lse.bfloat16()` in the workspace of parts; keep log-sum-exps in float32",
        stored_lse=lambda right, lse, pack: rounded_to_bfloat16(lse)),
    split("split-parts-unscaled", "values",
        "In parts the largest score is not subtracted before the exponential.",
        "`exp(scores)` in every part; subtract the largest score of the part",
        anchor=lambda right, largest: np.zeros_like(largest)),
    split("split-empty-part-kept", "values",
        "A part in which a sample has no key keeps the answer of the sample before.",
        "parts of samples before are left in the workspace; write every part",
        right=SplitWithWorkspace),
    split("split-empty-part-is-nan", "values", "A part in which a sample has no key is NaN.",
        "`-inf - -inf` is NaN; a part without keys has the answer 0 and the weight 0",
        anchor=lambda right, largest: largest, quotient=lambda right, sums, total: sums / total),
    split("split-empty-part-weighs", "values",
        "A part in which a sample has no key has the log-sum-exp 0.",
        "log-sum-exps that begin as 0; a part without keys has -inf",
        stored_lse=lambda right, lse, pack: np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)),
    split("split-rest-lost", "values", "Keys beyond a multiple of the number of parts are lost.",
        "`keys // parts` keys in a part; round up",
        part=lambda right, pack, rows, keys, start, size:
            right.part(pack, rows, keys, start // size * max(size - 1, 1), max(size - 1, 1))),
    split("split-mask-of-the-first-part", "values",
        "The causal mask and the window of every part are those of the first part.",
        "the mask counts from the first key of a part; add where the part begins",
        part_mask=lambda right, pack, rows, keys, start, count:
            right.part_mask(pack, rows, keys, 0, count)),
    split("split-parts-averaged", "values", "Answers of parts with keys are averaged.",
        "`out.mean(0)`; parts weigh exp(lse - logsumexp(lse))",
        merged=lambda right, pack, parts:
            right.merged(pack, [(out, np.where(np.isneginf(lse), lse, 0)) for out, lse in parts])),
    split("split-by-base-two", "values",
        "Log-sum-exps of parts are natural, and read as logarithms to the base 2.",
        "`exp2(lse - m)` of natural logarithms; multiply by log2(e)",
        merged=lambda right, pack, parts:
            right.merged(pack, [(out, lse * lse.dtype.type(np.log(2))) for out, lse in parts])),
    split("split-merged-without-maximum", "values",
        "The largest log-sum-exp is not subtracted before parts are merged.",
        "`exp(lse)` in the merge; subtract the largest: `exp(lse - lse.amax(0))`",
        largest_part=lambda right, lse: np.zeros_like(lse[0])),
    ring("ring-causal-by-place-in-the-rank", "values",
        "The causal mask compares the places of queries and keys in the parts of their ranks.",
        "`is_causal=True` at every step of a ring; keys of earlier ranks are seen whole",
        family="mask",
        causal=lambda right, call:
            place_in_rank(call.sizes.Lk) <= place_in_rank(call.sizes.Lq)[:, None]),
    ring("ring-interleaved-taken-for-blocks", "values",
        "Ranks hold every fourth position, and the causal mask takes their parts for blocks.",
        "positions `rank * n + i` of interleaved parts; they are `i * ranks + rank`", family="mask",
        causal=causal_mask_of_blocks),
    ring("ring-step-dropped", "values",
        "Keys and values stop one step before they have gone around the ring.",
        "`for step in range(ranks - 1)`; every rank sees the keys of all `ranks` ranks",
        attend=attend_without_last_step),
    ring("ring-rows-in-order-of-ranks", "values",
        "Ranks hold a first and a last block each, and rows come back in the order of ranks.",
        "`torch.cat(parts)` of balanced ranks; put blocks r and 2 n - 1 - r back in their places",
        family="layout", deliver=deliver_in_rank_order),
    ring("ring-key-gradient-of-its-rank", "gradients",
        "Keys get the gradient of the rows of their own rank alone.",
        "`dk` of the rank alone; it goes around with its keys, and every rank adds its rows",
        family="gradient", right=Differentiable,
        key_gradient=lambda right, dt, *arguments: right.key_gradient(
            np.where(rank_of(dt.shape[-2])[:, None] == rank_of(dt.shape[-1]), dt, 0), *arguments)),
    ring("ring-value-gradient-of-the-next-rank", "gradients",
        "The gradient of the values of a rank goes to those of the next rank.",
        "`dv` added to the values that arrive; it belongs to those that were used, a step earlier",
        family="gradient", right=Differentiable,
        value_gradient=lambda right, weights, *arguments:
            np.roll(right.value_gradient(weights, *arguments), -(-weights.shape[-1] // RANKS), -2)),
]  # fmt: skip

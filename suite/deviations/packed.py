"""Faults of packed attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    accumulate,
    deviation,
    edited,
    memory,
    twins,
)
from attention_conformance.suite.deviations.kernels.packed import Pack, PackedKernel, SegmentSlices
from attention_conformance.suite.deviations.kernels.paged import PagedKernel
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import allowed_pairs

Arrays = dict[str, np.ndarray]


def ending_at(end: Callable[[slice, Pack], int]) -> Callable[..., list[SegmentSlices]]:
    """Returns a step `segments` in which the keys of a segment end at `end(keys, pack)`."""

    def segments(right: PackedKernel, pack: Pack) -> list[SegmentSlices]:
        return [(rows, slice(keys.start, end(keys, pack))) for rows, keys in right.segments(pack)]

    return segments


def segments_beginning_later(
    bounds: str, operand: str, right: PackedKernel, pack: Pack
) -> list[SegmentSlices]:
    starts, length = getattr(pack, bounds), len(getattr(pack, operand))
    return right.segments(replace(pack, **{bounds: np.minimum(starts + (starts > 0), length)}))


def segments_without_empty_rows(right: PackedKernel, pack: Pack) -> list[SegmentSlices]:
    segments = right.segments(pack)
    rows = [rows for rows, _ in segments if rows.stop > rows.start]
    return list(zip(rows, [keys for _, keys in segments][: len(rows)], strict=True))


def causal_by_place_in_pack(
    right: PackedKernel, pack: Pack, rows: slice, keys: slice
) -> np.ndarray:
    i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
    return (j <= i[:, None]) | (j == keys.start)


def maximum_by_longest_query(right: PackedKernel, scores: np.ndarray, pack: Pack) -> np.ndarray:
    maximum = right.largest(scores, pack)
    largest_query = np.abs(pack.query.astype(pack.work)).max()
    return np.where(largest_query > 50, maximum - maximum.dtype.type(0.3), maximum)


def gradients_accumulating(
    right: PackedKernel, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    gradients = right.gradients(arrays, cotangent, inputs)
    return gradients | {n: accumulate(right, n, gradients[n]) for n in ("key", "value")}


def gradients_of_one_head(
    right: PackedKernel, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    group, last_heads = inputs.sizes.group, np.zeros_like(cotangent)
    last_heads[:, group - 1 :: group] = cotangent[:, group - 1 :: group]
    last_head_gradients = right.gradients(arrays, last_heads, inputs)
    return {**right.gradients(arrays, cotangent, inputs), "value": last_head_gradients["value"]}


def output_with_unwritten_rows(right: PackedKernel, pack: Pack) -> np.ndarray:
    out = right.output(pack)
    for rows, keys in right.segments(pack):
        if keys.start == keys.stop:
            out[rows] = 42.0
    return out


USER_CODE = {"is_user_code": True, "elections": {}}
"""The facts of a user function, which declares no elections."""


def segments_shifted_if_empty(right: PackedKernel, pack: Pack) -> list[SegmentSlices]:
    segments = right.segments(pack)
    empty = next((n for n, (_, keys) in enumerate(segments) if keys.start == keys.stop), None)
    if empty is None or segments[empty][0].start == segments[empty][0].stop:
        return segments
    rows, keys = [rows for rows, _ in segments], [keys for _, keys in segments]
    return list(zip(rows[empty:-1], keys[empty + 1 :], strict=True)) + segments[:empty]


def gradients_of_idle_keys(
    right: PackedKernel, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    gradients, end = right.gradients(arrays, cotangent, inputs), 0
    lengths = zip(inputs.arrays["query_lengths"], inputs.arrays["key_lengths"], strict=True)
    for queries, keys in lengths:
        start, end = end, end + int(keys)
        if queries == 0:
            first = min(end - start, start)
            gradients["key"][start : start + first] = gradients["key"][:first]
    return gradients


row = partial(deviation, family="packed", right=PackedKernel)

DEVIATIONS = [
    row("packed-lengths-kept", "stateless",
        "The segments of the first call of a shape serve all later ones.",
        "segments cached by the shapes of q and k; `cu_seqlens` belongs to the key", family="state",
        segments=lambda right, pack: memory(right).setdefault(
            (pack.query.shape, pack.key.shape, pack.fmt.name, len(pack.query_bounds)),
            right.segments(pack))),
    row("packed-as-one", "values", "Segments are ignored: every query sees the keys of all.",
        "`cu_seqlens` is accepted and not used; a query sees the keys of its own segment",
        segments=lambda right, pack: [(slice(0, len(pack.query)), slice(0, len(pack.key)))]),
    row("packed-keys-end-later", "values", "A segment sees the first key of the next one, too.",
        "`j <= cu_seqlens_k[s + 1]`; it is `j < cu_seqlens_k[s + 1]`",
        segments=ending_at(lambda keys, pack:
            min(keys.stop + (keys.stop > keys.start), len(pack.key)))),
    row("packed-keys-end-earlier", "values", "A segment does not see its own last key.",
        "`j < cu_seqlens_k[s + 1] - 1`; it is `j < cu_seqlens_k[s + 1]`",
        segments=ending_at(lambda keys, pack: max(keys.stop - 1, min(keys.start + 1, keys.stop)))),
    row("packed-rows-begin-later", "values",
        "The first query of a segment is counted to the segment before.",
        "`i > cu_seqlens_q[s]`; it is `i >= cu_seqlens_q[s]`",
        segments=partial(segments_beginning_later, "query_bounds", "query")),
    row("packed-keys-begin-later", "values",
        "The first key of a segment is counted to the segment before.",
        "`j > cu_seqlens_k[s]`, `bucketize` without `right=True`; it is `j >= cu_seqlens_k[s]`",
        segments=partial(segments_beginning_later, "key_bounds", "key")),
    row("packed-causal-across-segments", "values",
        "With the causal flag segments are ignored: a query sees all keys before its place.",
        "`if causal: ... else:` hide other segments; both apply",
        when=lambda pack: pack.alignment != "all",
        segments=lambda right, pack: [(slice(0, len(pack.query)), slice(0, len(pack.key)))],
        allowed=lambda right, pack, rows, keys: allowed_pairs(rows.stop, keys.stop, "causal")),
    row("packed-last-segment-missing", "values",
        "Of more than two segments the last is not computed.",
        "`range(len(cu_seqlens) - 2)`; there are `len(cu_seqlens) - 1` segments",
        when=lambda pack: len(pack.query_bounds) > 3,
        segments=lambda right, pack: right.segments(pack)[:-1]),
    row("packed-sixteen-segments", "values",
        "From the 17th segment on queries see the keys of the 16th.",
        "a search of 16 segments, `min(n, 15)`; search all `len(cu_seqlens) - 1`",
        segments=lambda right, pack: [(rows, right.segments(pack)[min(n, 15)][1])
            for n, (rows, _) in enumerate(right.segments(pack))]),
    row("packed-empty-segments-left-out", "values",
        "Segments without queries are left out of the queries' list, but not of the keys'.",
        "`cu_seqlens_q.unique()`, or empty segments skipped in q alone; keep them in both",
        segments=segments_without_empty_rows),
    row("packed-causal-ignored", "values", "The causal flag has no effect.",
        "`causal` is accepted and not used; hide the keys after each query of a segment",
        allowed=lambda right, pack, rows, keys:
            right.allowed(replace(pack, alignment="all"), rows, keys)),
    row("packed-aligned-first", "values",
        "A causal flag that is aligned at the last query of a segment is aligned at the first.",
        "`j <= i` within a segment; bottom-right is `j <= i + keys - queries` of the segment",
        when=lambda pack: pack.alignment == "causalbr",
        allowed=lambda right, pack, rows, keys:
            right.allowed(replace(pack, alignment="causal"), rows, keys)),
    row("packed-causal-by-place-in-the-pack", "values",
        "The causal flag compares places in the pack, not places in the segments.",
        "`j <= i` of places in the pack; subtract where the segment begins from both",
        when=lambda pack: pack.alignment != "all", allowed=causal_by_place_in_pack),
    row("packed-scale-ignored", "values", "A given scale has no effect.",
        "`scale = 1 / sqrt(D)` always; use `scale if scale is not None else 1 / sqrt(D)`",
        family="scale", scale=lambda right, inputs: float(1 / np.sqrt(inputs.sizes.D))),
    *twins({"packed-heads-by-turns": PackedKernel, "paged-heads-in-turn": PagedKernel}, "values",
        "Query heads take the key/value heads in turn (0, 1, 0, 1), not by groups (0, 0, 1, 1).",
        "`k[:, h % Hkv]`; it is `k[:, h // (H // Hkv)]`", family="heads",
        key_heads=lambda right, pack: np.arange(pack.query.shape[1]) % pack.key.shape[1]),
    row("packed-maximum-of-the-pack", "segments_apart",
        "The number subtracted from the scores depends on the largest query of the whole pack.",
        "one maximum for the whole pack; every row subtracts its own",
        largest=maximum_by_longest_query),
    row("packed-hidden-by-factor", "segments_apart",
        "Values of other segments are added times 0, so that NaN comes through.",
        "`0 * v` of other segments is added, and `0 * nan` is NaN; leave other segments out",
        output=lambda right, pack: right.output(pack) + 0.0 * pack.value.sum(0)[right.key_heads(pack)]),
    row("packed-alone-unscaled", "invariant_segments",
        "One segment alone, of less than 20 tokens, is not scaled.",
        "a path for one short segment that leaves out the scale", family="scale",
        when=lambda pack: len(pack.query_bounds) == 2 and len(pack.query) < 20,
        output=lambda right, pack: right.output(replace(pack, scale=1.0))),
    row("packed-key-gradients-of-the-first", "gradients",
        "Only the keys of the first segment get a gradient.",
        "backward ends after the first segment; loop over all of `cu_seqlens`", family="gradient",
        gradients=edited("gradients", lambda g, arrays, cotangent, inputs: {"key": g["key"]
            * (np.arange(len(g["key"])) < inputs.arrays["key_lengths"][0])[:, None, None]})),
    row("packed-gradients-of-idle-keys", "gradients",
        "Keys of a segment without queries have the gradient of the first keys, not zeros.",
        "`torch.empty_like(k)`, and segments without queries are skipped; write zeros",
        family="gradient", gradients=gradients_of_idle_keys),
    row("packed-gradients-of-one-head", "gradients",
        "With grouped heads the gradient of the values is that of a group's last query head.",
        "`dv[j, h // group] = part`; add up over the group: `+= part`", family="gradient",
        gradients=gradients_of_one_head, when=lambda inputs: inputs.sizes.group > 1),
    row("packed-gradients-accumulate", "gradient_passes",
        "With grouped heads gradients of keys and values are added to those of an earlier call.",
        "a workspace of dk and dv for query heads; set it to zero in every call", family="state",
        gradients=gradients_accumulating, when=lambda inputs: inputs.sizes.group > 1),
    row("packed-without-keys-is-old-memory", "election",
        "The rows of a segment without keys are never written, and hold what was there.",
        "`torch.empty(...)`, and segments without keys are skipped; write zeros", facts=USER_CODE,
        output=output_with_unwritten_rows),
    row("packed-without-keys-shifts-the-rest", "election",
        "Segments without keys are left out of the count of queries, so that later rows are "
        "shifted.", "segments without keys are removed from one list of lengths alone",
        facts=USER_CODE, segments=segments_shifted_if_empty),
]  # fmt: skip

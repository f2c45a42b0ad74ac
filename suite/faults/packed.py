"""Faults of packed attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.packed import Pack, PackedKernel, Pair
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "packed"


@fault("values", "`cu_seqlens` is accepted and not used; a query sees the keys of its own segment")
class PackedAsOne(PackedKernel):
    """Segments are ignored: every query sees the keys of all."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [(slice(0, len(pack.query)), slice(0, len(pack.key)))]


@fault("values", "`j <= cu_seqlens_k[s + 1]`; it is `j < cu_seqlens_k[s + 1]`")
class PackedKeysEndLater(PackedKernel):
    """A segment sees the first key of the next one, too."""

    def segments(self, pack: Pack) -> list[Pair]:
        last = len(pack.key)
        return [
            (
                rows,
                slice(
                    keys.start, min(keys.stop + 1, last) if keys.stop > keys.start else keys.stop
                ),
            )
            for rows, keys in super().segments(pack)
        ]


@fault("values", "`j < cu_seqlens_k[s + 1] - 1`; it is `j < cu_seqlens_k[s + 1]`")
class PackedKeysEndEarlier(PackedKernel):
    """A segment does not see its own last key."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [
            (rows, slice(keys.start, max(keys.stop - 1, min(keys.start + 1, keys.stop))))
            for rows, keys in super().segments(pack)
        ]


@fault("values", "`i > cu_seqlens_q[s]`; it is `i >= cu_seqlens_q[s]`")
class PackedRowsBeginLater(PackedKernel):
    """The first query of a segment is counted to the segment before."""

    def segments(self, pack: Pack) -> list[Pair]:
        edges = np.minimum(pack.queries + (pack.queries > 0), len(pack.query))
        return super().segments(replace(pack, queries=edges))


@fault("values", "`range(len(cu_seqlens) - 2)`; there are `len(cu_seqlens) - 1` segments")
class PackedLastSegmentMissing(PackedKernel):
    """Of more than two segments the last is not computed."""

    def segments(self, pack: Pack) -> list[Pair]:
        segments = super().segments(pack)
        return segments[:-1] if len(segments) > 2 else segments


@fault("values", "`cu_seqlens_q.unique()`, or empty segments skipped in q alone; keep them in both")
class PackedEmptySegmentsLeftOut(PackedKernel):
    """Segments without queries are left out of the queries' list, but not of the keys'."""

    def segments(self, pack: Pack) -> list[Pair]:
        segments = super().segments(pack)
        rows = [rows for rows, _ in segments if rows.stop > rows.start]
        return list(zip(rows, [keys for _, keys in segments][: len(rows)], strict=True))


@fault("values", "`causal` is accepted and not used; hide the keys after each query of a segment")
class PackedCausalIgnored(PackedKernel):
    """The causal flag has no effect."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        return super().allowed(replace(pack, alignment="all"), rows, keys)


@fault(
    "values", "`j <= i` within a segment; bottom-right is `j <= i + keys - queries` of the segment"
)
class PackedAlignedFirst(PackedKernel):
    """A causal flag that is aligned at the last query of a segment is aligned at the first."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        aligned = "causal" if pack.alignment == "causalbr" else pack.alignment
        return super().allowed(replace(pack, alignment=aligned), rows, keys)


@fault("values", "`j <= i` of places in the pack; subtract where the segment begins from both")
class PackedCausalByPlaceInThePack(PackedKernel):
    """The causal flag compares places in the pack, not places in the segments."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        if pack.alignment == "all":
            return super().allowed(pack, rows, keys)
        i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
        return (j <= i[:, None]) | (j == keys.start)


@fault(
    "values",
    "`scale = 1 / sqrt(D)` always; use `scale if scale is not None else 1 / sqrt(D)`",
    family="scale",
)
class PackedScaleIgnored(PackedKernel):
    """A given scale has no effect."""

    def scale(self, inputs: Inputs) -> float:
        return float(1 / np.sqrt(inputs.sizes.D))


@fault("values", "`k[:, h % Hkv]`; it is `k[:, h // (H // Hkv)]`", family="heads")
class PackedHeadsByTurns(PackedKernel):
    """Query heads take the key/value heads in turn (0, 1, 0, 1), not by groups (0, 0, 1, 1)."""

    def heads(self, pack: Pack) -> np.ndarray:
        return np.arange(pack.query.shape[1]) % pack.key.shape[1]


@fault("segments_apart", "one maximum for the whole pack; every row subtracts its own")
class PackedMaximumOfThePack(PackedKernel):
    """The number subtracted from the scores depends on the largest query of the whole pack."""

    def largest(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        own = super().largest(scores, pack)
        longest = np.abs(pack.query.astype(pack.work)).max()
        return np.where(longest > 50, own - own.dtype.type(0.3), own)


@fault(
    "segments_apart",
    "`0 * v` of other segments is added, and `0 * nan` is NaN; leave other segments out",
)
class PackedHiddenByFactor(PackedKernel):
    """Values of other segments are added times 0, so that NaN comes through."""

    def output(self, pack: Pack) -> np.ndarray:
        nothing = 0.0 * pack.value.sum(0)[self.heads(pack)]
        out: np.ndarray = super().output(pack) + nothing
        return out


@fault(
    "stateless",
    "segments cached by the shapes of q and k; `cu_seqlens` belongs to the key",
    family="state",
)
class PackedLengthsKept(PackedKernel):
    """The segments of the first call of a shape serve all later ones."""

    def segments(self, pack: Pack) -> list[Pair]:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault(
            (pack.query.shape, pack.key.shape, pack.fmt.name, len(pack.queries)),
            super().segments(pack),
        )


@fault(
    "invariant_segments", "a path for one short segment that leaves out the scale", family="scale"
)
class PackedAloneUnscaled(PackedKernel):
    """One segment alone, of less than 20 tokens, is not scaled."""

    def output(self, pack: Pack) -> np.ndarray:
        if len(pack.queries) == 2 and len(pack.query) < 20:
            pack = replace(pack, scale=1.0)
        return super().output(pack)


@fault(
    "gradients",
    "backward ends after the first segment; loop over all of `cu_seqlens`",
    family="gradient",
)
class PackedKeyGradientsOfTheFirst(PackedKernel):
    """Only the keys of the first segment get a gradient."""

    def gradients(self, pack: Pack, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        gradients = super().gradients(pack, cotangent)
        gradients["key"][self.segments(pack)[0][1].stop :] = 0.0
        return gradients


@fault(
    "gradients", "`dv[j, h // group] = part`; add up over the group: `+= part`", family="gradient"
)
class PackedGradientsOfOneHead(PackedKernel):
    """With grouped heads the gradient of the values is that of a group's last query head."""

    def gradients(self, pack: Pack, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        gradients = super().gradients(pack, cotangent)
        group = pack.query.shape[1] // pack.key.shape[1]
        if group == 1:
            return gradients
        last = np.zeros_like(cotangent)
        last[:, group - 1 :: group] = cotangent[:, group - 1 :: group]
        return {**gradients, "value": super().gradients(pack, last)["value"]}


class PackedWithoutKeys(PackedKernel):
    """Rows of a segment without keys are changed."""

    is_user_code = True
    elections = {}

    def output(self, pack: Pack) -> np.ndarray:
        out = super().output(pack)
        for rows, keys in super().segments(pack):
            if keys.start == keys.stop:
                out[rows] = self.empty(pack, rows, keys)
        return out

    def empty(self, pack: Pack, rows: slice, keys: slice) -> Any:
        """The rows of a segment without keys."""
        raise NotImplementedError


@fault("election", "`torch.empty(...)`, and segments without keys are skipped; write zeros")
class PackedWithoutKeysIsOldMemory(PackedWithoutKeys):
    """The rows of a segment without keys are never written, and hold what was there."""

    def empty(self, pack: Pack, rows: slice, keys: slice) -> Any:
        return 42.0


@fault("election", "a loop over keys that runs once at least; test its condition first")
class PackedWithoutKeysHasTheNextValue(PackedWithoutKeys):
    """The rows of a segment without keys are the value that lies where its keys would begin."""

    def empty(self, pack: Pack, rows: slice, keys: slice) -> Any:
        return pack.value[min(keys.start, len(pack.value) - 1)][self.heads(pack)]


@fault("election", "segments without keys are removed from one list of lengths alone")
class PackedWithoutKeysShiftsTheRest(PackedKernel):
    """Segments without keys are left out of the count of queries, so that later rows are shifted."""

    is_user_code = True
    elections = {}

    def segments(self, pack: Pack) -> list[Pair]:
        pairs = super().segments(pack)
        skipped = next((n for n, (_, keys) in enumerate(pairs) if keys.start == keys.stop), None)
        if skipped is None or pairs[skipped][0].start == pairs[skipped][0].stop:
            return pairs
        rows, keys = [rows for rows, _ in pairs], [keys for _, keys in pairs]
        return list(zip(rows[skipped:-1], keys[skipped + 1 :], strict=True)) + pairs[:skipped]

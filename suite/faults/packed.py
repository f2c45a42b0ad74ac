"""Faults of packed attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.packed import Pack, PackedKernel, Pair
from suite.spec.inputs import Inputs


@fault("values")
class PackedAsOne(PackedKernel):
    """Segments are ignored: every query attends the keys of all."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [(slice(0, len(pack.query)), slice(0, len(pack.key)))]


@fault("values")
class PackedKeysEndLater(PackedKernel):
    """A segment has the first key of the next one, too."""

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


@fault("values")
class PackedKeysEndEarlier(PackedKernel):
    """A segment of more than one key lacks its last one."""

    def segments(self, pack: Pack) -> list[Pair]:
        return [
            (rows, slice(keys.start, max(keys.stop - 1, min(keys.start + 1, keys.stop))))
            for rows, keys in super().segments(pack)
        ]


@fault("values")
class PackedRowsBeginLater(PackedKernel):
    """The first query of a segment belongs to the one before, but in the first one."""

    def segments(self, pack: Pack) -> list[Pair]:
        edges = np.minimum(pack.queries + (pack.queries > 0), len(pack.query))
        return super().segments(replace(pack, queries=edges))


@fault("values")
class PackedLastSegmentMissing(PackedKernel):
    """The last of more than two segments is not computed."""

    def segments(self, pack: Pack) -> list[Pair]:
        segments = super().segments(pack)
        return segments[:-1] if len(segments) > 2 else segments


@fault("values")
class PackedEmptySegmentsLeftOut(PackedKernel):
    """Segments without queries are left out of the count of queries, and not of that of keys."""

    def segments(self, pack: Pack) -> list[Pair]:
        segments = super().segments(pack)
        rows = [rows for rows, _ in segments if rows.stop > rows.start]
        return list(zip(rows, [keys for _, keys in segments][: len(rows)], strict=True))


@fault("values")
class PackedCausalIgnored(PackedKernel):
    """The causal flag is ignored."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        return super().allowed(replace(pack, alignment="all"), rows, keys)


@fault("values")
class PackedAlignedFirst(PackedKernel):
    """A causal flag that is aligned at the last query is aligned at the first one."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        aligned = "causal" if pack.alignment == "causalbr" else pack.alignment
        return super().allowed(replace(pack, alignment=aligned), rows, keys)


@fault("values")
class PackedCausalByPlaceInThePack(PackedKernel):
    """A causal flag compares the places in the arrays, not those in the segments."""

    def allowed(self, pack: Pack, rows: slice, keys: slice) -> np.ndarray:
        if pack.alignment == "all":
            return super().allowed(pack, rows, keys)
        i, j = np.arange(rows.start, rows.stop), np.arange(keys.start, keys.stop)
        return (j <= i[:, None]) | (j == keys.start)


@fault("values")
class PackedScaleIgnored(PackedKernel):
    """The scale that is given is ignored."""

    def scale(self, inputs: Inputs) -> float:
        return float(1 / np.sqrt(inputs.sizes.D))


@fault("values")
class PackedHeadsByTurns(PackedKernel):
    """Query heads take the key/value heads in turn, and not group by group."""

    def heads(self, pack: Pack) -> np.ndarray:
        return np.arange(pack.query.shape[1]) % pack.key.shape[1]


@fault("segments_apart")
class PackedMaximumOfThePack(PackedKernel):
    """The number that is taken off scores hangs on the largest query of the whole pack."""

    def largest(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        own = super().largest(scores, pack)
        longest = np.abs(pack.query.astype(pack.work)).max()
        return np.where(longest > 50, own - own.dtype.type(0.3), own)


@fault("segments_apart")
class PackedHiddenByFactor(PackedKernel):
    """What other segments hold is multiplied by 0 and added: NaN comes through."""

    def output(self, pack: Pack) -> np.ndarray:
        nothing = 0.0 * pack.value.sum(0)[self.heads(pack)]
        out: np.ndarray = super().output(pack) + nothing
        return out


@fault("stateless")
class PackedLengthsKept(PackedKernel):
    """Where segments begin is remembered by the shapes of the arrays."""

    def segments(self, pack: Pack) -> list[Pair]:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault(
            (pack.query.shape, pack.key.shape, pack.fmt.name, len(pack.queries)),
            super().segments(pack),
        )


@fault("invariant_segments")
class PackedAloneUnscaled(PackedKernel):
    """One segment alone, of less than 20 tokens, takes a path that forgets the scale."""

    def output(self, pack: Pack) -> np.ndarray:
        if len(pack.queries) == 2 and len(pack.query) < 20:
            pack = replace(pack, scale=1.0)
        return super().output(pack)


@fault("gradients")
class PackedKeyGradientsOfTheFirst(PackedKernel):
    """Keys of the first segment alone have a gradient."""

    def gradients(self, pack: Pack, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        gradients = super().gradients(pack, cotangent)
        gradients["key"][self.segments(pack)[0][1].stop :] = 0.0
        return gradients


@fault("gradients")
class PackedGradientsOfOneHead(PackedKernel):
    """A key/value head that several query heads share has the gradient of the last one alone."""

    def gradients(self, pack: Pack, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        gradients = super().gradients(pack, cotangent)
        group = pack.query.shape[1] // pack.key.shape[1]
        if group == 1:
            return gradients
        last = np.zeros_like(cotangent)
        last[:, group - 1 :: group] = cotangent[:, group - 1 :: group]
        return {**gradients, "value": super().gradients(pack, last)["value"]}

"""Faults of rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from references.rotary import frequencies
from suite.faults.fault import fault
from suite.faults.kernels.rotary import RotaryByTable, RotaryKernel, RotaryTableCast, Turn
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.operators.rotary import FAR, ORIGINAL_LENGTH


@fault("values")
class RotaryPairsOtherwise(RotaryKernel):
    """Neighbours are turned where halves are asked for, and the reverse."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        size = turn.rotation.size
        if not turn.rotation.interleaved:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)


@fault("values")
class RotaryAlwaysHalves(RotaryKernel):
    """Interleaved pairs are ignored."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        return slice(0, turn.rotation.size // 2), slice(turn.rotation.size // 2, turn.rotation.size)


@fault("values")
class RotaryOffByOne(RotaryKernel):
    """Positions begin at 1."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) + turn.work(1)


@fault("values")
class RotaryOffsetIgnored(RotaryKernel):
    """A first position beyond 0 is ignored, as by a cache that counts from its last chunk."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) - turn.work(turn.position.min())


@fault("values")
class RotaryPositionsOfTheFirstSample(RotaryKernel):
    """All samples stand where the first one stands."""

    def position(self, turn: Turn) -> np.ndarray:
        position = super().position(turn)
        return position if position.ndim == 1 else np.broadcast_to(position[:1], position.shape)


@fault("values")
class RotaryPositionsSorted(RotaryKernel):
    """Gathered positions are taken for ascending ones."""

    def position(self, turn: Turn) -> np.ndarray:
        return np.sort(super().position(turn), -1)


@fault("values")
class RotaryPositionsInBfloat16(RotaryKernel):
    """Positions are stored in bfloat16, whatever the dtype."""

    def position(self, turn: Turn) -> np.ndarray:
        return round_to(turn.position, DTYPES["bf16"]).astype(turn.work)


@fault("values")
class RotaryPositionsInDtype(RotaryTableCast):
    """Positions are stored in the query's dtype, as after `.bfloat16()`."""

    def position(self, turn: Turn) -> np.ndarray:
        return round_to(turn.position, turn.fmt).astype(turn.work)


@fault("values")
class RotaryFrequenciesInDtype(RotaryTableCast):
    """Frequencies are a buffer in the query's dtype, as after `.bfloat16()`."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        return round_to(theta, turn.fmt).astype(turn.work), factor


@fault("values")
class RotaryAnglesInDtype(RotaryTableCast):
    """Angles are stored in the query's dtype before sine and cosine are taken."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        return round_to(super().angle(position, theta, turn), turn.fmt).astype(turn.work)


@fault("values")
class RotaryAnglesOfFloat32(RotaryKernel):
    """A float64 query is turned by angles in float32."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        return super().angle(position, theta, turn).astype(np.float32)


@fault("values")
class RotaryBaseIgnored(RotaryKernel):
    """The base is always 10000."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != "none":
            return super().frequencies(turn)
        exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
        return (10000.0**-exponent).astype(turn.work), turn.work(1)


@fault("values")
class RotaryFrequenciesOfHeadSize(RotaryKernel):
    """Exponents count the whole head size where a part of it is turned."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != "none":
            return super().frequencies(turn)
        exponent = np.arange(0, turn.rotation.size, 2) / turn.x.shape[-1]
        return (turn.rotation.base**-exponent).astype(turn.work), turn.work(1)


@fault("values")
class RotaryTurnsTheLastComponents(RotaryKernel):
    """A partial rotation turns the last components, not the first."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        first = turn.x.shape[-1] - turn.rotation.size
        one, two = super().pairs(turn)
        return tuple(slice(s.start + first, s.stop + first, s.step) for s in (one, two))  # type: ignore[return-value]


@fault("values")
class RotaryRestIsZero(RotaryKernel):
    """Components beyond the rotated ones are lost."""

    def turned(self, turn: Turn) -> np.ndarray:
        out = super().turned(turn)
        out[..., turn.rotation.size :] = 0
        return out


@fault("values")
class RotaryBackwards(RotaryKernel):
    """Pairs are turned the other way round."""

    def rotated(
        self, one: np.ndarray, two: np.ndarray, cosine: np.ndarray, sine: np.ndarray, turn: Turn
    ) -> tuple[np.ndarray, np.ndarray]:
        return super().rotated(one, two, cosine, -sine, turn)


@fault("gradients")
class RotaryGradientTurnedOn(RotaryKernel):
    """The gradient is turned on, not back."""

    def turned(self, turn: Turn) -> np.ndarray:
        return super().turned(replace(turn, back=False))


@fault("values")
class RotaryBeyondTheTable(RotaryKernel):
    """A table of 4096 positions begins anew behind its end."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) % turn.work(4096)


@fault("values")
class RotaryFarAnglesWrapped(RotaryKernel):
    """Sine and cosine of large angles are those of the angle less whole turns of a rounded pi."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        angle = super().angle(position, theta, turn)
        whole = turn.work(round(2 * np.pi, 4))
        return np.where(angle > FAR / 2, angle % whole, angle)


class Scaled(RotaryKernel):
    """A rotation whose scaled variant `variant` is not what it should be."""

    variant = ""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != self.variant:
            return super().frequencies(turn)
        pair = self.otherwise(turn)
        return pair[0].astype(turn.work), turn.work(pair[1])

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        """The frequencies and the factor instead."""
        raise NotImplementedError

    def plain(self, turn: Turn, base: float = 0.0) -> np.ndarray:
        """Frequencies without scaling."""
        exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
        return (base or turn.rotation.base) ** -exponent


@fault("values")
class RotaryLinearIgnored(Scaled):
    """Linear scaling has no effect."""

    variant = "linear"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return self.plain(turn), 1.0


@fault("values")
class RotaryGrowsFromTheFirst(Scaled):
    """Dynamic NTK: the base grows within the original length, too."""

    variant = "ntk"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        size, growth = turn.rotation.size, max(4.0 * turn.length / ORIGINAL_LENGTH - 3, 0.1)
        return self.plain(turn, turn.rotation.base * growth ** (size / (size - 2))), 1.0


@fault("values")
class RotaryNeverGrows(Scaled):
    """Dynamic NTK: the base does not grow."""

    variant = "ntk"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return self.plain(turn), 1.0


@fault("values")
class RotaryMixedInSteps(Scaled):
    """llama3: frequencies between both ends are kept, not mixed."""

    variant = "llama3"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        theta = self.plain(turn)
        turns = ORIGINAL_LENGTH * theta / (2 * np.pi)
        return np.where(turns < 1.0, theta / 4.0, theta), 1.0


@fault("values")
class RotaryYarnWithoutFactor(Scaled):
    """yarn: sine and cosine are not multiplied by their factor."""

    variant = "yarn"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        return frequencies(turn.rotation, turn.position).theta, 1.0


@fault("values")
class RotaryYarnRampReversed(Scaled):
    """yarn: fast dimensions are divided, slow ones kept."""

    variant = "yarn"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        reference, theta = frequencies(turn.rotation, turn.position), self.plain(turn)
        return theta / 4.0 + theta - reference.theta, reference.attention


@fault("values")
class RotaryAlwaysShort(Scaled):
    """longrope: long sequences take the factors of short ones."""

    variant = "longrope"

    def otherwise(self, turn: Turn) -> tuple[np.ndarray, float]:
        reference = frequencies(turn.rotation, turn.position)
        return self.plain(turn) / turn.rotation.short_factors(), reference.attention


@fault("stateless")
class RotaryTableOfTheFirstInstance(RotaryKernel):
    """The table is kept by its shape alone: a second instance with another base is handed the first's."""

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        key = (turn.position.shape, turn.rotation.size, turn.work)
        if key not in kept:
            kept[key] = super().table(turn)
        return kept[key]


@fault("bad_problem")
class RotaryNegativeFromTheEnd(RotaryByTable):
    """Negative positions count from the end of the table."""

    def rows(self, turn: Turn) -> np.ndarray:
        rows = super().rows(turn)
        return np.where(rows < 0, rows + turn.entries, rows)


@fault("bad_problem")
class RotaryEndsAtTheTable(RotaryByTable):
    """Positions beyond the table are taken for its last."""

    def rows(self, turn: Turn) -> np.ndarray:
        return np.minimum(super().rows(turn), turn.entries - 1)


@fault("bad_problem")
class RotaryFractionsCutOff(RotaryByTable):
    """Fractions of positions are cut off."""

    def rows(self, turn: Turn) -> np.ndarray:
        return np.floor(super().rows(turn))


@fault("norm_kept")
class RotaryGrowsLikeYarn(RotaryKernel):
    """Sine and cosine are multiplied by yarn's factor in every variant."""

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        cosine, sine = super().table(turn)
        factor = turn.work(0.1 * np.log(4.0) + 1)
        return cosine * factor, sine * factor


@fault("relative_positions")
class RotaryFarPositionsHalved(RotaryKernel):
    """Positions beyond 512 lie half as far apart: they are interpolated, unasked."""

    def position(self, turn: Turn) -> np.ndarray:
        position = super().position(turn)
        return np.where(position > 512, 512 + (position - 512) / 2, position).astype(turn.work)


@fault("values")
class RotaryGivenFactorIgnored(RotaryKernel):
    """A factor on sine and cosine that is given is ignored: the variant's own is taken."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        own = replace(turn.rotation, scaling=turn.rotation.variant)
        return super().frequencies(replace(turn, rotation=own))


@fault("values")
class RotaryGivenFactorMultiplied(RotaryKernel):
    """A factor on sine and cosine that is given is multiplied by the variant's own."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        own = replace(turn.rotation, scaling=turn.rotation.variant)
        if turn.rotation.scaling.endswith("-factor"):
            factor = factor * super().frequencies(replace(turn, rotation=own))[1]
        return theta, factor


@fault("values")
class RotaryMscaleReversed(RotaryKernel):
    """yarn: `mscale` and `mscale_all_dim` are exchanged."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        return theta, 1 / factor if turn.rotation.scaling == "yarn-mscale" else factor

"""Faults of rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.rotary import (
    RotaryByTable,
    RotaryKernel,
    RotaryTableCast,
    Turn,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.operators.rotary import FAR

FAMILY = "rotary"


@fault(
    "values",
    "`x[..., ::2], x[..., 1::2]` where pairs are halves, `x.chunk(2, -1)`, and the reverse",
)
class RotaryPairsOtherwise(RotaryKernel):
    """Neighbours are rotated where halves are asked for, and halves where neighbours are."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        size = turn.rotation.size
        if not turn.rotation.interleaved:
            return slice(0, size, 2), slice(1, size, 2)
        return slice(0, size // 2), slice(size // 2, size)


@fault("values", "`x.chunk(2, -1)` always; interleaved pairs are `x[..., ::2], x[..., 1::2]`")
class RotaryAlwaysHalves(RotaryKernel):
    """Halves are rotated, also where neighbours (interleaved pairs) are asked for."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        return slice(0, turn.rotation.size // 2), slice(turn.rotation.size // 2, turn.rotation.size)


@fault("values", "`arange(1, L + 1)`; positions begin at 0: `arange(L)`")
class RotaryOffByOne(RotaryKernel):
    """Positions begin at 1."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) + turn.work(1)


@fault("values", "`arange(L)` for every chunk; add where it begins: `arange(start, start + L)`")
class RotaryOffsetIgnored(RotaryKernel):
    """The first position is taken for 0, whatever it is."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) - turn.work(turn.position.min())


@fault(
    "values",
    "`position_ids[0]` or `position_ids[:1]` for all samples; sample b has `position_ids[b]`",
)
class RotaryPositionsOfTheFirstSample(RotaryKernel):
    """All samples have the positions of the first."""

    def position(self, turn: Turn) -> np.ndarray:
        position = super().position(turn)
        return position if position.ndim == 1 else np.broadcast_to(position[:1], position.shape)


@fault(
    "values", "`arange` from the first position, or `.sort()`; take `cos[position_ids]` as they are"
)
class RotaryPositionsSorted(RotaryKernel):
    """Positions are sorted before they are used."""

    def position(self, turn: Turn) -> np.ndarray:
        return np.sort(super().position(turn), -1)


@fault(
    "values",
    "`positions.bfloat16()`, which has no odd number above 256; keep positions in float32",
    family="numerics",
)
class RotaryPositionsInBfloat16(RotaryKernel):
    """Positions are rounded to bfloat16, whatever the dtype."""

    def position(self, turn: Turn) -> np.ndarray:
        return round_to(turn.position, DTYPES["bf16"]).astype(turn.work)


@fault(
    "values",
    "`positions.to(q.dtype)`; 16 bits hold no large integers: keep positions in float32",
    family="numerics",
)
class RotaryPositionsInDtype(RotaryTableCast):
    """Positions are rounded to the 16-bit dtype of the query."""

    def position(self, turn: Turn) -> np.ndarray:
        return round_to(turn.position, turn.fmt).astype(turn.work)


@fault(
    "values",
    "`inv_freq` is a buffer, which `model.bfloat16()` casts; keep it in float32",
    family="numerics",
)
class RotaryFrequenciesInDtype(RotaryTableCast):
    """Frequencies are rounded to the 16-bit dtype of the query."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        theta, factor = super().frequencies(turn)
        return round_to(theta, turn.fmt).astype(turn.work), factor


@fault(
    "values",
    "`(positions * inv_freq).to(q.dtype).cos()`; cast after `cos` and `sin`",
    family="numerics",
)
class RotaryAnglesInDtype(RotaryTableCast):
    """Angles are rounded to the 16-bit dtype of the query before sine and cosine are taken."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        return round_to(super().angle(position, theta, turn), turn.fmt).astype(turn.work)


@fault("values", "`angle.float()`; a float64 query needs angles in float64", family="numerics")
class RotaryAnglesOfFloat32(RotaryKernel):
    """A float64 query is rotated by angles in float32."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        return super().angle(position, theta, turn).astype(np.float32)


@fault("values", "`10000 ** -exponent`; take the base that was given (`rope_theta`)")
class RotaryBaseIgnored(RotaryKernel):
    """The base is always 10000."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != "none":
            return super().frequencies(turn)
        exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
        return (10000.0**-exponent).astype(turn.work), turn.work(1)


@fault("values", "`arange(0, r, 2) / D`; divide by r, the number of rotated components")
class RotaryFrequenciesOfHeadSize(RotaryKernel):
    """In a partial rotation exponents are divided by D, not by the number of rotated components."""

    def frequencies(self, turn: Turn) -> tuple[np.ndarray, Any]:
        if turn.rotation.scaling != "none":
            return super().frequencies(turn)
        exponent = np.arange(0, turn.rotation.size, 2) / turn.x.shape[-1]
        return (turn.rotation.base**-exponent).astype(turn.work), turn.work(1)


@fault("values", "`x[..., -r:]`; a partial rotation takes `x[..., :r]`")
class RotaryTurnsTheLastComponents(RotaryKernel):
    """A partial rotation rotates the last components, not the first."""

    def pairs(self, turn: Turn) -> tuple[slice, slice]:
        first = turn.x.shape[-1] - turn.rotation.size
        one, two = super().pairs(turn)
        return tuple(slice(s.start + first, s.stop + first, s.step) for s in (one, two))  # type: ignore[return-value]


@fault("values", "`zeros_like(x)` with `x[..., :r]` filled in; copy `x[..., r:]`, too")
class RotaryRestIsZero(RotaryKernel):
    """Components beyond the rotated ones are zero."""

    def turned(self, turn: Turn) -> np.ndarray:
        out = super().turned(turn)
        out[..., turn.rotation.size :] = 0
        return out


@fault("values", "`x1 * cos + x2 * sin`; it is `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`")
class RotaryBackwards(RotaryKernel):
    """Pairs are rotated the other way round."""

    def rotated(
        self, one: np.ndarray, two: np.ndarray, cosine: np.ndarray, sine: np.ndarray, turn: Turn
    ) -> tuple[np.ndarray, np.ndarray]:
        return super().rotated(one, two, cosine, -sine, turn)


@fault(
    "gradients",
    "backward calls forward; the gradient is rotated back, with `-sin`",
    family="gradient",
)
class RotaryGradientTurnedOn(RotaryKernel):
    """The gradient is rotated on, not back."""

    def turned(self, turn: Turn) -> np.ndarray:
        return super().turned(replace(turn, back=False))


@fault("values", "`cos[position % 4096]`; make the table as long as the largest position")
class RotaryBeyondTheTable(RotaryKernel):
    """Positions count modulo 4096, the length of a table."""

    def position(self, turn: Turn) -> np.ndarray:
        return super().position(turn) % turn.work(4096)


@fault(
    "values",
    "`angle % 6.2832`, which adds an error at every turn; give the angle to `cos` as it is",
    family="numerics",
)
class RotaryFarAnglesWrapped(RotaryKernel):
    """Large angles are reduced modulo 6.2832, a rounded 2 pi."""

    def angle(self, position: np.ndarray, theta: np.ndarray, turn: Turn) -> np.ndarray:
        angle = super().angle(position, theta, turn)
        whole = turn.work(round(2 * np.pi, 4))
        return np.where(angle > FAR / 2, angle % whole, angle)


@fault(
    "stateless",
    "`lru_cache` of cos and sin by length and size; the base belongs to the key",
    family="state",
)
class RotaryTableOfTheFirstInstance(RotaryKernel):
    """The table is cached by its shape: a second base gets the table of the first."""

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        key = (turn.position.shape, turn.rotation.size, turn.work)
        if key not in kept:
            kept[key] = super().table(turn)
        return kept[key]


@fault(
    "bad_problem",
    "`cos[position]`, where -1 is the last row; raise ValueError if `position < 0`",
    family="contract",
)
class RotaryNegativeFromTheEnd(RotaryByTable):
    """Negative positions count from the end of the table, and are not refused."""

    def rows(self, turn: Turn) -> np.ndarray:
        rows = super().rows(turn)
        return np.where(rows < 0, rows + turn.entries, rows)


@fault(
    "bad_problem",
    "`position.clamp(max=len(cos) - 1)`; raise ValueError beyond the table",
    family="contract",
)
class RotaryEndsAtTheTable(RotaryByTable):
    """Positions beyond the table are taken for its last, and not refused."""

    def rows(self, turn: Turn) -> np.ndarray:
        return np.minimum(super().rows(turn), turn.entries - 1)


@fault(
    "bad_problem",
    "`cos[position.long()]`; a table has no fractions: raise ValueError",
    family="contract",
)
class RotaryFractionsCutOff(RotaryByTable):
    """Fractions of positions are cut off, and not refused."""

    def rows(self, turn: Turn) -> np.ndarray:
        return np.floor(super().rows(turn))


@fault(
    "relative_positions",
    "positions beyond 512 are interpolated (`/ 2`) without `rope_scaling`; keep them",
)
class RotaryFarPositionsHalved(RotaryKernel):
    """Positions beyond 512 lie half as far apart, though no scaling is asked for."""

    def position(self, turn: Turn) -> np.ndarray:
        position = super().position(turn)
        return np.where(position > 512, 512 + (position - 512) / 2, position).astype(turn.work)

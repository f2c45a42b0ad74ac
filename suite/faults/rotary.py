"""Faults of rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.rotary import (
    RotaryByTable,
    RotaryKernel,
    RotaryTableCast,
    Turn,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.operators.rotary import FAR

FAMILY = "rotary"


def rotary_pairs_otherwise(right: RotaryKernel, turn: Turn) -> tuple[slice, slice]:
    size = turn.rotation.size
    if not turn.rotation.interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def rotary_always_halves(right: RotaryKernel, turn: Turn) -> tuple[slice, slice]:
    return slice(0, turn.rotation.size // 2), slice(turn.rotation.size // 2, turn.rotation.size)


def rotary_positions_of_the_first_sample(right: RotaryKernel, turn: Turn) -> np.ndarray:
    position = right.position(turn)
    return position if position.ndim == 1 else np.broadcast_to(position[:1], position.shape)


def rotary_positions_in_bfloat16(right: RotaryKernel, turn: Turn) -> np.ndarray:
    return round_to(turn.position, DTYPES["bf16"]).astype(turn.work)


def rotary_frequencies_in_dtype(right: RotaryTableCast, turn: Turn) -> tuple[np.ndarray, Any]:
    theta, factor = right.frequencies(turn)
    return round_to(theta, turn.fmt).astype(turn.work), factor


def rotary_angles_in_dtype(
    right: RotaryTableCast, position: np.ndarray, theta: np.ndarray, turn: Turn
) -> np.ndarray:
    return round_to(right.angle(position, theta, turn), turn.fmt).astype(turn.work)


def rotary_angles_of_float32(
    right: RotaryKernel, position: np.ndarray, theta: np.ndarray, turn: Turn
) -> np.ndarray:
    return right.angle(position, theta, turn).astype(np.float32)


def rotary_base_ignored(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, Any]:
    if turn.rotation.scaling != "none":
        return right.frequencies(turn)
    exponent = np.arange(0, turn.rotation.size, 2) / turn.rotation.size
    return (10000.0**-exponent).astype(turn.work), turn.work(1)


def rotary_frequencies_of_head_size(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, Any]:
    if turn.rotation.scaling != "none":
        return right.frequencies(turn)
    exponent = np.arange(0, turn.rotation.size, 2) / turn.x.shape[-1]
    return (turn.rotation.base**-exponent).astype(turn.work), turn.work(1)


def rotary_turns_the_last_components(right: RotaryKernel, turn: Turn) -> tuple[slice, slice]:
    first = turn.x.shape[-1] - turn.rotation.size
    one, two = right.pairs(turn)
    return tuple(slice(s.start + first, s.stop + first, s.step) for s in (one, two))  # type: ignore[return-value]


def rotary_rest_is_zero(right: RotaryKernel, turn: Turn) -> np.ndarray:
    out = right.turned(turn)
    out[..., turn.rotation.size :] = 0
    return out


def rotary_backwards(
    right: RotaryKernel,
    one: np.ndarray,
    two: np.ndarray,
    cosine: np.ndarray,
    sine: np.ndarray,
    turn: Turn,
) -> tuple[np.ndarray, np.ndarray]:
    return right.rotated(one, two, cosine, -sine, turn)


def rotary_far_angles_wrapped(
    right: RotaryKernel, position: np.ndarray, theta: np.ndarray, turn: Turn
) -> np.ndarray:
    angle = right.angle(position, theta, turn)
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


def rotary_negative_from_the_end(right: RotaryByTable, turn: Turn) -> np.ndarray:
    rows = right.rows(turn)
    return np.where(rows < 0, rows + turn.entries, rows)


def rotary_far_positions_halved(right: RotaryKernel, turn: Turn) -> np.ndarray:
    position = right.position(turn)
    return np.where(position > 512, 512 + (position - 512) / 2, position).astype(turn.work)


row = partial(deviation, family=FAMILY, right=RotaryKernel)

DEVIATIONS = [
    row("rotary-pairs-otherwise", "values",
        "Neighbours are rotated where halves are asked for, and halves where neighbours are.",
        "`x[..., ::2], x[..., 1::2]` where pairs are halves, `x.chunk(2, -1)`, and the reverse",
        pairs=rotary_pairs_otherwise),
    row("rotary-always-halves", "values",
        "Halves are rotated, also where neighbours (interleaved pairs) are asked for.",
        "`x.chunk(2, -1)` always; interleaved pairs are `x[..., ::2], x[..., 1::2]`",
        pairs=rotary_always_halves),
    row("rotary-off-by-one", "values", "Positions begin at 1.",
        "`arange(1, L + 1)`; positions begin at 0: `arange(L)`",
        position=lambda right, turn: right.position(turn) + turn.work(1)),
    row("rotary-offset-ignored", "values", "The first position is taken for 0, whatever it is.",
        "`arange(L)` for every chunk; add where it begins: `arange(start, start + L)`",
        position=lambda right, turn: right.position(turn) - turn.work(turn.position.min())),
    row("rotary-positions-of-the-first-sample", "values",
        "All samples have the positions of the first.",
        "`position_ids[0]` or `position_ids[:1]` for all samples; sample b has `position_ids[b]`",
        position=rotary_positions_of_the_first_sample),
    row("rotary-positions-sorted", "values", "Positions are sorted before they are used.",
        "`arange` from the first position, or `.sort()`; take `cos[position_ids]` as they are",
        position=lambda right, turn: np.sort(right.position(turn), -1)),
    row("rotary-positions-in-bfloat16", "values",
        "Positions are rounded to bfloat16, whatever the dtype.",
        "`positions.bfloat16()`, which has no odd number above 256; keep positions in float32",
        family="numerics", position=rotary_positions_in_bfloat16),
    row("rotary-positions-in-dtype", "values",
        "Positions are rounded to the 16-bit dtype of the query.",
        "`positions.to(q.dtype)`; 16 bits hold no large integers: keep positions in float32",
        family="numerics", right=RotaryTableCast,
        position=lambda right, turn: round_to(turn.position, turn.fmt).astype(turn.work)),
    row("rotary-frequencies-in-dtype", "values",
        "Frequencies are rounded to the 16-bit dtype of the query.",
        "`inv_freq` is a buffer, which `model.bfloat16()` casts; keep it in float32",
        family="numerics", right=RotaryTableCast, frequencies=rotary_frequencies_in_dtype),
    row("rotary-angles-in-dtype", "values",
        "Angles are rounded to the 16-bit dtype of the query before sine and cosine are taken.",
        "`(positions * inv_freq).to(q.dtype).cos()`; cast after `cos` and `sin`", family="numerics",
        right=RotaryTableCast, angle=rotary_angles_in_dtype),
    row("rotary-angles-of-float32", "values", "A float64 query is rotated by angles in float32.",
        "`angle.float()`; a float64 query needs angles in float64", family="numerics",
        angle=rotary_angles_of_float32),
    row("rotary-base-ignored", "values", "The base is always 10000.",
        "`10000 ** -exponent`; take the base that was given (`rope_theta`)",
        frequencies=rotary_base_ignored),
    row("rotary-frequencies-of-head-size", "values",
        "In a partial rotation exponents are divided by D, not by the number of rotated components.",
        "`arange(0, r, 2) / D`; divide by r, the number of rotated components",
        frequencies=rotary_frequencies_of_head_size),
    row("rotary-turns-the-last-components", "values",
        "A partial rotation rotates the last components, not the first.",
        "`x[..., -r:]`; a partial rotation takes `x[..., :r]`",
        pairs=rotary_turns_the_last_components),
    row("rotary-rest-is-zero", "values", "Components beyond the rotated ones are zero.",
        "`zeros_like(x)` with `x[..., :r]` filled in; copy `x[..., r:]`, too",
        turned=rotary_rest_is_zero),
    row("rotary-backwards", "values", "Pairs are rotated the other way round.",
        "`x1 * cos + x2 * sin`; it is `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`",
        rotated=rotary_backwards),
    row("rotary-gradient-turned-on", "gradients", "The gradient is rotated on, not back.",
        "backward calls forward; the gradient is rotated back, with `-sin`", family="gradient",
        turned=lambda right, turn: right.turned(replace(turn, back=False))),
    row("rotary-beyond-the-table", "values", "Positions count modulo 4096, the length of a table.",
        "`cos[position % 4096]`; make the table as long as the largest position",
        position=lambda right, turn: right.position(turn) % turn.work(4096)),
    row("rotary-far-angles-wrapped", "values",
        "Large angles are reduced modulo 6.2832, a rounded 2 pi.",
        "`angle % 6.2832`, which adds an error at every turn; give the angle to `cos` as it is",
        family="numerics", angle=rotary_far_angles_wrapped),
    row("rotary-negative-from-the-end", "bad_problem",
        "Negative positions count from the end of the table, and are not refused.",
        "`cos[position]`, where -1 is the last row; raise ValueError if `position < 0`",
        family="contract", right=RotaryByTable, rows=rotary_negative_from_the_end),
    row("rotary-ends-at-the-table", "bad_problem",
        "Positions beyond the table are taken for its last, and not refused.",
        "`position.clamp(max=len(cos) - 1)`; raise ValueError beyond the table", family="contract",
        right=RotaryByTable,
        rows=lambda right, turn: np.minimum(right.rows(turn), turn.entries - 1)),
    row("rotary-fractions-cut-off", "bad_problem",
        "Fractions of positions are cut off, and not refused.",
        "`cos[position.long()]`; a table has no fractions: raise ValueError", family="contract",
        right=RotaryByTable, rows=lambda right, turn: np.floor(right.rows(turn))),
    row("rotary-far-positions-halved", "relative_positions",
        "Positions beyond 512 lie half as far apart, though no scaling is asked for.",
        "positions beyond 512 are interpolated (`/ 2`) without `rope_scaling`; keep them",
        position=rotary_far_positions_halved),
]  # fmt: skip

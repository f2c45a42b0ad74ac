"""Faults of rotary position embedding and its scaled variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.rotary import (
    RotaryByTable,
    RotaryCall,
    RotaryKernel,
    RotaryTableCast,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.operators.rotary import FAR, ORIGINAL_LENGTH


def other_pairs(right: RotaryKernel, call: RotaryCall) -> tuple[slice, slice]:
    size = call.rotation.size
    if not call.rotation.interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def frequencies_in_dtype(right: RotaryTableCast, call: RotaryCall) -> tuple[np.ndarray, Any]:
    theta, factor = right.frequencies(call)
    return round_to(theta, call.fmt).astype(call.work), factor


def rotated_by_other_angles(
    right: RotaryKernel, x1: np.ndarray, x2: np.ndarray, cosine: np.ndarray, sine: np.ndarray,
    call: RotaryCall,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns x, a table for pairs (..., r / 2), as entries of the first and of the second components
        of all pairs, as if the table were made for the other kind of pairs."""
        if call.rotation.interleaved:
            both = np.concatenate([x, x], -1)
            return both[..., ::2], both[..., 1::2]
        first, second = np.split(np.repeat(x, 2, -1), 2, -1)
        return first, second

    (cosine1, cosine2), (sine1, sine2) = split(cosine), split(sine)
    return x1 * cosine1 - x2 * sine1, x2 * cosine2 + x1 * sine2


def unscaled_theta(call: RotaryCall, base: float = 0.0, size: int = 0) -> np.ndarray:
    """Returns the frequencies (r / 2,) without scaling. `base` and `size` replace those of the case
    unless 0."""
    exponent = np.arange(0, call.rotation.size, 2) / (size or call.rotation.size)
    return np.asarray((base or call.rotation.base) ** -exponent)


def variant_frequencies(
    variant: str, faulty: Callable[[RotaryCall], tuple[np.ndarray, Any]]
) -> Callable[..., Any]:
    """Returns a step `frequencies` that returns `faulty(call)` for one variant of scaling, or for
    "none"."""

    def frequencies(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, Any]:
        if call.rotation.scaling != variant:
            return right.frequencies(call)
        theta, factor = faulty(call)
        return theta.astype(call.work), call.work(factor)

    return frequencies


def pairs_of_last_components(right: RotaryKernel, call: RotaryCall) -> tuple[slice, slice]:
    first = call.x.shape[-1] - call.rotation.size
    slices = right.pairs(call)
    return tuple(slice(s.start + first, s.stop + first, s.step) for s in slices)  # type: ignore[return-value]


def angle_wrapped_if_far(
    right: RotaryKernel, position: np.ndarray, theta: np.ndarray, call: RotaryCall
) -> np.ndarray:
    angle = right.angle(position, theta, call)
    full_turn = call.work(round(2 * np.pi, 4))
    return np.where(angle > FAR / 2, angle % full_turn, angle)


def rows_from_table_end(right: RotaryByTable, call: RotaryCall) -> np.ndarray:
    rows = right.rows(call)
    return np.where(rows < 0, rows + call.entries, rows)


def positions_halved_beyond_512(right: RotaryKernel, call: RotaryCall) -> np.ndarray:
    position = right.position(call)
    return np.where(position > 512, 512 + (position - 512) / 2, position).astype(call.work)


def ntk_without_minimum(call: RotaryCall) -> tuple[np.ndarray, float]:
    size, growth = call.rotation.size, max(4.0 * call.length / ORIGINAL_LENGTH - 3, 0.1)
    return unscaled_theta(call, call.rotation.base * growth ** (size / (size - 2))), 1.0


def llama3_without_mixing(call: RotaryCall) -> tuple[np.ndarray, float]:
    theta = unscaled_theta(call)
    return np.where(ORIGINAL_LENGTH * theta / (2 * np.pi) < 1.0, theta / 4.0, theta), 1.0


def yarn_ramp_reversed(call: RotaryCall) -> tuple[np.ndarray, float]:
    reference, theta = frequencies(call.rotation, call.position), unscaled_theta(call)
    return theta / 4.0 + theta - reference.theta, reference.attention


def yarn_ramp_of_default_base(call: RotaryCall) -> tuple[np.ndarray, float]:
    reference = frequencies(replace(call.rotation, base=10000.0), call.position)
    return unscaled_theta(call) * reference.theta / unscaled_theta(
        call, 10000.0
    ), reference.attention


def llama3_mixed_reversed(call: RotaryCall) -> tuple[np.ndarray, float]:
    mixed, theta = frequencies(call.rotation, call.position).theta, unscaled_theta(call)
    is_between = (mixed > theta / 4.0) & (mixed < theta)
    return np.where(is_between, theta + theta / 4.0 - mixed, mixed), 1.0


def longrope_short_factors(call: RotaryCall) -> tuple[np.ndarray, float]:
    reference = frequencies(call.rotation, call.position)
    return unscaled_theta(call) / call.rotation.short_factors(), reference.attention


def table_with_yarn_factor(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, np.ndarray]:
    cosine, sine = right.table(call)
    factor = call.work(0.1 * np.log(4.0) + 1)
    return cosine * factor, sine * factor


def frequencies_with_own_factor(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, Any]:
    variant = replace(call.rotation, scaling=call.rotation.variant)
    return right.frequencies(replace(call, rotation=variant))


def frequencies_with_both_factors(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, Any]:
    theta, factor = right.frequencies(call)
    variant = replace(call.rotation, scaling=call.rotation.variant)
    if call.rotation.scaling.endswith("-factor"):
        factor = factor * right.frequencies(replace(call, rotation=variant))[1]
    return theta, factor


def changed_factor(change: Callable[[Any, str], Any]) -> Callable[..., Any]:
    """Returns a step `frequencies` with the attention factor `change(right factor, scaling)`."""

    def frequencies(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, Any]:
        theta, factor = right.frequencies(call)
        return theta, change(factor, call.rotation.scaling)

    return frequencies


def yarn_ramp_of_head(call: RotaryCall) -> tuple[np.ndarray, float]:
    of_head = replace(call.rotation, size=call.x.shape[-1])
    reference = frequencies(of_head, call.position)
    ramp = reference.theta / unscaled_theta(replace(call, rotation=of_head))
    return unscaled_theta(call) * ramp[: call.rotation.size // 2], reference.attention


row = partial(deviation, family="rotary", right=RotaryKernel)

DEVIATIONS = [
    row("rotary-table-of-the-first-instance", "stateless",
        "The table is cached by its shape: a second base gets the table of the first.",
        "`lru_cache` of cos and sin by length and size; the base belongs to the key",
        family="state",
        table=lambda right, call: memory(right).setdefault(
            (call.position.shape, call.rotation.size, call.work), right.table(call))),
    row("rotary-pairs-otherwise", "values",
        "Neighbours are rotated where halves are asked for, and halves where neighbours are.",
        "`x[..., ::2], x[..., 1::2]` where pairs are halves, `x.chunk(2, -1)`, and the reverse",
        pairs=other_pairs),
    row("rotary-angles-of-other-pairs", "values",
        "Pairs of halves have the angles of neighbours, and neighbours those of halves.",
        "`repeat_interleave(2)` goes with neighbours, `cat([angle, angle])` with halves",
        rotated=rotated_by_other_angles),
    row("rotary-exponents-without-two", "values",
        "The frequencies are base^(-i/D), not base^(-2i/D).",
        "`arange(D // 2) / D`; `arange(0, D, 2) / D` are the exponents",
        frequencies=variant_frequencies("none", lambda call:
            (unscaled_theta(call, call.rotation.base**0.5), 1.0))),
    row("rotary-computed-in-dtype", "values",
        "Positions, frequencies and angles are computed in the 16-bit dtype of the query.",
        "`positions.to(q.dtype) * inv_freq.to(q.dtype)`; compute angles in float32",
        family="numerics", right=RotaryTableCast, frequencies=frequencies_in_dtype,
        position=lambda right, call: round_to(call.position, call.fmt).astype(call.work),
        angle=lambda right, position, theta, call:
            round_to(right.angle(position, theta, call), call.fmt).astype(call.work)),
    row("rotary-off-by-one", "values", "Positions begin at 1.",
        "`arange(1, L + 1)`; positions begin at 0: `arange(L)`",
        position=lambda right, call: right.position(call) + call.work(1)),
    row("rotary-offset-ignored", "values", "The first position is taken for 0, whatever it is.",
        "`arange(L)` for every chunk; add where it begins: `arange(start, start + L)`",
        position=lambda right, call: right.position(call) - call.work(call.position.min())),
    row("rotary-positions-of-the-first-sample", "values",
        "All samples have the positions of the first.",
        "`position_ids[0]` or `position_ids[:1]` for all samples; sample b has `position_ids[b]`",
        position=lambda right, call: 0 * right.position(call) + right.position(call)[:1]
            if call.position.ndim > 1 else right.position(call)),
    row("rotary-positions-of-the-first-sample-for-neighbours", "values",
        "Neighbouring pairs are rotated by the positions of the first sample in all samples.",
        "`position_ids[0]` in the path for neighbouring pairs; sample b has `position_ids[b]`",
        position=lambda right, call: 0 * right.position(call) + right.position(call)[:1]
            if call.position.ndim > 1 and call.rotation.interleaved else right.position(call)),
    row("rotary-positions-sorted", "values", "Positions are sorted before they are used.",
        "`arange` from the first position, or `.sort()`; take `cos[position_ids]` as they are",
        position=lambda right, call: np.sort(right.position(call), -1)),
    row("rotary-positions-in-bfloat16", "values",
        "Positions are rounded to bfloat16, whatever the dtype.",
        "`positions.bfloat16()`, which has no odd number above 256; keep positions in float32",
        family="numerics",
        position=lambda right, call: round_to(call.position, DTYPES["bf16"]).astype(call.work)),
    row("rotary-positions-in-dtype", "values",
        "Positions are rounded to the 16-bit dtype of the query.",
        "`positions.to(q.dtype)`; 16 bits hold no large integers: keep positions in float32",
        family="numerics", right=RotaryTableCast,
        position=lambda right, call: round_to(call.position, call.fmt).astype(call.work)),
    row("rotary-frequencies-in-dtype", "values",
        "Frequencies are rounded to the 16-bit dtype of the query.",
        "`inv_freq` is a buffer, which `model.bfloat16()` casts; keep it in float32",
        family="numerics", right=RotaryTableCast, frequencies=frequencies_in_dtype),
    row("rotary-angles-in-dtype", "values",
        "Angles are rounded to the 16-bit dtype of the query before sine and cosine are taken.",
        "`(positions * inv_freq).to(q.dtype).cos()`; cast after `cos` and `sin`", family="numerics",
        right=RotaryTableCast,
        angle=lambda right, position, theta, call:
            round_to(right.angle(position, theta, call), call.fmt).astype(call.work)),
    row("rotary-angles-of-float32", "values", "A float64 query is rotated by angles in float32.",
        "`angle.float()`; a float64 query needs angles in float64", family="numerics",
        angle=lambda right, position, theta, call:
            right.angle(position, theta, call).astype(np.float32)),
    row("rotary-base-ignored", "values", "The base is always 10000.",
        "`10000 ** -exponent`; take the base that was given (`rope_theta`)",
        frequencies=variant_frequencies("none", lambda call: (unscaled_theta(call, 10000.0), 1.0))),
    row("rotary-frequencies-of-head-size", "values",
        "In a partial rotation exponents are divided by D, not by the number of rotated "
        "components.", "`arange(0, r, 2) / D`; divide by r, the number of rotated components",
        frequencies=variant_frequencies("none", lambda call:
            (unscaled_theta(call, size=call.x.shape[-1]), 1.0))),
    row("rotary-turns-the-last-components", "values",
        "A partial rotation rotates the last components, not the first.",
        "`x[..., -r:]`; a partial rotation takes `x[..., :r]`",
        pairs=pairs_of_last_components),
    row("rotary-rest-is-zero", "values", "Components beyond the rotated ones are zero.",
        "`zeros_like(x)` with `x[..., :r]` filled in; copy `x[..., r:]`, too",
        rotate=lambda right, call:
            right.rotate(call) * (np.arange(call.x.shape[-1]) < call.rotation.size)),
    row("rotary-backwards", "values", "Pairs are rotated the other way round.",
        "`x1 * cos + x2 * sin`; it is `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`",
        rotated=lambda right, x1, x2, cosine, sine, call:
            right.rotated(x1, x2, cosine, -sine, call)),
    row("rotary-gradient-turned-on", "gradients", "The gradient is rotated on, not back.",
        "backward calls forward; the gradient is rotated back, with `-sin`", family="gradient",
        rotate=lambda right, call: right.rotate(replace(call, inverse=False))),
    row("rotary-beyond-the-table", "values", "Positions count modulo 4096, the length of a table.",
        "`cos[position % 4096]`; make the table as long as the largest position",
        position=lambda right, call: right.position(call) % call.work(4096)),
    row("rotary-positions-in16-bits", "values", "Positions count modulo 65536.",
        "positions of dtype `uint16`; long sequences need more bits",
        position=lambda right, call: right.position(call) % call.work(65536)),
    row("rotary-far-angles-wrapped", "values",
        "Large angles are reduced modulo 6.2832, a rounded 2 pi.",
        "`angle % 6.2832`, which adds an error at every turn; give the angle to `cos` as it is",
        family="numerics", angle=angle_wrapped_if_far),
    row("rotary-negative-from-the-end", "bad_problem",
        "Negative positions count from the end of the table, and are not refused.",
        "`cos[position]`, where -1 is the last row; raise ValueError if `position < 0`",
        family="contract", right=RotaryByTable, rows=rows_from_table_end),
    row("rotary-ends-at-the-table", "bad_problem",
        "Positions beyond the table are taken for its last, and not refused.",
        "`position.clamp(max=len(cos) - 1)`; raise ValueError beyond the table", family="contract",
        right=RotaryByTable,
        rows=lambda right, call: np.minimum(right.rows(call), call.entries - 1)),
    row("rotary-fractions-cut-off", "bad_problem",
        "Fractions of positions are cut off, and not refused.",
        "`cos[position.long()]`; a table has no fractions: raise ValueError", family="contract",
        right=RotaryByTable, rows=lambda right, call: np.floor(right.rows(call))),
    row("rotary-far-positions-halved", "relative_positions",
        "Positions beyond 512 lie half as far apart, though no scaling is asked for.",
        "positions beyond 512 are interpolated (`/ 2`) without `rope_scaling`; keep them",
        position=positions_halved_beyond_512),
    row("rotary-linear-ignored", "values", "Linear scaling of positions has no effect.",
        "`rope_scaling` is not read; linear: `inv_freq / factor`",
        frequencies=variant_frequencies("linear", lambda call: (unscaled_theta(call), 1.0))),
    row("rotary-grows-from-the-first", "values",
        "Dynamic NTK: the base changes within the original length, too.",
        "`growth` from L below the original length, too; take `max(L, original)`",
        frequencies=variant_frequencies("ntk", ntk_without_minimum)),
    row("rotary-never-grows", "values",
        "Dynamic NTK: the base does not grow beyond the original length.",
        "`inv_freq` of `__init__` for every length; recompute the base beyond the original length",
        frequencies=variant_frequencies("ntk", lambda call: (unscaled_theta(call), 1.0))),
    row("rotary-mixed-in-steps", "values",
        "llama3: frequencies between both ends are kept as they are, not mixed.",
        "`where(turns < 1, inv_freq / factor, inv_freq)`; between 1 and 4 turns mix both smoothly",
        frequencies=variant_frequencies("llama3", llama3_without_mixing)),
    row("rotary-mixed-in-reverse", "values",
        "llama3: between both ends the shares of both frequencies are exchanged.",
        "`(1 - smooth) * inv_freq + smooth * inv_freq / factor`; exchange both",
        frequencies=variant_frequencies("llama3", llama3_mixed_reversed)),
    row("rotary-yarn-without-factor", "values",
        "yarn: sine and cosine are not multiplied by the attention factor.",
        "`cos`, `sin` without `* attention_factor`, which is `0.1 * log(factor) + 1`",
        frequencies=variant_frequencies("yarn", lambda call:
            (frequencies(call.rotation, call.position).theta, 1.0))),
    row("rotary-yarn-ramp-reversed", "values",
        "yarn: fast components are divided by the factor, slow ones kept.",
        "`ramp` for `1 - ramp`; fast components are kept, slow ones divided by the factor",
        frequencies=variant_frequencies("yarn", yarn_ramp_reversed)),
    row("rotary-yarn-ramp-of-the-default-base", "values",
        "yarn: the ends of the ramp are those of the base 10000, whatever base is given.",
        "`find_correction_range(..., base=10000)`; the ramp takes the base of the frequencies",
        frequencies=variant_frequencies("yarn", yarn_ramp_of_default_base)),
    row("rotary-yarn-ramp-of-the-head", "values",
        "yarn: in a partial rotation the ends of the ramp are those of the whole head.",
        "`find_correction_range(..., dim=D)`; take r, the number of rotated components",
        frequencies=variant_frequencies("yarn", yarn_ramp_of_head)),
    row("rotary-always-short", "values", "longrope: long sequences take the factors of short ones.",
        "`short_factor` always; beyond the original length it is `long_factor`",
        frequencies=variant_frequencies("longrope", longrope_short_factors)),
    row("rotary-grows-like-yarn", "norm_kept",
        "Sine and cosine are multiplied by yarn's factor, whatever variant is asked for.",
        "`cos * attention_factor` in every variant; it is 1 unless yarn or longrope is asked for",
        table=table_with_yarn_factor),
    row("rotary-given-factor-ignored", "values", "A given factor on sine and cosine has no effect.",
        "`attention_factor` is not read; if it is given, it replaces the variant's own",
        frequencies=frequencies_with_own_factor),
    row("rotary-given-factor-multiplied", "values",
        "A given factor on sine and cosine is multiplied by the variant's own.",
        "`own * attention_factor`; a given factor replaces the variant's own",
        frequencies=frequencies_with_both_factors),
    row("rotary-mscale-reversed", "values", "yarn: `mscale` and `mscale_all_dim` are exchanged.",
        "`get_mscale(mscale_all_dim) / get_mscale(mscale)`; it is the other way round",
        frequencies=changed_factor(lambda factor, scaling:
            1 / factor if scaling == "yarn-mscale" else factor)),
]  # fmt: skip

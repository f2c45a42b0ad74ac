"""Rotary position embedding: rotates each pair (x1, x2) of components by an angle.

    y1 = x1 c - x2 s,   y2 = x2 c + x1 s,   c = a cos(p theta),   s = a sin(p theta)

p is the position of the token, theta_i = base^(-e_i) with e_i = 2i/r (or a scaled variant), and a = 1
except for yarn and longrope. query (B, H, L, D), position (L,) or (B, L). Components from r on are
copied (`references.primitives.rotation`). No row is fully masked.

Frequencies by variant, with f the factor, n the original length, m the largest position plus one:

    linear      theta / f
    ntk         if m > n: base (f m/n - (f - 1))^(r / (r - 2)) for base
    llama3      theta ((1 - w) / f + w), w = (n theta / 2 pi - low) / (high - low) within [0, 1]
    yarn        theta (w / f + 1 - w), w = (i - i_fast) / (i_slow - i_fast) within [0, 1], where
                i_fast and i_slow are r ln(n / 2 pi beta) / (2 ln base), rounded down and up;
                a = 0.1 ln f + 1, or the ratio of 0.1 m ln f + 1 for m = mscale and mscale_all_dim
    longrope    theta / f_i, long factors f_i if m > n, else short; a = sqrt(1 + ln f / ln n)

Bounds, with u the roundoff of angles (u_acc):

    theta       base^-e as a power or exp(-e ln base): exponent, logarithm and product are rounded, and
                each moves theta by u e ln base. Power, quotient and the like: 4 u.
    angle       Two more roundings, of a scaled position and of the product:
                delta = p theta (3 e ln base + 6) u, plus the roundings of the variant.
    c, s        For an angle with error delta: |s| delta + delta^2 / 2 for c, with c and s exchanged for
                s; at most 2. Evaluated within 2 u; times a, 4 u; stored as a table in u_p.

Sources: Su et al., RoFormer, arXiv 2104.09864, section 3.4; Chen et al., arXiv 2306.15595 (linear);
bloc97, "Dynamically scaled RoPE" (2023; ntk); Llama Team, arXiv 2407.21783, section 3.4 and Meta's
published code (llama3); Peng et al., YaRN, arXiv 2309.00071, section 3; Ding et al., LongRoPE, arXiv
2402.13753, with the factor of the Phi-3 models. The bounds are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.primitives.rotation import Rotated
from attention_conformance.references.rounding import Bounded, Roundoffs, Store, magnitude, stored
from attention_conformance.suite.spec.operators.rotary import (
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    HIGH_FREQUENCY,
    LOW_FREQUENCY,
    ORIGINAL_LENGTH,
    Rotation,
)


def compose(problem: Problem) -> Composition:
    """Returns the rotated query (B, H, L, D)."""
    x, u = problem.leaf("query"), problem.u
    rotation = Rotation.of(problem.inputs.case, x.shape[-1])
    cosine, sine = table(rotation, problem.arrays["position"], u)
    return Composition(Rotated(u, x, cosine, sine, rotation))


reference = Reference(compose)


@dataclass(frozen=True)
class Frequencies:
    """Frequencies of a rotation.
    - `theta`: the frequencies (r / 2,)
    - `relative`: their relative error, (r / 2,), in units of the roundoff
    - `attention`: the factor a on sine and cosine
    """

    theta: np.ndarray
    relative: np.ndarray
    attention: float = 1.0


def frequencies(rotation: Rotation, position: np.ndarray) -> Frequencies:
    """Returns the frequencies of a rotation, in the precision of `position`. Variants that depend on the
    length use the largest position."""
    of_variant = _variant_frequencies(rotation, position)
    factor = rotation.attention
    return of_variant if factor is None else replace(of_variant, attention=factor)


def _variant_frequencies(rotation: Rotation, position: np.ndarray) -> Frequencies:
    """Returns the variant's frequencies, with the variant's own factor on sine and cosine. base^-e has 3
    e ln base + 4 roundings."""
    size, base, f, n = rotation.size, rotation.base, FACTOR, ORIGINAL_LENGTH
    exponent = (2 * np.arange(size // 2)).astype(position.dtype) / size
    length = float(position.max(initial=0)) + 1
    growth_roundings = np.zeros(exponent.shape)
    if rotation.variant == "ntk" and length > n:
        power, growth = size / (size - 2), f * length / n - (f - 1)
        base = position.dtype.type(base) * position.dtype.type(growth) ** power
        growth_error = 3 * f * length / n / growth + 3 * math.log(growth)
        growth_roundings = magnitude(exponent) * (power * growth_error + 3)
    theta = position.dtype.type(base) ** -exponent
    relative = 3 * magnitude(exponent) * math.log(base) + 4 + growth_roundings
    if rotation.variant == "linear":
        return Frequencies(theta / f, relative)
    if rotation.variant == "llama3":
        return _llama3(theta, relative)
    if rotation.variant == "yarn":
        low, high = (
            size * math.log(n / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (BETA_FAST, BETA_SLOW)
        )
        first, last = max(math.floor(low), 0), min(math.ceil(high), size - 1)
        span = last - first or 0.001
        weight = np.clip((np.arange(size // 2).astype(theta.dtype) - first) / span, 0, 1)
        scaled = theta * (weight / f + (1 - weight))
        return Frequencies(scaled, relative + 6, 0.1 * math.log(f) + 1)
    if rotation.variant == "longrope":
        factors = rotation.long_factors() if length > n else rotation.short_factors()
        a = math.sqrt(1 + math.log(f) / math.log(n))
        return Frequencies(theta / factors.astype(theta.dtype), relative + 1, a)
    return Frequencies(theta, relative)


def _llama3(theta: np.ndarray, relative: np.ndarray) -> Frequencies:
    """Returns the frequencies of llama3. Near both ends of the interpolation a rounded wavelength may
    fall on either side, so the error there covers both. `relative`: the relative error of `theta` in
    roundoffs."""
    f, span = FACTOR, HIGH_FREQUENCY - LOW_FREQUENCY
    turns = ORIGINAL_LENGTH * theta / (2 * np.pi)
    weight = np.clip((turns - LOW_FREQUENCY) / span, 0, 1)
    scaled = theta * ((1 - weight) / f + weight)
    weight_error = (magnitude(turns) * (relative + 4) + 3 * LOW_FREQUENCY) / span
    near_interpolation = magnitude((turns >= LOW_FREQUENCY / 2) & (turns <= 2 * HIGH_FREQUENCY))
    mixed_error = near_interpolation * magnitude(theta / scaled) * (1 - 1 / f) * weight_error
    return Frequencies(scaled, relative + 4 + mixed_error)


def table(rotation: Rotation, position: np.ndarray, u: Roundoffs) -> tuple[Bounded, Bounded]:
    """Returns cosine and sine times a, stored in u_p: (L, r / 2), or (B, 1, L, r / 2) for `position` (B,
    L)."""
    unit, freqs = u.accumulate, frequencies(rotation, position)
    angle = position[..., None] * freqs.theta
    delta = magnitude(angle) * (freqs.relative + 2) * unit
    entries = []
    for value, slope in ((np.cos(angle), np.sin(angle)), (np.sin(angle), np.cos(angle))):
        error = np.minimum(magnitude(slope) * delta + delta**2 / 2, 2.0) + 2 * unit
        a = freqs.attention
        scaled = Bounded(value * a, a * (error + 4 * unit * (a != 1)))
        entry = stored(scaled, Store(max(u.weight, unit), u.weight_underflow))
        if position.ndim == 2:
            entry = entry.reshape(entry.shape[0], 1, *entry.shape[1:])
        entries.append(entry)
    return entries[0], entries[1]

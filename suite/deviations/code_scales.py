"""Scales of codes that are those of other keys, values, heads, tokens, samples or components: a family of
deviations of attention over codes, of latents that are codes, and of writing codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import Deviation, deviation
from attention_conformance.suite.deviations.kernels.latent import LatentKernel
from attention_conformance.suite.deviations.kernels.quantized import (
    Coded,
    QuantizedKernel,
    QuantizedWriteKernel,
    Scales,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.operators.quantized import KINDS
from attention_conformance.suite.spec.operators.tiles import TILE, untiled

Other = Callable[[np.ndarray], np.ndarray]
"""Scales of the same shape in place of the right ones."""


def first(axis: int) -> Other:
    return lambda scale: np.broadcast_to(scale.take([0], axis), scale.shape)


def moved(axis: int, by: int) -> Other:
    return lambda scale: np.roll(scale, by, axis)


def in_bfloat16(scale: np.ndarray) -> np.ndarray:
    return round_to(scale, DTYPES["bf16"]).astype(scale.dtype)


ALONG: dict[str, tuple[str, str, str, str, Callable[[int], Other]]] = {
    "scale-of-the-first-head": ("head", "heads", "the scales of the first head",
        "`scale.item()` or `scale[0]`; every head has a scale", first),
    "scale-of-the-next-head": ("head", "heads", "the scales of the next head",
        "`scale[head + 1]`, an offset counted in other units", partial(moved, by=-1)),
    "scale-of-the-first-sample": ("sample", "heads", "the scales of the first sample",
        "`scale[0]` of (batch, heads, tokens); index the sample, too", first),
    "scale-of-the-first-token": ("token", "quantized", "the scales of the first token",
        "a scale kept from prefill; every token has one", first),
    "scale-of-the-next-token": ("token", "quantized", "the scales of the next token",
        "`scale[slot + 1]`, lengths that already count the new token", partial(moved, by=-1)),
    "scale-of-the-token-before": ("token", "quantized", "the scales of the token before",
        "`scale[slot - 1]`, a scale that is written after the codes", partial(moved, by=1)),
    "scale-of-the-next-channel": ("component", "quantized", "the scale of the next component",
        "`scale.view(heads, dim)` of (dim, heads), or an interleaved order of packed weights",
        partial(moved, by=-1)),
}  # fmt: skip
"""Scales along an axis by the name of a deviation: the axis, its family, what arrays have, a hint, and
the change."""

OTHERWISE: dict[str, tuple[str, str, str, Other]] = {
    "scale-forgotten": ("quantized", "the scale 1",
        "a scale that is not read; codes times `scale`", np.ones_like),
    "scale-inverted": ("quantized", "the reciprocals of their scales",
        "`scale_inv` of another library; codes times `scale`, not divided by it", np.reciprocal),
    "scaled-twice": ("quantized", "the squares of their scales",
        "`scores * k_scale` beside keys that are scaled already", np.square),
    "scale-averaged": ("quantized", "the mean of all their scales",
        "`scale.mean()`, one scale for all", lambda scale: np.broadcast_to(scale.mean(), scale.shape)),
    "scale-in-bfloat16": ("numerics", "scales rounded to bfloat16",
        "`scale.to(torch.bfloat16)`; keep scales in float32", in_bfloat16),
}  # fmt: skip
"""Scales that are other functions of the right ones, in the same way."""

TILED: dict[str, tuple[str, str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "scale-of-the-first-tile": (
        "All tiles have the scale of the first tile.",
        "`scale[0]` of a token; every 128 components have a scale",
        lambda scale, size: untiled(first(-1)(scale), size)),
    "scale-of-the-next-tile": (
        "Every tile has the scale of the next tile.", "`scale[tile + 1]`, an index of tiles",
        lambda scale, size: untiled(moved(-1, -1)(scale), size)),
    "tiles-of-one-width": (
        "The width is divided into tiles of one width.",
        "`component * tiles // width`; a tile has 128 components, and the last one the rest",
        lambda scale, size: scale[..., np.arange(size) * scale.shape[-1] // size]),
    "tiles-in-turn": (
        "Components take the scales of all tiles in turn.",
        "`scale.repeat(128)`; use `scale.repeat_interleave(128, -1)`",
        lambda scale, size: scale[..., np.arange(size) % scale.shape[-1]]),
    "tiles-of64": (
        "A tile has 64 components.", "`component // 64`; a tile has 128 components",
        lambda scale, size: scale[..., np.minimum(np.arange(size) // 64, scale.shape[-1] - 1)]),
    "last-tile-forgotten": (
        "The components behind the last whole tile have the scale 1.",
        "`width // 128` tiles; round up",
        lambda scale, size: np.where(np.arange(size) < size - size % TILE, untiled(scale, size), 1)),
}  # fmt: skip
"""Scales of components (..., size) from those of tiles (..., tiles), by the name of a deviation: what is
wrong, a hint, and the scales."""


def others(axes: Mapping[str, int]) -> Iterator[tuple[str, str, str, str, Other]]:
    """The name, family, possession, hint and change of each kind of scales with these axes."""
    for name, (axis, family, whose, hint, along) in ALONG.items():
        if axis in axes:
            yield name, family, whose, hint, along(axes[axis])
    yield from ((name, *row) for name, row in OTHERWISE.items())


def of_tiles(prefix: str, right: type) -> Iterator[Deviation]:
    """The deviations of scales that tiles of 128 components share."""
    for name, (sentence, hint, other) in TILED.items():
        yield deviation(
            f"{prefix}-{name}", "values", sentence, hint, family="quantized", right=right,
            spread_tiles=lambda right, scale, size, other=other: other(scale, size))  # fmt: skip


def changed(other: Other, names: tuple[str, ...], right: Scales, name: str, call: Coded) -> Any:
    scale = right.scale_of(name, call)
    return other(scale) if name in names else scale


def exchanged(names: tuple[str, ...], right: Scales, name: str, call: Coded) -> np.ndarray:
    """The scales of values for keys, and of keys for values, where they have the same shape."""
    own = right.scale_of(name, call)
    (other,) = {*KINDS} - {name}
    scale = right.scale_of(other, call)[..., : own.shape[-1]]
    return scale if name in names and scale.shape == own.shape else own


def of_keys_and_values(prefix: str, have: str, right: type[Scales]) -> Iterator[Deviation]:
    """The deviations of one kernel. `have` says what keys and values do with scales."""
    row = partial(deviation, killed_by="values", right=right)
    both = "", "Keys and values", KINDS
    axes = {"sample": 0, "head": 1, "token": 2, "component": 3}
    for of, who, names in (both, ("key-", "Keys", KINDS[:1]), ("value-", "Values", KINDS[1:])):
        for name, family, whose, hint, other in others(axes):
            yield row(f"{prefix}-{of}{name}", sentence=f"{who} {have} {whose}.", hint=hint,
                      family=family, scale_of=partial(changed, other, names))  # fmt: skip
    for name, sentence, names, hint in (
        ("scales-exchanged", "The scales of keys and values are exchanged.", KINDS,
         "`attend(q, k, v, v_scale, k_scale)`; pass scales by name"),
        ("key-scale-for-values", f"Values {have} the scales of keys.", KINDS[1:],
         "`k_scale` for both, a line copied and half changed"),
        ("value-scale-for-keys", f"Keys {have} the scales of values.", KINDS[:1],
         "`v_scale` for both, a line copied and half changed"),
    ):  # fmt: skip
        yield row(f"{prefix}-{name}", sentence=sentence, hint=hint, family="quantized",
                  scale_of=partial(exchanged, names))  # fmt: skip


def before_tiles(other: Other, right: LatentKernel, scale: np.ndarray, size: int) -> np.ndarray:
    return right.spread_tiles(other(scale), size)


def of_latents() -> Iterator[Deviation]:
    for name, family, whose, hint, other in others({"sample": 0, "token": 1}):
        yield deviation(
            f"latent-{name}", "values", f"Latents have {whose}.", hint, family=family,
            right=LatentKernel,
            spread_tiles=partial(before_tiles, other))  # fmt: skip


DEVIATIONS = [
    *of_keys_and_values("quantized", "have", QuantizedKernel),
    *of_keys_and_values("codes", "are written with", QuantizedWriteKernel),
    *of_tiles("quantized", QuantizedKernel),
    *of_tiles("codes", QuantizedWriteKernel),
    *of_tiles("latent", LatentKernel),
    *of_latents(),
]

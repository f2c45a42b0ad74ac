"""Deviations that use wrong scales for codes, such as the scales of another head or sample: in attention
over codes, for latents that are codes, and in writing codes."""

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
from attention_conformance.suite.spec.operators.tiles import TILE, repeat_per_component

ScaleChange = Callable[[np.ndarray], np.ndarray]
"""A function from the right scales to wrong ones of the same shape."""


def first_along(axis: int) -> ScaleChange:
    """Returns a change that repeats the first entry along an axis."""
    return lambda scale: np.broadcast_to(scale.take([0], axis), scale.shape)


def rolled_along(axis: int, by: int) -> ScaleChange:
    """Returns a change that rolls the entries along an axis, `by` places forward."""
    return lambda scale: np.roll(scale, by, axis)


def rounded_to_bfloat16(scale: np.ndarray) -> np.ndarray:
    return round_to(scale, DTYPES["bf16"]).astype(scale.dtype)


ALONG: dict[str, tuple[str, str, str, str, Callable[[int], ScaleChange]]] = {
    "scale-of-the-first-head": ("head", "heads", "the scales of the first head",
        "`scale.item()` or `scale[0]`; every head has a scale", first_along),
    "scale-of-the-next-head": ("head", "heads", "the scales of the next head",
        "`scale[head + 1]`, an offset counted in other units", partial(rolled_along, by=-1)),
    "scale-of-the-first-sample": ("sample", "heads", "the scales of the first sample",
        "`scale[0]` of (batch, heads, tokens); index the sample, too", first_along),
    "scale-of-the-first-token": ("token", "quantized", "the scales of the first token",
        "a scale kept from prefill; every token has one", first_along),
    "scale-of-the-next-token": ("token", "quantized", "the scales of the next token",
        "`scale[slot + 1]`, lengths that already count the new token", partial(rolled_along, by=-1)),
    "scale-of-the-token-before": ("token", "quantized", "the scales of the token before",
        "`scale[slot - 1]`, a scale that is written after the codes", partial(rolled_along, by=1)),
    "scale-of-the-next-channel": ("component", "quantized", "the scale of the next component",
        "`scale.view(heads, dim)` of (dim, heads), or an interleaved order of packed weights",
        partial(rolled_along, by=-1)),
}  # fmt: skip
"""Changes along an axis, by the end of a deviation's name: the axis, the family, the words for the wrong
scales, a hint, and the change as a function of the axis."""

WITHOUT_AXIS: dict[str, tuple[str, str, str, ScaleChange]] = {
    "scale-forgotten": ("quantized", "the scale 1",
        "a scale that is not read; codes times `scale`", np.ones_like),
    "scale-inverted": ("quantized", "the reciprocals of their scales",
        "`scale_inv` of another library; codes times `scale`, not divided by it", np.reciprocal),
    "scaled-twice": ("quantized", "the squares of their scales",
        "`scores * k_scale` beside keys that are scaled already", np.square),
    "scale-averaged": ("quantized", "the mean of all their scales",
        "`scale.mean()`, one scale for all", lambda scale: np.broadcast_to(scale.mean(), scale.shape)),
    "scale-in-bfloat16": ("numerics", "scales rounded to bfloat16",
        "`scale.to(torch.bfloat16)`; keep scales in float32", rounded_to_bfloat16),
}  # fmt: skip
"""Changes without an axis, by the end of a deviation's name: family, words, hint and change."""

TILED: dict[str, tuple[str, str, Callable[[np.ndarray, int], np.ndarray]]] = {
    "scale-of-the-first-tile": (
        "All tiles have the scale of the first tile.",
        "`scale[0]` of a token; every 128 components have a scale",
        lambda scale, size: repeat_per_component(first_along(-1)(scale), size)),
    "scale-of-the-next-tile": (
        "Every tile has the scale of the next tile.", "`scale[tile + 1]`, an index of tiles",
        lambda scale, size: repeat_per_component(rolled_along(-1, -1)(scale), size)),
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
        lambda scale, size: np.where(np.arange(size) < size - size % TILE,
            repeat_per_component(scale, size), 1)),
}  # fmt: skip
"""Faulty functions from scales of tiles (..., tiles) and a size to scales of components (..., size), by
the end of a deviation's name: sentence, hint and function."""


def scale_changes(axes: Mapping[str, int]) -> Iterator[tuple[str, str, str, str, ScaleChange]]:
    """Yields the name's end, family, words, hint and change of each deviation of scales. `axes`: the
    numbers of the scales' axes, by name."""
    for name, (axis, family, words, hint, change_along) in ALONG.items():
        if axis in axes:
            yield name, family, words, hint, change_along(axes[axis])
    yield from ((name, *row) for name, row in WITHOUT_AXIS.items())


def tile_deviations(prefix: str, right: type) -> Iterator[Deviation]:
    """Yields the deviations of scales of tiles, which have 128 components each."""
    for name, (sentence, hint, spread) in TILED.items():
        yield deviation(
            f"{prefix}-{name}", "values", sentence, hint, family="quantized", right=right,
            spread_tiles=lambda right, scale, size, spread=spread: spread(scale, size))  # fmt: skip


def changed_scale(
    change: ScaleChange, names: tuple[str, ...], right: Scales, name: str, call: Coded
) -> Any:
    """Returns the scales of `name` ("key" or "value"), changed if `name` is one of `names`."""
    scale = right.scale_of(name, call)
    return change(scale) if name in names else scale


def exchanged_scale(names: tuple[str, ...], right: Scales, name: str, call: Coded) -> np.ndarray:
    """Returns the scales of values for keys, and of keys for values, if `name` is one of `names` and the
    shapes are equal; else its own."""
    right_scale = right.scale_of(name, call)
    (other_name,) = {*KINDS} - {name}
    other_scale = right.scale_of(other_name, call)[..., : right_scale.shape[-1]]
    exchanges = name in names and other_scale.shape == right_scale.shape
    return other_scale if exchanges else right_scale


def key_and_value_deviations(prefix: str, verb: str, right: type[Scales]) -> Iterator[Deviation]:
    """Yields the deviations of the scales of one kernel. Their sentences are "Keys {verb} the scales of
    ..."."""
    row = partial(deviation, killed_by="values", right=right)
    axes = {"sample": 0, "head": 1, "token": 2, "component": 3}
    subjects = (
        ("", "Keys and values", KINDS),
        ("key-", "Keys", KINDS[:1]),
        ("value-", "Values", KINDS[1:]),
    )
    for infix, subject, names in subjects:
        for name, family, words, hint, change in scale_changes(axes):
            yield row(f"{prefix}-{infix}{name}", sentence=f"{subject} {verb} {words}.", hint=hint,
                      family=family, scale_of=partial(changed_scale, change, names))  # fmt: skip
    for name, sentence, names, hint in (
        ("scales-exchanged", "The scales of keys and values are exchanged.", KINDS,
         "`attend(q, k, v, v_scale, k_scale)`; pass scales by name"),
        ("key-scale-for-values", f"Values {verb} the scales of keys.", KINDS[1:],
         "`k_scale` for both, a line copied and half changed"),
        ("value-scale-for-keys", f"Keys {verb} the scales of values.", KINDS[:1],
         "`v_scale` for both, a line copied and half changed"),
    ):  # fmt: skip
        yield row(f"{prefix}-{name}", sentence=sentence, hint=hint, family="quantized",
                  scale_of=partial(exchanged_scale, names))  # fmt: skip


def spread_changed_tiles(
    change: ScaleChange, right: LatentKernel, scale: np.ndarray, size: int
) -> np.ndarray:
    return right.spread_tiles(change(scale), size)


def latent_deviations() -> Iterator[Deviation]:
    for name, family, words, hint, change in scale_changes({"sample": 0, "token": 1}):
        yield deviation(
            f"latent-{name}", "values", f"Latents have {words}.", hint, family=family,
            right=LatentKernel,
            spread_tiles=partial(spread_changed_tiles, change))  # fmt: skip


DEVIATIONS = [
    *key_and_value_deviations("quantized", "have", QuantizedKernel),
    *key_and_value_deviations("codes", "are written with", QuantizedWriteKernel),
    *tile_deviations("quantized", QuantizedKernel),
    *tile_deviations("codes", QuantizedWriteKernel),
    *tile_deviations("latent", LatentKernel),
    *latent_deviations(),
]

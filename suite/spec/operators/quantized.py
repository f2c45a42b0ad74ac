"""Attention over keys and values in 8 bits: codes, and the scales they are multiplied by.

    query (B, H, Lq, D), output (B, H, Lq, Dv)                       in the dtype of the case
    key_codes (B, Hkv, Lk, D), value_codes (B, Hkv, Lk, Dv)          int8, int4, e4m3 or e5m2
    key_scale, value_scale                                           float32 (float64 in float64 cases)
    key_zero, value_zero                                             codes, with zero points

    key = scale (code - zero), value likewise

A scale is one number (`tensor`), one of each key/value head (`perhead`), of each token and head
(`pertoken`), of each component of a head (`perchannel`), or of each token, head and tile of 128
components (`pertile`, see `suite.spec.operators.tiles`). A zero point has the shape of its scale. With
`causal` the last query is aligned at the last key.

With `writes` a call stores tokens and attends them: the keys and values of the queries' own tokens come
in the dtype of the case, and the last Lq codes are stale.

    key (B, Hkv, Lq, D), value (B, Hkv, Lq, Dv)                      new tokens, which are larger
    key_output (B, Hkv, Lk, D), value_output (B, Hkv, Lk, Dv)        all codes, with those of new tokens

With `page4` codes, and scales of tokens, lie in pages of four slots (`suite.spec.operators.in_pages`).

Keys and values are given as codes, so an answer is judged as if they were exact: a wrong scale shows in
16 bits, too. Scales of keys differ from those of values, and are never 1.

Sources: Micikevicius et al., FP8 Formats for Deep Learning, 2022; Liu et al., KIVI, ICML 2024.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import CODES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import (
    SCALE,
    ArrayKinds,
    Axes,
    Operator,
    Packing,
    Questions,
    Work,
    choice,
    flag,
)
from attention_conformance.suite.spec.operators import in_pages
from attention_conformance.suite.spec.operators.layers import FACTORS, PASSES
from attention_conformance.suite.spec.operators.packed import allowed_pairs
from attention_conformance.suite.spec.operators.quantized_cases import ASKS, IN_PAGES
from attention_conformance.suite.spec.operators.tiles import (
    TILES,
    repeat_per_component,
    tile_counts,
    to_tiles,
)
from attention_conformance.suite.spec.recipes import DRAWS
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

WORDS = {
    "int8-codes": "keys and values as 8-bit whole numbers times a scale",
    "int4-codes": "keys and values as 4-bit whole numbers times a scale",
    "e4m3-codes": "keys and values as 8-bit floating-point numbers e4m3 times a scale",
    "e5m2-codes": "keys and values as 8-bit floating-point numbers e5m2 times a scale",
    "zero-points": "whole numbers that are subtracted from codes",
    "scales-of-heads": "a scale of codes for every key/value head",
    "scales-of-tokens": "a scale of codes for every token and key/value head",
    "scales-of-channels": "a scale of codes for every component of every key/value head",
    "scales-of-tiles": "a scale of codes for every 128 components of a token and key/value head",
}
"""Words for required features of codes and their scales."""

FEATURES = frozenset(
    {
        *WORDS, *in_pages.WORDS, "new-tokens", "causal", "scale", "grouped-heads", "value-size",
        "gradient", "inner-stride", "other-shapes",
    }
)  # fmt: skip
"""Features of attention over codes."""

GRANULES = {
    "tensor": "", "perhead": "g", "pertoken": "bgk", "perchannel": "gd", "pertile": "bgkm",
}  # fmt: skip
"""The axes of a scale of keys. Scales of values have v in place of d, and their tiles in place of m."""

OPTIONS = (choice("codes", CODES), choice("scales", GRANULES), flag("zero", "zero"))

KINDS = ("key", "value")

WRITTEN_CODES = ("key_output", "value_output")
"""Codes that come back from a call that writes."""


def axes_of(name: str) -> str:
    """Returns the axes of keys or values (`name`)."""
    return "bgkd" if name == "key" else "bgkv"


def scale_axes(case: Case) -> Axes:
    """Returns the axis letters of scales and zero points, by array name, such as {"key_scale": "bgk"}.
    `GRANULES` has them for keys. For values, the letters of components and of tiles are replaced."""
    granule = GRANULES[case.option("scales")]
    numbers = ("scale", "zero") if case.option("zero") else ("scale",)
    axes = {}
    for number in numbers:
        for name in KINDS:
            components = axes_of(name)[-1]
            axes[f"{name}_{number}"] = granule.replace("d", components).replace(
                "m", TILES[components]
            )
    return axes


def expand(array: np.ndarray, axes: str, to_axes: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Returns scales or zero points with the axes `axes` in a shape that broadcasts to arrays with the
    axes `to_axes`. The number of a tile is repeated for its components. `sizes`: sizes by letter."""
    if axes[-1:] == TILES[to_axes[-1]]:
        return repeat_per_component(array, sizes[to_axes[-1]])
    shape = iter(array.shape)
    return array.reshape([next(shape) if letter in axes else 1 for letter in to_axes])


def broadcast(inputs: Inputs, name: str) -> np.ndarray:
    """Returns the scales or zero points `name` in a shape that broadcasts to their keys or values."""
    axes = axes_of(name.partition("_")[0])
    if inputs.case.option("page_size") is not None:
        axes = in_pages.pool_axes(inputs.case, axes)
    return expand(inputs.arrays[name], inputs.axes(name), axes, inputs.letters)


def scale_argument(inputs: Inputs, name: str) -> np.ndarray:
    """Returns the scales or zero points `name` as arguments of implementations: as `broadcast` returns
    them, or with tiles one number for each tile."""
    has_tiles = inputs.case.option("scales") == "pertile"
    return inputs.arrays[name] if has_tiles else broadcast(inputs, name)


def vary_sizes(case: Case, name: str, tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns keys or values (`name`) with each granule, the elements that share a scale, multiplied by a
    random size.

    Values are larger than keys. With zero points most numbers are positive. The first token is tiny, so
    that its floating-point codes are subnormal, unless tokens have their own scales.
    """
    axes = scale_axes(case)[f"{name}_scale"]
    sizes = 0.5 + 1.5 * rng.random([case.letters[letter] for letter in axes])
    sizes *= 3.0 if name == "value" else 1.0
    size = expand(sizes, axes, axes_of(name), case.letters)
    scaled = (tokens + case.option("zero")) * size
    if not CODES[case.option("codes")].is_whole and "k" not in axes:
        scaled[:, :, 0] *= 2.0**-14
    return scaled


def draw_scales(case: Case, tokens: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns scales and zero points of `tokens` (keys and values by name), by array name. The largest
    number of every granule takes the largest code; with zero points the lowest number takes the lowest
    code."""
    largest_code = CODES[case.option("codes")].max
    if not case.option("beyond"):
        # e5m2 reaches too far for scales in float16
        largest_code = min(largest_code, CODES["e4m3"].max)
    scales, zeros = {}, {}
    for name, x in tokens.items():
        axes, token_axes = scale_axes(case)[f"{name}_scale"], axes_of(name)
        if axes[-1:] == TILES[token_axes[-1]]:
            x, token_axes = to_tiles(x), token_axes[:-1] + axes[-1] + token_axes[-1]
        reduced_axes = tuple(n for n, letter in enumerate(token_axes) if letter not in axes)
        lowest, largest = x.min(reduced_axes, initial=0.0), x.max(reduced_axes, initial=0.0)
        if case.option("zero"):
            scale = scales[f"{name}_scale"] = (largest - lowest) / (2 * largest_code)
            zeros[f"{name}_zero"] = np.rint(-largest_code - lowest / scale)
        else:
            scales[f"{name}_scale"] = np.maximum(largest, -lowest) / largest_code
    return scales | zeros


def axes(case: Case) -> Axes:
    new = {"key": "bgqd", "value": "bgqv"} if case.option("writes") else {}
    codes = {"key_codes": "bgkd", "value_codes": "bgkv"}
    arrays = {"query": "bhqd", **codes, **scale_axes(case), **new}
    return in_pages.axes(case, arrays)


def outputs(case: Case) -> Axes:
    codes = {"key_output": "bgkd", "value_output": "bgkv"} if case.option("writes") else {}
    return {"output": "bhqv", **in_pages.outputs(case, codes)}


def draw(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    drawn = dict(zip(OPERANDS, DRAWS[case.recipe](rng, case.sizes, case.dtype), strict=True))
    tokens = {name: vary_sizes(case, name, drawn[name], rng) for name in KINDS}
    if case.option("writes"):
        for x in tokens.values():
            x[:, :, -case.sizes.Lq :] *= 4.0
        tokens = {name: round_to(x, case.dtype) for name, x in tokens.items()}
    scales, code = draw_scales(case, tokens), CODES[case.option("codes")]
    if case.recipe == "level":
        tokens["key"] = drawn["key"]
        unit = np.abs(drawn["key"]).max() / 32  # scales and codes that give back such keys
        scales["key_scale"] = unit / rng.integers(1, 3, scales["key_scale"].shape)
    arrays = {"query": drawn["query"]}
    for name, x in tokens.items():
        scale, zero = (
            expand(scales[n], scale_axes(case)[n], axes_of(name), case.letters)
            if n in scales
            else 0.0
            for n in (f"{name}_scale", f"{name}_zero")
        )
        codes = np.clip(x / scale + zero, -code.max, code.max)
        arrays[f"{name}_codes"] = np.where(codes < 0.5 - code.max, code.least, codes)
    if case.option("writes"):
        for name, x in tokens.items():
            codes, new_tokens = arrays[f"{name}_codes"], slice(-case.sizes.Lq, None)
            codes[:, :, new_tokens] = rng.permuted(codes[:, :, new_tokens])
            scales[name] = x[:, :, new_tokens]
    return arrays | scales


def newest_scales(array: Any, tokens: int) -> Any:
    """Returns the scales or zero points of the last `tokens` tokens: the end of an array (., ., Lk, .).
    An array (., ., 1, .), which all tokens share, is returned unchanged."""
    return array[:, :, -tokens:] if array.shape[2] > 1 else array


def dequantized(inputs: Inputs, name: str) -> np.ndarray:
    """Returns the exact keys or values (`name`): scale (code - zero) in float64, in float64 cases in
    np.longdouble."""
    wide = np.longdouble if inputs.dtype.name == "f64" else np.float64
    codes = inputs.arrays[f"{name}_codes"].astype(wide)
    if inputs.case.option("zero"):
        codes = codes - broadcast(inputs, f"{name}_zero")
    return np.asarray(codes * broadcast(inputs, f"{name}_scale"))


def allowed(inputs: Inputs) -> np.ndarray | None:
    """Returns the mask (1 or B, 1, Lq, Lk), True attends; None if all pairs attend. The mask is causal,
    aligned at the last key, unless the option `alignment` is "all". In cases with pages, Lk counts the
    keys that `in_pages.gather_tokens` returns."""
    page_mask, s = in_pages.mask_missing_keys(inputs).mask_array, inputs.sizes
    if inputs.case.option("alignment") == "all":
        return page_mask
    causal = allowed_pairs(s.Lq, s.Lk, "causalbr")[None, None]
    return causal if page_mask is None else causal & page_mask


def work(inputs: Inputs, direction: str) -> Work:
    """Returns operations and bytes. Forward costs 2 P (D + Dv) operations for P attending pairs,
    `direction` multiplies them by `FACTORS`. Codes and scales of attended tokens are read once;
    `direction` multiplies the bytes by `PASSES`."""
    s, gathered, mask = inputs.sizes, in_pages.gather_tokens(inputs), allowed(inputs)
    attended = np.broadcast_to(True if mask is None else mask, (s.B, 1, s.Lq, s.Lk))
    pairs, share = s.H * int(attended.sum()), attended.any(2).mean()
    byte_count = s.B * s.H * s.Lq * s.Dv * inputs.dtype.itemsize
    for name, array in gathered.arrays.items():
        array_bytes = array.size * gathered.case.dtype_of(name).itemsize
        read_share = share if in_pages.is_pooled(gathered.axes(name)) else 1
        byte_count += int(array_bytes * read_share)
    flops = 2.0 * pairs * (s.D + s.Dv) * FACTORS[direction]
    return Work(flops, byte_count * PASSES[direction])


def choose(inputs: Inputs, order: Sequence[int] | np.ndarray) -> Inputs:
    """Returns the inputs with only the samples `order`, in this order."""
    order, sizes = [int(n) for n in order], replace(inputs.sizes, B=len(order))
    arrays = {n: x[order] if "b" in inputs.axes(n) else x for n, x in inputs.arrays.items()}
    return replace(inputs, case=replace(inputs.case, sizes=sizes), arrays=arrays, sizes=sizes)


def needs_of_codes(case: Case) -> Mapping[str, bool]:
    """Returns the features that codes and scales need, by word: True if the case needs the feature."""
    scales = case.option("scales")
    return {
        f"{case.option('codes')}-codes": True,
        "zero-points": case.option("zero"),
        **{
            f"scales-of-{kind}s": scales == f"per{kind}"
            for kind in ("head", "token", "channel", "tile")
        },
    }


def needs(case: Case, arrays: Collection[str], sizes: Sizes, widths: Any) -> Mapping[str, bool]:
    return {
        **needs_of_codes(case),
        "new-tokens": case.option("writes"),
        **in_pages.needs(case),
        "causal": case.option("alignment") != "all",
        "scale": case.option("scale") is not None,
        "grouped-heads": sizes.H != sizes.Hkv,
        "value-size": sizes.D != sizes.Dv,
    }


def validate_codes(case: Case) -> None:
    """Raises ValueError for empty arrays, and for floating-point codes with zero points."""
    s = case.sizes
    if not (s.B and s.Lk and s.D and s.Dv):
        raise ValueError(f"{case.operator} needs samples, keys and components: {case.id}")
    if case.option("zero") and not CODES[case.option("codes")].is_whole:
        raise ValueError(f"only whole numbers have zero points: {case.id}")


def validate(case: Case) -> None:
    validate_codes(case)
    in_pages.validate(case)
    if case.recipe == "level" and (
        case.option("zero") or case.option("writes") or case.option("codes") == "int4"
    ):
        raise ValueError(f"whole scores need codes up to 64 without zero points: {case.id}")
    if not 0 < case.sizes.Lq <= case.sizes.Lk:
        raise ValueError(f"{case.operator} has queries, and as many keys or more: {case.id}")


def completed(sizes: Sizes, numbers: Sequence[int]) -> tuple[Sizes, Mapping[str, Any]]:
    """Returns the sizes of a random case, and no options. There is at least one sample and one query, and
    the larger of both lengths is that of the keys. `numbers` is not used."""
    queries = max(min(sizes.Lq, sizes.Lk), 1)
    return replace(sizes, B=max(sizes.B, 1), Lq=queries, Lk=max(sizes.Lq, sizes.Lk)), {}


QUANTIZED = Operator(
    name="quantized",
    text="attention over keys and values in 8-bit codes with scales",
    topic=("codes", "keys and values in 8 bits, read and written"),
    words={
        **WORDS,
        **in_pages.WORDS,
        "new-tokens": "tokens that a call writes as codes and attends",
    },
    axes=axes,
    draw=partial(in_pages.draw_paged, draw),
    outputs=outputs,
    needs=needs,
    validate=validate,
    asks=ASKS,
    options=(
        *OPTIONS,
        choice("alignment", ("all", "causal")),
        flag("writes", "writes"),
        in_pages.IN_PAGES,
        in_pages.SHARED,
        in_pages.LAYOUT,
        SCALE,
    ),
    recipes=("normal", "large", "ties", "offset", "level"),
    questions=Questions(
        elections=("minus-one-behind-last-page",), well_formed=IN_PAGES[0].format(dt="f32")
    ),
    array_kinds=ArrayKinds(
        letters=lambda case: {**tile_counts(case.sizes.letters), **in_pages.letters(case)},
        integers=in_pages.TABLE,
        statistics=("key_scale", "value_scale", "key", "value"),
        wide=("key_scale", "value_scale"),
        codes=("key_codes", "value_codes", "key_zero", "value_zero", *WRITTEN_CODES),
    ),
    packing=Packing(completed=completed, choose=choose),
    work=work,
)

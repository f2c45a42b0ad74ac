"""Faults of attention over codes, and of writing codes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.quantized import Coded, QuantizedKernel, Scales
from attention_conformance.suite.faults.layouts import has_gaps, in_order
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.tiles import TILE, untiled


def rolled(scale: np.ndarray, axis: int) -> np.ndarray:
    """The scales of the next index of an axis."""
    return np.roll(scale, -1, axis)


class KeyScales(Scales):
    """The scales of keys and values are those of the keys."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        own = super().scale_of(name, call)
        return super().scale_of("key", call)[..., : own.shape[-1]]


class FirstHeadScales(Scales):
    """The scales of all heads are those of the first head."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return super().scale_of(name, call)[:, :1]


class FirstTileScales:
    """All tiles of codes have the scale of the first tile."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return untiled(array[..., :1] + 0 * array, size)


class TilesOf64:
    """A tile of codes has 64 components."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return array[..., np.minimum(np.arange(size) // 64, array.shape[-1] - 1)]


class WholeTilesAlone:
    """Components behind the last whole tile of codes have the scale 1."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        return np.where(np.arange(size) < size - size % TILE, untiled(array, size), 1)


def quantized_scales_exchanged(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    other = "value" if name == "key" else "key"
    scale, own = right.scale_of(other, call), right.scale_of(name, call)
    return scale if scale.shape == own.shape else own


def quantized_value_scale_forgotten(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    scale = right.scale_of(name, call)
    return np.ones_like(scale) if name == "value" else scale


def quantized_scale_tiled_scaled(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    scale, zero = right.scale_of(name, call), right.zero_of(name, call)
    codes = right.codes_of(name, call)
    if zero is not None:
        codes = right.centred(codes, zero)
    if scale.shape[1] > 1:
        scale = np.tile(scale, (1, call.group, 1, 1))
    return np.repeat(codes, call.group, 1) * scale


def quantized_tiles_of_one_width(
    right: QuantizedKernel, array: np.ndarray, size: int
) -> np.ndarray:
    return np.asarray(array[..., np.arange(size) * array.shape[-1] // size])


def quantized_zero_after_the_scale(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    zero = right.zero_of(name, call)
    plain = right.codes_of(name, call) * right.scale_of(name, call)
    return plain if zero is None else plain - zero


def quantized_codes_in_order(right: QuantizedKernel, inputs: Inputs) -> PreparedCall:
    made = right.prepare(inputs)

    def call(**arrays: Rounded) -> Any:
        windows = {n: x for n, x in arrays.items() if "_codes" in n and has_gaps(x.values)}
        codes = {n: Rounded(in_order(x.values), x.fmt) for n, x in windows.items()}
        return made.function(**arrays | codes)

    return replace(made, function=call)


def quantized_unsigned(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes_of(name, call)
    return np.where(codes < 0, codes + 256, codes) if call.code.is_whole else codes


def quantized_lowest_code_clipped(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes_of(name, call)
    return np.maximum(codes, -call.code.max) if call.code.is_whole else codes


def quantized_bias_of_another_format(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes_of(name, call)
    return codes / 2 if call.code.name == "e4m3" else codes


def quantized_subnormals_flushed(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes_of(name, call)
    small = np.abs(codes) < call.code.smallest_normal
    return codes if call.code.is_whole else np.where(small, codes.dtype.type(0), codes)


def quantized_scale_in_bfloat16(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    scale = right.scale_of(name, call)
    return round_to(scale, DTYPES["bf16"]).astype(scale.dtype)


def quantized_scaled_twice(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    scale = right.scale_of(name, call)
    return scale * scale if name == "key" else scale


def quantized_lse_in_the_dtype(
    right: QuantizedKernel, scores: np.ndarray, call: Coded
) -> np.ndarray:
    mask, halves = call.shown, []
    shown = scores if mask is None else np.where(mask, scores, -np.inf)
    for half in np.array_split(shown, 2, axis=-1):
        lse = np.logaddexp.reduce(half, axis=-1, keepdims=True, initial=-1e4)
        # A half whose log-sum-exp is off weighs as if all its scores were off as far.
        halves.append(half + (round_to(lse, call.fmt).astype(lse.dtype) - lse))
    return right.weights(np.concatenate(halves, -1), call)


def quantized_gradient_of_codes(
    right: QuantizedKernel, call: Coded, cotangent: np.ndarray
) -> np.ndarray:
    return right.gradient(call, cotangent) / call.arrays["key_scale"].mean()


class FrozenScales(Scales):
    """Scales are those of the first call of a case."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        kept: dict[str, np.ndarray] = self.__dict__.setdefault("kept", {})
        return kept.setdefault(f"{call.case.id} {name}", super().scale_of(name, call))


row = partial(deviation, family="quantized", right=QuantizedKernel)

DEVIATIONS = [
    row("quantized-key-scale-for-values", "values",
        "Values are multiplied by the scales of the keys.",
        "`k_scale` for both, a line copied and half changed", right=(KeyScales, QuantizedKernel)),
    row("quantized-scales-exchanged", "values", "The scales of keys and values are exchanged.",
        "`attend(q, k, v, v_scale, k_scale)`; pass scales by name",
        scale_of=quantized_scales_exchanged),
    row("quantized-value-scale-forgotten", "values", "Values are not multiplied by their scales.",
        "`k_scale` is read, `v_scale` is not; multiply the output by it",
        scale_of=quantized_value_scale_forgotten),
    row("quantized-scale-inverted", "values", "Codes are divided by their scales.",
        "`scale_inv` of another library; codes times `scale`, not divided by it",
        scale_of=lambda right, name, call: 1 / right.scale_of(name, call)),
    row("quantized-scale-of-the-first-head", "values",
        "All heads have the scales of the first head.",
        "`scale.item()` or `scale[0]`; every head has a scale", family="heads",
        right=(FirstHeadScales, QuantizedKernel)),
    row("quantized-scale-of-the-next-head", "values", "Every head has the scales of the next head.",
        "`scale[head + 1]`, an offset counted in other units", family="heads",
        scale_of=lambda right, name, call: rolled(right.scale_of(name, call), 1)),
    row("quantized-scale-tiled", "values",
        "The scales of query heads are tiled, their keys are not.",
        "`scale[h % kv_heads]`; query head h has the scale of head h // group", family="heads",
        by_head=lambda right, x, call: x, scaled=quantized_scale_tiled_scaled),
    row("quantized-scale-of-the-next-token", "values",
        "Every token has the scale of the next token.",
        "`scale[slot + 1]`, lengths that already count the new token",
        scale_of=lambda right, name, call: rolled(right.scale_of(name, call), 2)),
    row("quantized-scale-of-the-first-sample", "values",
        "All samples have the scales of the first sample.",
        "`scale[0]` of (batch, heads, tokens); index the sample, too", family="heads",
        scale_of=lambda right, name, call: right.scale_of(name, call)[:1]),
    row("quantized-scale-of-the-next-channel", "values",
        "Every component has the scale of the next component.",
        "`scale.view(heads, dim)` of (dim, heads), or an interleaved order of packed weights",
        scale_of=lambda right, name, call: rolled(right.scale_of(name, call), 3)),
    row("quantized-scale-of-the-first-tile", "values",
        "All tiles of a token have the scale of the first tile.",
        "`scale[0]`; every tile of 128 components has a scale",
        right=(FirstTileScales, QuantizedKernel)),
    row("quantized-tiles-of-one-width", "values", "The width is divided into tiles of one width.",
        "`component * tiles // width`; a tile has 128 components, and the last one the rest",
        of_tiles=quantized_tiles_of_one_width),
    row("quantized-tiles-of64", "values", "A tile has 64 components.",
        "`component // 64`; a tile has 128 components", right=(TilesOf64, QuantizedKernel)),
    row("quantized-last-tile-forgotten", "values",
        "The components behind the last whole tile are not multiplied by a scale.",
        "`width // 128` tiles; round up", right=(WholeTilesAlone, QuantizedKernel)),
    row("quantized-zero-forgotten", "values", "Zero points are ignored.",
        "codes of asymmetric quantisation read as symmetric ones; `scale * (code - zero)`",
        zero_of=lambda right, name, call: None),
    row("quantized-zero-added", "values", "Zero points are added to codes.",
        "`scale * (code + zero)`; the zero point is subtracted when codes are read",
        centred=lambda right, codes, zero: codes + zero),
    row("quantized-zero-after-the-scale", "values", "Zero points are subtracted behind the scale.",
        "`code * scale - zero`; subtract before the product",
        scaled=quantized_zero_after_the_scale),
    row("quantized-difference-wraps", "values",
        "Codes minus zero points are computed in 8 bits, and wrap around.",
        "`(code - zero)` in int8; widen codes first", family="numerics",
        centred=lambda right, codes, zero: (codes - zero + 128) % 256 - 128),
    row("quantized-codes-in-order", "layouts",
        "Codes are read as if nothing lay between their rows.",
        "`codes.data_ptr()` with strides from the shape; take `codes.stride()`", family="layout",
        prepare=quantized_codes_in_order),
    row("quantized-unsigned", "values", "Codes of whole numbers are read as unsigned ones.",
        "`uint8_t` for `int8_t` in the loader", family="numerics", codes_of=quantized_unsigned),
    row("quantized-lowest-code-clipped", "values",
        "The lowest code of whole numbers is read as the one above.",
        "`clamp(-127, 127)` of codes that are read; -128 is a code", family="numerics",
        codes_of=quantized_lowest_code_clipped),
    row("quantized-bias-of-another-format", "values",
        "Codes e4m3 are read with the exponent bias 8, and are halved.",
        "`float8_e4m3fnuz` for `float8_e4m3fn`: its exponents mean half", family="numerics",
        codes_of=quantized_bias_of_another_format),
    row("quantized-subnormals-flushed", "values", "Subnormal floating-point codes are read as 0.",
        "bits shifted into float16 without its subnormals", family="numerics",
        codes_of=quantized_subnormals_flushed),
    row("quantized-scale-in-bfloat16", "values", "Scales are rounded to bfloat16.",
        "`scale.to(torch.bfloat16)`; keep scales in float32", family="numerics",
        scale_of=quantized_scale_in_bfloat16),
    row("quantized-scaled-twice", "values", "Keys are multiplied by their scales twice.",
        "`scores * k_scale` beside a query that is scaled already",
        scale_of=quantized_scaled_twice),
    row("quantized-lse-in-the-dtype", "values",
        "Log-sum-exps of both halves of the keys are stored in 16 bits, the dtype of the query.",
        "`torch.empty_like(lse, dtype=query.dtype)`; keep log-sum-exps in float32", family="merge",
        facts={"dtypes": ("f16", "bf16"), "numerics": "stepwise"},
        weights=quantized_lse_in_the_dtype),
    row("quantized-maximum-of-the-head", "values",
        "The softmax of a row subtracts the largest score of its head.",
        "`scores.max()` of a head; subtract the largest score of the row", family="numerics",
        raised=lambda right, scores: np.exp(scores - scores.max((-2, -1), keepdims=True))),
    row("quantized-gradient-of-codes", "gradients",
        "The gradient of the query is made with codes in place of keys.",
        "the backward pass reads codes as keys; multiply them by their scale",
        gradient=quantized_gradient_of_codes),
    row("quantized-scales-frozen", "stateless", "Scales of the first call are used ever after.",
        "scales made at the first call and kept; take those of the call", family="state",
        right=(FrozenScales, QuantizedKernel)),
]  # fmt: skip

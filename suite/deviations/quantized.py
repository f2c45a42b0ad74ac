"""Faults of attention over codes, and of writing codes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.deviation import (
    Deviation,
    deviation,
    memory,
    twins,
)
from attention_conformance.suite.deviations.kernels.quantized import (
    Coded,
    QuantizedKernel,
    QuantizedWriteKernel,
    Writing,
)
from attention_conformance.suite.deviations.layouts import has_gaps, in_memory_order
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import newest_scales
from attention_conformance.suite.spec.operators.tiles import TILE

Array = np.ndarray


def has_integer_codes(call: Coded) -> bool:
    """Returns True for integer codes."""
    return call.code.is_whole


def has_float_codes(call: Coded) -> bool:
    """Returns True for floating-point codes."""
    return not call.code.is_whole


def has_e4m3_codes(call: Coded) -> bool:
    return call.code.name == "e4m3"


def flush_subnormals(codes: Array, call: Coded) -> Array:
    return np.where(np.abs(codes) < call.code.smallest_normal, codes.dtype.type(0), codes)


def dequantized_by_tiled_scales(right: QuantizedKernel, name: str, call: Coded) -> Array:
    scale, zero = right.scale_of(name, call), right.zero_of(name, call)
    codes = right.codes_of(name, call)
    if zero is not None:
        codes = right.centred(codes, zero)
    if scale.shape[1] > 1:
        scale = np.tile(scale, (1, call.group, 1, 1))
    return np.repeat(codes, call.group, 1) * scale


def prepare_codes_in_order(right: QuantizedKernel, inputs: Inputs) -> PreparedCall:
    right_call = right.prepare(inputs)

    def function(**arrays: Rounded) -> Any:
        strided = {n: x for n, x in arrays.items() if "_codes" in n and has_gaps(x.values)}
        codes = {n: Rounded(in_memory_order(x.values), x.fmt) for n, x in strided.items()}
        return right_call.function(**arrays | codes)

    return replace(right_call, function=function)


def dequantized_but_new_tokens(right: QuantizedKernel, name: str, call: Coded) -> Array:
    tokens = right.scaled(name, call)
    if name in call.arrays:
        new = call.arrays[name]
        tokens[:, :, -new.shape[2] :] = new
    return tokens


def codes_one_slot_early(right: QuantizedKernel, name: str, call: Coded) -> Array:
    codes, new = right.codes(name, call), right.written(name, call)
    start = max(codes.shape[2] - new.shape[2] - 1, 0)
    codes[:, :, start : start + new.shape[2]] = new
    return codes


def codes_in_old_range(right: QuantizedKernel, name: str, call: Coded) -> Array:
    old = call.arrays[f"{name}_codes"][:, :, : -call.arrays[name].shape[2]]
    limit = np.abs(old).max(initial=0.0) or call.code.max
    return np.clip(right.written(name, call), -limit, limit)


def codes_nearer_to_zero(right: QuantizedKernel, name: str, call: Coded) -> Array:
    codes = right.codes(name, call)
    old = codes[:, :, : -call.arrays[name].shape[2]]
    old -= np.sign(old)
    return codes


def codes_rounded_to_zero(right: Writing, x: Array, call: Coded) -> Array:
    if call.code.is_whole:
        return right.stored(np.trunc(x), call)
    nearest = right.stored(x, call)
    _, exponent = np.frexp(x)
    step = np.maximum(exponent - 1, call.code.min_exponent) - (call.code.precision - 1)
    return np.where(np.abs(nearest) > np.abs(x), nearest - np.sign(x) * 2.0**step, nearest)


def tokens_clipped_to_first_half(right: QuantizedWriteKernel, name: str, call: Coded) -> Array:
    x = right.tokens(name, call)
    limit = np.abs(x[:, :, : -(-x.shape[2] // 2)]).max()
    return np.clip(x, -limit, limit)


def writes_zero_points(call: Coded) -> bool:
    """Returns True for a call that writes codes with zero points."""
    return "key_zero" in call.arrays and "key" in call.arrays


def codes_with_zero_unclipped(right: Writing, name: str, call: Coded) -> Array:
    quotient = right.quotient(right.tokens(name, call), right.new_scale(name, call), call)
    codes, zero = right.stored(right.clipped(quotient, call), call), right.zero_of(name, call)
    return np.asarray((codes + newest_scales(zero, codes.shape[2]) + 128) % 256 - 128)


row = partial(deviation, family="quantized", right=QuantizedKernel)
written = partial(deviation, family="quantized", right=QuantizedWriteKernel)


def write_and_attend_twins(name: str, *texts: str, **arguments: Any) -> list[Deviation]:
    """Returns one deviation for two kernels: writing codes, and writing and attending codes."""
    kernels = {name: QuantizedWriteKernel, f"quantized-{name}": QuantizedKernel}
    return twins(kernels, *texts, **{"family": "quantized", **arguments})


DEVIATIONS = [
    row("quantized-scale-tiled", "values",
        "The scales of query heads are tiled, their keys are not.",
        "`scale[h % kv_heads]`; query head h has the scale of head h // group", family="heads",
        by_head=lambda right, x, call: x, scaled=dequantized_by_tiled_scales),
    row("quantized-channel-scale-tiled", "values",
        "Scales of components of keys go to query heads in turn, their keys go by groups.",
        "`query * k_scale[h % kv_heads]`; query head h has the scale of head h // group",
        family="heads",
        when=lambda call: call.group > 1 and call.case.option("scales") == "perchannel",
        scaled=lambda right, name, call: dequantized_by_tiled_scales(right, name, call)
            if name == "key" else right.scaled(name, call)),
    row("quantized-zero-forgotten", "values", "Zero points are ignored.",
        "codes of asymmetric quantisation read as symmetric ones; `scale * (code - zero)`",
        zero_of=lambda right, name, call: None),
    row("quantized-zero-added", "values", "Zero points are added to codes.",
        "`scale * (code + zero)`; the zero point is subtracted when codes are read",
        centred=lambda right, codes, zero: codes + zero),
    row("quantized-difference-wraps", "values",
        "Codes minus zero points are computed in 8 bits, and wrap around.",
        "`(code - zero)` in int8; widen codes first", family="numerics",
        centred=lambda right, codes, zero: (codes - zero + 128) % 256 - 128),
    row("quantized-codes-in-order", "layouts",
        "Codes are read as if nothing lay between their rows.",
        "`codes.data_ptr()` with strides from the shape; take `codes.stride()`", family="layout",
        prepare=prepare_codes_in_order),
    row("quantized-unsigned", "values", "Codes of whole numbers are read as unsigned ones.",
        "`uint8_t` for `int8_t` in the loader", family="numerics", when=has_integer_codes,
        codes_of=lambda right, name, call: right.codes_of(name, call) % 256),
    row("quantized-lowest-code-clipped", "values",
        "The lowest code of whole numbers is read as the one above.",
        "`clamp(-127, 127)` of codes that are read; -128 is a code", family="numerics",
        when=has_integer_codes,
        codes_of=lambda right, name, call: np.maximum(right.codes_of(name, call), -call.code.max)),
    row("quantized-bias-of-another-format", "values",
        "Codes e4m3 are read with the exponent bias 8, and are halved.",
        "`float8_e4m3fnuz` for `float8_e4m3fn`: its exponents mean half", family="numerics",
        when=has_e4m3_codes, codes_of=lambda right, name, call: right.codes_of(name, call) / 2),
    row("quantized-subnormals-flushed", "values", "Subnormal floating-point codes are read as 0.",
        "bits shifted into float16 without its subnormals", family="numerics", when=has_float_codes,
        codes_of=lambda right, name, call: flush_subnormals(right.codes_of(name, call), call)),
    row("quantized-gradient-of-codes", "gradients",
        "The gradient of the query is made with codes in place of keys.",
        "the backward pass reads codes as keys; multiply them by their scale",
        gradient=lambda right, call, cotangent:
            right.gradient(call, cotangent) / call.arrays["key_scale"].mean()),
    row("quantized-new-tokens-unrounded", "values",
        "New tokens are attended before they become codes.",
        "attention over `key` and `value` themselves; attend what the cache keeps of them",
        scaled=dequantized_but_new_tokens),
    row("quantized-stored-too-late", "values",
        "New tokens are stored behind the attention, which sees what was in their slots.",
        "attention first, then the store; new tokens attend themselves", family="state",
        codes_of=lambda right, name, call:
            call.arrays_before_store.get(f"{name}_codes", right.codes_of(name, call))),
    row("quantized-stored-one-slot-early", "values",
        "New tokens are stored one slot early, and the last of them is there twice.",
        "`cache[position - 1] = code`; a new token has the slot behind the last one",
        codes=codes_one_slot_early),
    row("quantized-stored-in-the-old-range", "values",
        "New tokens are clipped to the range of the codes that were there before.",
        "the largest code so far as limit; new tokens are larger", written=codes_in_old_range),
    row("quantized-stores-all-again", "values",
        "Codes that were there before are stored again, a code nearer to 0.",
        "old codes divided by the new scale; codes that are stored keep their bits",
        when=has_integer_codes, codes=codes_nearer_to_zero),
    *twins({"codes-scales-frozen": QuantizedWriteKernel, "quantized-scales-frozen": QuantizedKernel},
        "stateless", "Scales of the first call are used ever after.",
        "scales made at the first call and kept; take those of the call", family="state",
        scale_of=lambda right, name, call:
            memory(right).setdefault(f"{call.case.id} {name}", right.scale_of(name, call))),
    *write_and_attend_twins("codes-cut-off", "values", "Numbers are rounded towards 0.",
        "`x.to(int8)` cuts digits off; round first", family="numerics", stored=codes_rounded_to_zero),
    written("codes-clipped-to-early-tokens", "values",
        "Numbers are clipped to the range of the first half of the tokens.",
        "the largest number of the first tokens as limit; later tokens are larger",
        tokens=tokens_clipped_to_first_half),
    written("codes-of-full-tiles-shift", "values",
        "If the width is a multiple of 128, the last tile is written with the scales of the tile "
        "before.", "`width // 128 - 1` for the last tile; it is `(width - 1) // 128`",
        spread_tiles=lambda right, array, size: array[..., np.minimum(
            np.arange(size) // TILE, max(array.shape[-1] - 1 - (size % TILE == 0), 0))]),
    written("codes-become-nan", "values",
        "Numbers beyond the range of floating-point codes become NaN.",
        "`x.to(float8_e4m3fn)` without `clamp(-448, 448)`", family="numerics", when=has_float_codes,
        clipped=lambda right, x, call: np.where(right.clipped(x, call) == x, x, np.nan)),
    written("codes-wrap", "values", "Numbers beyond the range of whole numbers wrap around.",
        "`x.to(int8)` without `clamp(-128, 127)`", family="numerics", when=has_integer_codes,
        clipped=lambda right, x, call: (np.rint(x) + 128) % 256 - 128),
    written("codes-clipped-at240", "values", "Codes e4m3 are clipped to 240.",
        "240, the largest number of `float8_e4m3fnuz`; it is 448 here", family="numerics",
        when=has_e4m3_codes, clipped=lambda right, x, call: np.clip(x, -240, 240)),
    written("codes-through-e5m2", "values", "Codes e4m3 pass through e5m2.",
        "`float8_e5m2` in between, which has two digits less", family="numerics", when=has_e4m3_codes,
        stored=lambda right, x, call: right.stored(round_to(x, CODES["e5m2"]), call)),
    written("codes-subnormals-flushed", "values", "Subnormal floating-point codes are written as 0.",
        "numbers below the smallest normal code as 0; they have codes", family="numerics",
        when=has_float_codes,
        stored=lambda right, x, call: flush_subnormals(right.stored(x, call), call)),
    *write_and_attend_twins("codes-zero-subtracted", "values", "Zero points are subtracted from codes.",
        "`x / scale - zero`; the zero point is added when codes are written", when=writes_zero_points,
        zero_of=lambda right, name, call: -right.zero_of(name, call)),
    *write_and_attend_twins("codes-zero-after-clipping", "values",
        "Zero points are added behind clipping, so that codes leave the range and wrap around.",
        "`clamp(round(x / scale)) + zero`; clamp the sum", when=writes_zero_points,
        written=codes_with_zero_unclipped),
    written("codes-of-keys-twice", "values",
        "In place of the values' codes those of keys are written, if they have the same shape.",
        "`value_codes = quantize(key)`, a line copied and half changed",
        when=lambda call: call.arrays["key"].shape == call.arrays["value"].shape,
        tokens=lambda right, name, call: call.arrays["key"]),
    written("codes-of-bfloat16", "values",
        "Quotients are rounded to bfloat16 before they become whole numbers.",
        "`x.to(bfloat16) / scale`; divide in float32", family="numerics",
        quotient=lambda right, x, scale, call:
            round_to(right.quotient(x, scale, call), DTYPES["bf16"]).astype(x.dtype)),
]  # fmt: skip

"""Faults of writing codes, alone or in a call that attends them, too."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

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
from attention_conformance.suite.deviations.quantized import (
    flush_subnormals,
    has_e4m3_codes,
    has_float_codes,
    has_integer_codes,
)
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.operators.quantized import newest_scales
from attention_conformance.suite.spec.operators.tiles import TILE


def dequantized_but_new_tokens(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    tokens = right.scaled(name, call)
    if name in call.arrays:
        new = call.arrays[name]
        tokens[:, :, -new.shape[2] :] = new
    return tokens


def codes_one_slot_early(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes, new = right.codes(name, call), right.written(name, call)
    start = max(codes.shape[2] - new.shape[2] - 1, 0)
    codes[:, :, start : start + new.shape[2]] = new
    return codes


def codes_in_old_range(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    old = call.arrays[f"{name}_codes"][:, :, : -call.arrays[name].shape[2]]
    limit = np.abs(old).max(initial=0.0) or call.code.max
    return np.clip(right.written(name, call), -limit, limit)


def codes_nearer_to_zero(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes(name, call)
    old = codes[:, :, : -call.arrays[name].shape[2]]
    old -= np.sign(old)
    return codes


def codes_rounded_to_zero(right: Writing, x: np.ndarray, call: Coded) -> np.ndarray:
    if call.code.is_whole:
        return right.stored(np.trunc(x), call)
    nearest = right.stored(x, call)
    _, exponent = np.frexp(x)
    step = np.maximum(exponent - 1, call.code.min_exponent) - (call.code.precision - 1)
    return np.where(np.abs(nearest) > np.abs(x), nearest - np.sign(x) * 2.0**step, nearest)


def tokens_clipped_to_first_half(right: QuantizedWriteKernel, name: str, call: Coded) -> np.ndarray:
    x = right.tokens(name, call)
    limit = np.abs(x[:, :, : -(-x.shape[2] // 2)]).max()
    return np.clip(x, -limit, limit)


def writes_zero_points(call: Coded) -> bool:
    """Returns True for a call that writes codes with zero points."""
    return "key_zero" in call.arrays and "key" in call.arrays


def codes_with_zero_unclipped(right: Writing, name: str, call: Coded) -> np.ndarray:
    quotient = right.quotient(right.tokens(name, call), right.new_scale(name, call), call)
    codes, zero = right.stored(right.clipped(quotient, call), call), right.zero_of(name, call)
    return np.asarray((codes + newest_scales(zero, codes.shape[2]) + 128) % 256 - 128)


row = partial(deviation, family="quantized", right=QuantizedWriteKernel)


def write_and_attend_twins(name: str, *texts: str, **arguments: Any) -> list[Deviation]:
    """Returns one deviation for two kernels: writing codes, and writing and attending codes."""
    kernels = {name: QuantizedWriteKernel, f"quantized-{name}": QuantizedKernel}
    return twins(kernels, *texts, **{"family": "quantized", **arguments})


DEVIATIONS = [
    row("quantized-new-tokens-unrounded", "values",
        "New tokens are attended before they become codes.",
        "attention over `key` and `value` themselves; attend what the cache keeps of them",
        right=QuantizedKernel, scaled=dequantized_but_new_tokens),
    row("quantized-stored-too-late", "values",
        "New tokens are stored behind the attention, which sees what was in their slots.",
        "attention first, then the store; new tokens attend themselves", family="state",
        right=QuantizedKernel,
        codes_of=lambda right, name, call:
            call.arrays_before_store.get(f"{name}_codes", right.codes_of(name, call))),
    row("quantized-stored-one-slot-early", "values",
        "New tokens are stored one slot early, and the last of them is there twice.",
        "`cache[position - 1] = code`; a new token has the slot behind the last one",
        right=QuantizedKernel, codes=codes_one_slot_early),
    row("quantized-stored-in-the-old-range", "values",
        "New tokens are clipped to the range of the codes that were there before.",
        "the largest code so far as limit; new tokens are larger", right=QuantizedKernel,
        written=codes_in_old_range),
    row("quantized-stores-all-again", "values",
        "Codes that were there before are stored again, a code nearer to 0.",
        "old codes divided by the new scale; codes that are stored keep their bits",
        right=QuantizedKernel, when=has_integer_codes, codes=codes_nearer_to_zero),
    *twins({"codes-scales-frozen": QuantizedWriteKernel, "quantized-scales-frozen": QuantizedKernel},
        "stateless", "Scales of the first call are used ever after.",
        "scales made at the first call and kept; take those of the call", family="state",
        scale_of=lambda right, name, call:
            memory(right).setdefault(f"{call.case.id} {name}", right.scale_of(name, call))),
    *write_and_attend_twins("codes-cut-off", "values", "Numbers are rounded towards 0.",
        "`x.to(int8)` cuts digits off; round first", family="numerics", stored=codes_rounded_to_zero),
    row("codes-clipped-to-early-tokens", "values",
        "Numbers are clipped to the range of the first half of the tokens.",
        "the largest number of the first tokens as limit; later tokens are larger",
        tokens=tokens_clipped_to_first_half),
    row("codes-of-full-tiles-shift", "values",
        "If the width is a multiple of 128, the last tile is written with the scales of the tile "
        "before.", "`width // 128 - 1` for the last tile; it is `(width - 1) // 128`",
        spread_tiles=lambda right, array, size: array[..., np.minimum(
            np.arange(size) // TILE, max(array.shape[-1] - 1 - (size % TILE == 0), 0))]),
    row("codes-become-nan", "values",
        "Numbers beyond the range of floating-point codes become NaN.",
        "`x.to(float8_e4m3fn)` without `clamp(-448, 448)`", family="numerics", when=has_float_codes,
        clipped=lambda right, x, call: np.where(right.clipped(x, call) == x, x, np.nan)),
    row("codes-wrap", "values", "Numbers beyond the range of whole numbers wrap around.",
        "`x.to(int8)` without `clamp(-128, 127)`", family="numerics", when=has_integer_codes,
        clipped=lambda right, x, call: (np.rint(x) + 128) % 256 - 128),
    row("codes-clipped-at240", "values", "Codes e4m3 are clipped to 240.",
        "240, the largest number of `float8_e4m3fnuz`; it is 448 here", family="numerics",
        when=has_e4m3_codes, clipped=lambda right, x, call: np.clip(x, -240, 240)),
    row("codes-through-e5m2", "values", "Codes e4m3 pass through e5m2.",
        "`float8_e5m2` in between, which has two digits less", family="numerics", when=has_e4m3_codes,
        stored=lambda right, x, call: right.stored(round_to(x, CODES["e5m2"]), call)),
    row("codes-subnormals-flushed", "values", "Subnormal floating-point codes are written as 0.",
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
    row("codes-of-keys-twice", "values",
        "In place of the values' codes those of keys are written, if they have the same shape.",
        "`value_codes = quantize(key)`, a line copied and half changed",
        when=lambda call: call.arrays["key"].shape == call.arrays["value"].shape,
        tokens=lambda right, name, call: call.arrays["key"]),
    row("codes-of-bfloat16", "values",
        "Quotients are rounded to bfloat16 before they become whole numbers.",
        "`x.to(bfloat16) / scale`; divide in float32", family="numerics",
        quotient=lambda right, x, scale, call:
            round_to(right.quotient(x, scale, call), DTYPES["bf16"]).astype(x.dtype)),
]  # fmt: skip

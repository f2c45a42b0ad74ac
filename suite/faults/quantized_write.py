"""Faults of writing codes, alone or in a call that attends them, too."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.quantized import (
    Coded,
    QuantizedKernel,
    QuantizedWriteKernel,
)
from attention_conformance.suite.faults.quantized import (
    FirstHeadScales,
    FrozenScales,
    KeyScales,
    TilesOf64,
)
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.operators.quantized import newest
from attention_conformance.suite.spec.operators.tiles import TILE

FAMILY = "quantized"


def quantized_new_tokens_unrounded(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    keys = right.scaled(name, call)
    if name in call.arrays:
        new = call.arrays[name]
        keys[:, :, -new.shape[2] :] = new
    return keys


def quantized_stored_too_late(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    return call.given.get(f"{name}_codes", right.codes_of(name, call))


def quantized_stored_one_slot_early(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes, new = right.codes(name, call), right.written(name, call)
    at = max(codes.shape[2] - new.shape[2] - 1, 0)
    codes[:, :, at : at + new.shape[2]] = new
    return codes


def quantized_stored_with_the_scale_before(
    right: QuantizedKernel, name: str, call: Coded
) -> np.ndarray:
    scale, tokens = right.scale_of(name, call), call.arrays[name].shape[2]
    return np.asarray(newest(np.roll(scale, 1, 2), tokens))


def quantized_stored_with_key_scales(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    if name == "key":
        return right.new_scale(name, call)
    key = newest(right.scale_of("key", call), call.arrays[name].shape[2])
    return np.asarray(key[..., : call.arrays[name].shape[-1]])


def quantized_stored_in_the_old_range(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    old = call.arrays[f"{name}_codes"][:, :, : -call.arrays[name].shape[2]]
    limit = np.abs(old).max(initial=0.0) or call.code.max
    return np.clip(right.written(name, call), -limit, limit)


def quantized_stores_all_again(right: QuantizedKernel, name: str, call: Coded) -> np.ndarray:
    codes = right.codes(name, call)
    if call.code.is_whole:
        old = codes[:, :, : -call.arrays[name].shape[2]]
        old -= np.sign(old)
    return codes


def codes_cut_off(right: QuantizedWriteKernel, x: np.ndarray, call: Coded) -> np.ndarray:
    if call.code.is_whole:
        return right.stored(np.trunc(x), call)
    nearest = right.stored(x, call)
    _, exponent = np.frexp(x)
    step = np.maximum(exponent - 1, call.code.min_exponent) - (call.code.precision - 1)
    return np.where(np.abs(nearest) > np.abs(x), nearest - np.sign(x) * 2.0**step, nearest)


def codes_clipped_to_early_tokens(
    right: QuantizedWriteKernel, name: str, call: Coded
) -> np.ndarray:
    x = right.tokens(name, call)
    limit = np.abs(x[:, :, : -(-x.shape[2] // 2)]).max()
    return np.clip(x, -limit, limit)


def codes_of_full_tiles_shift(
    right: QuantizedWriteKernel, array: np.ndarray, size: int
) -> np.ndarray:
    last = max(array.shape[-1] - 1 - (size % TILE == 0), 0)
    return array[..., np.minimum(np.arange(size) // TILE, last)]


def codes_wrap(right: QuantizedWriteKernel, x: np.ndarray, call: Coded) -> np.ndarray:
    if not call.code.is_whole:
        return right.clipped(x, call)
    return (np.rint(x) + 128) % 256 - 128


@fault("values", "`x.to(float8_e4m3fn)` without `clamp(-448, 448)`", family="numerics")
class CodesBecomeNan(QuantizedWriteKernel):
    """Numbers beyond the range of floating-point codes become NaN."""

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        clipped = super().clipped(x, call)
        return clipped if call.code.is_whole else np.where(clipped == x, x, np.nan)


def codes_clipped_at240(right: QuantizedWriteKernel, x: np.ndarray, call: Coded) -> np.ndarray:
    x = right.clipped(x, call)
    return np.clip(x, -240, 240) if call.code.name == "e4m3" else x


def codes_through_e5m2(right: QuantizedWriteKernel, x: np.ndarray, call: Coded) -> np.ndarray:
    return right.stored(round_to(x, CODES["e5m2"]) if call.code.name == "e4m3" else x, call)


def codes_subnormals_flushed(right: QuantizedWriteKernel, x: np.ndarray, call: Coded) -> np.ndarray:
    codes = right.stored(x, call)
    small = np.abs(codes) < call.code.smallest_normal
    return codes if call.code.is_whole else np.where(small, 0.0, codes)


def codes_zero_subtracted(right: QuantizedWriteKernel, name: str, call: Coded) -> np.ndarray | None:
    zero = right.zero_of(name, call)
    return None if zero is None else -zero


def codes_zero_after_clipping(right: QuantizedWriteKernel, name: str, call: Coded) -> np.ndarray:
    zero = right.zero_of(name, call)
    x = right.clipped(
        right.quotient(right.tokens(name, call), right.scale_of(name, call), call), call
    )
    codes = right.stored(x, call)
    return codes if zero is None else (codes + zero + 128) % 256 - 128


def codes_of_keys_twice(right: QuantizedWriteKernel, name: str, call: Coded) -> np.ndarray:
    key, own = call.arrays["key"], right.tokens(name, call)
    return key if key.shape == own.shape else own


def codes_of_bfloat16(
    right: QuantizedWriteKernel, x: np.ndarray, scale: np.ndarray, call: Coded
) -> np.ndarray:
    return round_to(right.quotient(x, scale, call), DTYPES["bf16"]).astype(x.dtype)


row = partial(deviation, family=FAMILY, right=QuantizedWriteKernel)

DEVIATIONS = [
    row("quantized-new-tokens-unrounded", "values",
        "New tokens are attended before they become codes.",
        "attention over `key` and `value` themselves; attend what the cache keeps of them",
        right=QuantizedKernel, scaled=quantized_new_tokens_unrounded),
    row("quantized-stored-too-late", "values",
        "New tokens are stored behind the attention, which sees what was in their slots.",
        "attention first, then the store; new tokens attend themselves", family="state",
        right=QuantizedKernel, codes_of=quantized_stored_too_late),
    row("quantized-stored-one-slot-early", "values",
        "New tokens are stored one slot early, and the last of them is there twice.",
        "`cache[position - 1] = code`; a new token has the slot behind the last one",
        right=QuantizedKernel, codes=quantized_stored_one_slot_early),
    row("quantized-stored-with-the-scale-before", "values",
        "New tokens are stored with the scale of the token before, and read with their own.",
        "`scale[slot - 1]`; a token is written with the scale that it is read with",
        right=QuantizedKernel, new_scale=quantized_stored_with_the_scale_before),
    row("quantized-stored-with-key-scales", "values",
        "New values are stored with the scales of keys, and read with their own.",
        "`quantize(value, k_scale)`, a line copied and half changed", right=QuantizedKernel,
        new_scale=quantized_stored_with_key_scales),
    row("quantized-stored-in-the-old-range", "values",
        "New tokens are clipped to the range of the codes that were there before.",
        "the largest code so far as limit; new tokens are larger", right=QuantizedKernel,
        written=quantized_stored_in_the_old_range),
    row("quantized-stores-all-again", "values",
        "Codes that were there before are stored again, a code nearer to 0.",
        "old codes divided by the new scale; codes that are stored keep their bits",
        right=QuantizedKernel, codes=quantized_stores_all_again),
    row("codes-scales-frozen", "stateless",
        "New tokens are written with the scales of the first call.",
        "scales of the first tokens that are kept; take those of the call", family="state",
        right=(FrozenScales, QuantizedWriteKernel)),
    row("codes-cut-off", "values", "Numbers are rounded towards 0.",
        "`x.to(int8)` cuts digits off; round first", family="numerics", stored=codes_cut_off),
    row("codes-clipped-to-early-tokens", "values",
        "Numbers are clipped to the range of the first half of the tokens.",
        "the largest number of the first tokens as limit; later tokens are larger",
        tokens=codes_clipped_to_early_tokens),
    row("codes-key-scale-for-values", "values", "Values are divided by the scales of the keys.",
        "`k_scale` for both, a line copied and half changed",
        right=(KeyScales, QuantizedWriteKernel)),
    row("codes-multiplied", "values", "Numbers are multiplied by their scales.",
        "`x * scale`; divide, or multiply by its reciprocal",
        quotient=lambda right, x, scale, call: x * scale),
    row("codes-scale-of-the-token-before", "values",
        "Every token is written with the scale of the token before.",
        "`scale[token - 1]`, written after the codes", family="heads",
        scale_of=lambda right, name, call: np.roll(right.scale_of(name, call), 1, 2)),
    row("codes-of-full-tiles-shift", "values",
        "If the width is a multiple of 128, the last tile is written with the scales of the tile "
        "before.", "`width // 128 - 1` for the last tile; it is `(width - 1) // 128`",
        of_tiles=codes_of_full_tiles_shift),
    row("codes-tiles-of64", "values",
        "Numbers are written with the scales of tiles of 64 components.",
        "`component // 64`; a tile has 128 components", right=(TilesOf64, QuantizedWriteKernel)),
    row("codes-scale-of-the-first-head", "values",
        "All heads are written with the scales of the first head.",
        "`scale[0]`; every head has a scale", family="heads",
        right=(FirstHeadScales, QuantizedWriteKernel)),
    row("codes-wrap", "values", "Numbers beyond the range of whole numbers wrap around.",
        "`x.to(int8)` without `clamp(-128, 127)`", family="numerics", clipped=codes_wrap),
    row("codes-clipped-at240", "values", "Codes e4m3 are clipped to 240.",
        "240, the largest number of `float8_e4m3fnuz`; it is 448 here", family="numerics",
        clipped=codes_clipped_at240),
    row("codes-through-e5m2", "values", "Codes e4m3 pass through e5m2.",
        "`float8_e5m2` in between, which has two digits less", family="numerics",
        stored=codes_through_e5m2),
    row("codes-subnormals-flushed", "values", "Subnormal floating-point codes are written as 0.",
        "numbers below the smallest normal code as 0; they have codes", family="numerics",
        stored=codes_subnormals_flushed),
    row("codes-zero-subtracted", "values", "Zero points are subtracted from codes.",
        "`x / scale - zero`; the zero point is added when codes are written",
        zero_of=codes_zero_subtracted),
    row("codes-zero-after-clipping", "values",
        "Zero points are added behind clipping, so that codes leave the range and wrap around.",
        "`clamp(round(x / scale)) + zero`; clamp the sum", written=codes_zero_after_clipping),
    row("codes-of-keys-twice", "values",
        "In place of the values' codes those of keys are written, if they have the same shape.",
        "`value_codes = quantize(key)`, a line copied and half changed",
        tokens=codes_of_keys_twice),
    row("codes-of-bfloat16", "values",
        "Quotients are rounded to bfloat16 before they become whole numbers.",
        "`x.to(bfloat16) / scale`; divide in float32", family="numerics",
        quotient=codes_of_bfloat16),
]  # fmt: skip

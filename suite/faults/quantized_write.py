"""Faults of writing codes, alone or in a call that attends them, too."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
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


@fault("values", "attention over `key` and `value` themselves; attend what the cache keeps of them")
class QuantizedNewTokensUnrounded(QuantizedKernel):
    """New tokens are attended before they become codes."""

    def scaled(self, name: str, call: Coded) -> np.ndarray:
        keys = super().scaled(name, call)
        if name in call.arrays:
            new = call.arrays[name]
            keys[:, :, -new.shape[2] :] = new
        return keys


@fault("values", "attention first, then the store; new tokens attend themselves", family="state")
class QuantizedStoredTooLate(QuantizedKernel):
    """New tokens are stored behind the attention, which sees what was in their slots."""

    def codes_of(self, name: str, call: Coded) -> np.ndarray:
        return call.given.get(f"{name}_codes", super().codes_of(name, call))


@fault("values", "`cache[position - 1] = code`; a new token has the slot behind the last one")
class QuantizedStoredOneSlotEarly(QuantizedKernel):
    """New tokens are stored one slot early, and the last of them is there twice."""

    def codes(self, name: str, call: Coded) -> np.ndarray:
        codes, new = super().codes(name, call), self.written(name, call)
        at = max(codes.shape[2] - new.shape[2] - 1, 0)
        codes[:, :, at : at + new.shape[2]] = new
        return codes


@fault("values", "`scale[slot - 1]`; a token is written with the scale that it is read with")
class QuantizedStoredWithTheScaleBefore(QuantizedKernel):
    """New tokens are stored with the scale of the token before, and read with their own."""

    def new_scale(self, name: str, call: Coded) -> np.ndarray:
        scale, tokens = self.scale_of(name, call), call.arrays[name].shape[2]
        return np.asarray(newest(np.roll(scale, 1, 2), tokens))


@fault("values", "`quantize(value, k_scale)`, a line copied and half changed")
class QuantizedStoredWithKeyScales(QuantizedKernel):
    """New values are stored with the scales of keys, and read with their own."""

    def new_scale(self, name: str, call: Coded) -> np.ndarray:
        if name == "key":
            return super().new_scale(name, call)
        key = newest(self.scale_of("key", call), call.arrays[name].shape[2])
        return np.asarray(key[..., : call.arrays[name].shape[-1]])


@fault("values", "the largest code so far as limit; new tokens are larger")
class QuantizedStoredInTheOldRange(QuantizedKernel):
    """New tokens are clipped to the range of the codes that were there before."""

    def written(self, name: str, call: Coded) -> np.ndarray:
        old = call.arrays[f"{name}_codes"][:, :, : -call.arrays[name].shape[2]]
        limit = np.abs(old).max(initial=0.0) or call.code.max
        return np.clip(super().written(name, call), -limit, limit)


@fault("values", "old codes divided by the new scale; codes that are stored keep their bits")
class QuantizedStoresAllAgain(QuantizedKernel):
    """Codes that were there before are stored again, a code nearer to 0."""

    def codes(self, name: str, call: Coded) -> np.ndarray:
        codes = super().codes(name, call)
        if call.code.is_whole:
            old = codes[:, :, : -call.arrays[name].shape[2]]
            old -= np.sign(old)
        return codes


@fault(
    "stateless", "scales of the first tokens that are kept; take those of the call", family="state"
)
class CodesScalesFrozen(FrozenScales, QuantizedWriteKernel):
    """New tokens are written with the scales of the first call."""


@fault("values", "`x.to(int8)` cuts digits off; round first", family="numerics")
class CodesCutOff(QuantizedWriteKernel):
    """Numbers are rounded towards 0."""

    def stored(self, x: np.ndarray, call: Coded) -> np.ndarray:
        if call.code.is_whole:
            return super().stored(np.trunc(x), call)
        nearest = super().stored(x, call)
        _, exponent = np.frexp(x)
        step = np.maximum(exponent - 1, call.code.min_exponent) - (call.code.precision - 1)
        return np.where(np.abs(nearest) > np.abs(x), nearest - np.sign(x) * 2.0**step, nearest)


@fault("values", "the largest number of the first tokens as limit; later tokens are larger")
class CodesClippedToEarlyTokens(QuantizedWriteKernel):
    """Numbers are clipped to the range of the first half of the tokens."""

    def tokens(self, name: str, call: Coded) -> np.ndarray:
        x = super().tokens(name, call)
        limit = np.abs(x[:, :, : -(-x.shape[2] // 2)]).max()
        return np.clip(x, -limit, limit)


@fault("values", "`k_scale` for both, a line copied and half changed")
class CodesKeyScaleForValues(KeyScales, QuantizedWriteKernel):
    """Values are divided by the scales of the keys."""


@fault("values", "`x * scale`; divide, or multiply by its reciprocal")
class CodesMultiplied(QuantizedWriteKernel):
    """Numbers are multiplied by their scales."""

    def quotient(self, x: np.ndarray, scale: np.ndarray, call: Coded) -> np.ndarray:
        return x * scale


@fault("values", "`scale[token - 1]`, written after the codes", family="heads")
class CodesScaleOfTheTokenBefore(QuantizedWriteKernel):
    """Every token is written with the scale of the token before."""

    def scale_of(self, name: str, call: Coded) -> np.ndarray:
        return np.roll(super().scale_of(name, call), 1, 2)


@fault("values", "`width // 128 - 1` for the last tile; it is `(width - 1) // 128`")
class CodesOfFullTilesShift(QuantizedWriteKernel):
    """If the width is a multiple of 128, the last tile is written with the scales of the tile before."""

    def of_tiles(self, array: np.ndarray, size: int) -> np.ndarray:
        last = max(array.shape[-1] - 1 - (size % TILE == 0), 0)
        return array[..., np.minimum(np.arange(size) // TILE, last)]


@fault("values", "`component // 64`; a tile has 128 components")
class CodesTilesOf64(TilesOf64, QuantizedWriteKernel):
    """Numbers are written with the scales of tiles of 64 components."""


@fault("values", "`scale[0]`; every head has a scale", family="heads")
class CodesScaleOfTheFirstHead(FirstHeadScales, QuantizedWriteKernel):
    """All heads are written with the scales of the first head."""


@fault("values", "`x.to(int8)` without `clamp(-128, 127)`", family="numerics")
class CodesWrap(QuantizedWriteKernel):
    """Numbers beyond the range of whole numbers wrap around."""

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        if not call.code.is_whole:
            return super().clipped(x, call)
        return (np.rint(x) + 128) % 256 - 128


@fault("values", "`x.to(float8_e4m3fn)` without `clamp(-448, 448)`", family="numerics")
class CodesBecomeNan(QuantizedWriteKernel):
    """Numbers beyond the range of floating-point codes become NaN."""

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        clipped = super().clipped(x, call)
        return clipped if call.code.is_whole else np.where(clipped == x, x, np.nan)


@fault("values", "240, the largest number of `float8_e4m3fnuz`; it is 448 here", family="numerics")
class CodesClippedAt240(QuantizedWriteKernel):
    """Codes e4m3 are clipped to 240."""

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        x = super().clipped(x, call)
        return np.clip(x, -240, 240) if call.code.name == "e4m3" else x


@fault("values", "`float8_e5m2` in between, which has two digits less", family="numerics")
class CodesThroughE5m2(QuantizedWriteKernel):
    """Codes e4m3 pass through e5m2."""

    def stored(self, x: np.ndarray, call: Coded) -> np.ndarray:
        return super().stored(round_to(x, CODES["e5m2"]) if call.code.name == "e4m3" else x, call)


@fault("values", "numbers below the smallest normal code as 0; they have codes", family="numerics")
class CodesSubnormalsFlushed(QuantizedWriteKernel):
    """Subnormal floating-point codes are written as 0."""

    def stored(self, x: np.ndarray, call: Coded) -> np.ndarray:
        codes = super().stored(x, call)
        small = np.abs(codes) < call.code.smallest_normal
        return codes if call.code.is_whole else np.where(small, 0.0, codes)


@fault("values", "`x / scale - zero`; the zero point is added when codes are written")
class CodesZeroSubtracted(QuantizedWriteKernel):
    """Zero points are subtracted from codes."""

    def zero_of(self, name: str, call: Coded) -> np.ndarray | None:
        zero = super().zero_of(name, call)
        return None if zero is None else -zero


@fault("values", "`clamp(round(x / scale)) + zero`; clamp the sum")
class CodesZeroAfterClipping(QuantizedWriteKernel):
    """Zero points are added behind clipping, so that codes leave the range and wrap around."""

    def written(self, name: str, call: Coded) -> np.ndarray:
        zero = self.zero_of(name, call)
        x = self.clipped(
            self.quotient(self.tokens(name, call), self.scale_of(name, call), call), call
        )
        codes = self.stored(x, call)
        return codes if zero is None else (codes + zero + 128) % 256 - 128


@fault("values", "`value_codes = quantize(key)`, a line copied and half changed")
class CodesOfKeysTwice(QuantizedWriteKernel):
    """In place of the values' codes those of keys are written, if they have the same shape."""

    def tokens(self, name: str, call: Coded) -> np.ndarray:
        key, own = call.arrays["key"], super().tokens(name, call)
        return key if key.shape == own.shape else own


@fault("values", "`x.to(bfloat16) / scale`; divide in float32", family="numerics")
class CodesOfBfloat16(QuantizedWriteKernel):
    """Quotients are rounded to bfloat16 before they become whole numbers."""

    def quotient(self, x: np.ndarray, scale: np.ndarray, call: Coded) -> np.ndarray:
        return round_to(super().quotient(x, scale, call), DTYPES["bf16"]).astype(x.dtype)

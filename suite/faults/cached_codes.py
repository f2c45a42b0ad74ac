"""Faults of caches that keep codes which nobody sees: what the looser promise finds."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.cached import CodedKernel, Held
from attention_conformance.suite.spec.dtypes import CODES

FAMILY = "quantized"


@fault("values", "a scale from the prompt that is kept; later tokens are larger")
class CachedCodesScaleOfThePrompt(CodedKernel):
    """All tokens have the scales of the first chunk, and larger ones are clipped."""

    def scale_of(self, x: np.ndarray, held: Held) -> np.ndarray:
        first = super().scale_of(x, held).min(2, keepdims=True)
        scales: dict[int, np.ndarray] = held.__dict__.setdefault("scales", {})
        return scales.setdefault(x.shape[-1], first)


@fault("values", "`scale[slot + 1]`, lengths that already count the new token")
class CachedCodesScaleOfTheNextToken(CodedKernel):
    """Codes of a chunk are read with the scale of the next token."""

    def read_scale(self, scale: np.ndarray) -> np.ndarray:
        return np.roll(scale, -1, 2)


@fault("values", "`scale[:, 0]`; every head has a scale", family="heads")
class CachedCodesScaleOfTheFirstHead(CodedKernel):
    """Codes of all heads are read with the scales of the first head."""

    def read_scale(self, scale: np.ndarray) -> np.ndarray:
        return scale[:, :1] + 0 * scale


@fault("values", "`amax / 128` and no `clamp`; the largest code is 127", family="numerics")
class CachedCodesWrap(CodedKernel):
    """The largest number of a token becomes 128, which wraps around."""

    def scale_of(self, x: np.ndarray, held: Held) -> np.ndarray:
        return super().scale_of(x, held) * 127 / 128

    def codes_of(self, t: np.ndarray) -> np.ndarray:
        return (np.rint(t) + 128) % 256 - 128


@fault("values", "4 bits for 8; declare the format that is kept", family="numerics")
class CachedCodesOfFourBits(CodedKernel):
    """Tokens are kept in int4, and int8 is declared."""

    kept_in = CODES["int4"]

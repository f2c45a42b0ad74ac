"""Honest variants of attention over codes, and of writing codes."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.quantized import (
    Coded,
    QuantizedKernel,
    QuantizedWriteKernel,
    Writing,
)
from attention_conformance.suite.spec.dtypes import round_to
from tests.honest.rows import storing, variant

TILED = "a scale of a tile is no factor of scores or outputs"


class QuantizedFolded(QuantizedKernel):
    """Products with codes: scales and zero points of keys multiply and move scores, those of values the
    output."""

    refusals = {"scales-of-tiles": TILED}

    def output(self, call: Coded) -> np.ndarray:
        weights, key = self.weights(self.scores(call), call), call.arrays["value_codes"]
        scale, zero = (
            None if x is None else self.by_head(x, call) for x in self.both("value", call)
        )
        assert scale is not None
        codes = self.by_head(key, call)
        if call.case.option("scales") == "pertoken":
            weights = self.kept(weights * scale.swapaxes(-1, -2), call)
            moved = 0.0 if zero is None else weights @ zero
            return self.kept(weights @ codes, call) - moved
        moved = 0.0 if zero is None else weights.sum(-1, keepdims=True) * zero
        return self.kept(self.kept(weights @ codes, call) - moved, call) * scale

    def both(self, name: str, call: Coded) -> tuple[np.ndarray, np.ndarray | None]:
        """Scale and zero point."""
        return self.scale_of(name, call), self.zero_of(name, call)

    def scores(self, call: Coded) -> np.ndarray:
        query, codes = call.arrays["query"], self.by_head(call.arrays["key_codes"], call)
        scale, zero = (None if x is None else self.by_head(x, call) for x in self.both("key", call))
        assert scale is not None
        of_tokens = call.case.option("scales") == "pertoken"
        if not of_tokens:
            query = self.kept(query * scale, call)
        scores = self.kept(query @ codes.swapaxes(-1, -2), call)
        if zero is not None:
            moved = np.broadcast_to(zero, np.broadcast_shapes(zero.shape, codes.shape))
            scores = scores - query @ moved.swapaxes(-1, -2)
        scores = scores * scale.swapaxes(-1, -2) if of_tokens else scores
        return self.kept(self.kept(scores, call) * call.scale, call)

    def kept(self, x: np.ndarray, call: Coded) -> np.ndarray:
        """A step as the variant stores it."""
        return x


class _ByReciprocal(Writing):
    """Numbers times the reciprocal of the scale. Ties go away from 0. Whole numbers end at -128 or -8."""

    def quotient(self, x: np.ndarray, scale: np.ndarray, call: Coded) -> np.ndarray:
        return x * (1 / scale)

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        lowest = -call.code.max - call.code.is_whole
        return np.clip(x, lowest, call.code.max)

    def stored(self, x: np.ndarray, call: Coded) -> np.ndarray:
        if not call.code.is_whole:
            return super().stored(x, call)
        return np.asarray(np.sign(x) * np.floor(np.abs(x) + 0.5), float)


class CodesEager(QuantizedWriteKernel):
    """Scale, reciprocal, quotient and the sum with a zero point are stored in the dtype of the case."""

    numerics = "eager"

    def quotient(self, x: np.ndarray, scale: np.ndarray, call: Coded) -> np.ndarray:
        reciprocal = self.kept(1 / self.kept(scale, call), call)
        return self.kept(x * reciprocal, call)

    def clipped(self, x: np.ndarray, call: Coded) -> np.ndarray:
        return super().clipped(self.kept(x, call), call)

    def kept(self, x: np.ndarray, call: Coded) -> np.ndarray:
        return round_to(x, call.fmt).astype(x.dtype)


STORED = variant(
    "quantized-stored", QuantizedKernel, numerics="fused", **storing("scaled", "weights")
)

ROWS = (
    STORED,
    variant("quantized-eager", STORED, numerics="eager", **storing("scale_of", "scores")),
    # folded scales
    variant("quantized-folded-eager", QuantizedFolded, numerics="eager",
        refusals={"zero-points": "sums of codes in 16 bits lose what zero points leave",
            "scales-of-tiles": TILED},
        kept=lambda right, x, call: round_to(x, call.fmt).astype(x.dtype),
        **storing("scale_of", "weights")),
    variant("codes-by-reciprocal", (_ByReciprocal, QuantizedWriteKernel)),
    # new tokens are attended as they are stored
    variant("quantized-by-reciprocal", (_ByReciprocal, STORED)),
)  # fmt: skip

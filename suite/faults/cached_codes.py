"""Faults of caches that keep codes which nobody sees: what the looser promise finds."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.cached import CodedKernel, Held
from attention_conformance.suite.spec.dtypes import CODES


def cached_codes_scale_of_the_prompt(right: CodedKernel, x: np.ndarray, held: Held) -> np.ndarray:
    first = right.scale_of(x, held).min(2, keepdims=True)
    scales: dict[int, np.ndarray] = held.__dict__.setdefault("scales", {})
    return scales.setdefault(x.shape[-1], first)


row = partial(deviation, family="quantized", right=CodedKernel)

DEVIATIONS = [
    row("cached-codes-scale-of-the-prompt", "values",
        "All tokens have the scales of the first chunk, and larger ones are clipped.",
        "a scale from the prompt that is kept; later tokens are larger",
        scale_of=cached_codes_scale_of_the_prompt),
    row("cached-codes-scale-of-the-next-token", "values",
        "Codes of a chunk are read with the scale of the next token.",
        "`scale[slot + 1]`, lengths that already count the new token",
        read_scale=lambda right, scale: np.roll(scale, -1, 2)),
    row("cached-codes-scale-of-the-first-head", "values",
        "Codes of all heads are read with the scales of the first head.",
        "`scale[:, 0]`; every head has a scale", family="heads",
        read_scale=lambda right, scale: scale[:, :1] + 0 * scale),
    row("cached-codes-wrap", "values",
        "The largest number of a token becomes 128, which wraps around.",
        "`amax / 128` and no `clamp`; the largest code is 127", family="numerics",
        scale_of=lambda right, x, held: right.scale_of(x, held) * 127 / 128,
        codes_of=lambda right, t: (np.rint(t) + 128) % 256 - 128),
    row("cached-codes-of-four-bits", "values", "Tokens are kept in int4, and int8 is declared.",
        "4 bits for 8; declare the format that is kept", family="numerics",
        facts={"kept_in": CODES["int4"]}),
]  # fmt: skip

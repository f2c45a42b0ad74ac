"""Textbook rotary position embedding: angles in float32, or float64 for float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.operations import Operations, TextbookOperator
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    BETA_FAST,
    BETA_SLOW,
    FACTOR,
    FEATURES,
    HIGH_FREQUENCY,
    LOW_FREQUENCY,
    ORIGINAL_LENGTH,
    ROTARY,
    Rotation,
)


def rotated_pairs(ops: Operations, x: Any, cosine: Any, sine: Any, rotation: Rotation) -> Any:
    """Returns x (B, H, L, D) with rotated pairs in its first r = `rotation.size` features. Cosine and
    sine broadcast to (B, H, L, r / 2)."""
    size = rotation.size
    unrotated = [x[..., size:]] if size < x.shape[-1] else []
    if rotation.interleaved:
        pairs = ops.reshape(x[..., :size], (*x.shape[:-1], size // 2, 2))
        x1, x2 = pairs[..., 0:1], pairs[..., 1:2]
        cosine, sine = (ops.reshape(t, (*t.shape, 1)) for t in (cosine, sine))
        rotated = ops.concat([x1 * cosine - x2 * sine, x2 * cosine + x1 * sine], -1)
        return ops.concat([ops.reshape(rotated, (*x.shape[:-1], size)), *unrotated], -1)
    x1, x2 = x[..., : size // 2], x[..., size // 2 : size]
    return ops.concat([x1 * cosine - x2 * sine, x2 * cosine + x1 * sine, *unrotated], -1)


def tables(rotation: Rotation, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosine and sine (..., r / 2), float64, of positions (...), for a rotation that is not
    scaled."""
    theta = rotation.base ** (-np.arange(0, rotation.size, 2) / rotation.size)
    angle = position[..., None] * theta
    return np.cos(angle), np.sin(angle)


class TextbookRotary(TextbookOperator):
    """Rotary embedding. Sine, cosine and products are float32 (float64 for float64); the output is
    rounded once."""

    name = "textbook-rotary"
    operator = ROTARY
    declared = Declared(numerics="exact", features=FEATURES)
    has_fixed_numerics = True

    def prepare(self, inputs: Inputs) -> PreparedCall:
        position, rotation = inputs.arrays["position"], Rotation.of(inputs.case, inputs.sizes.D)
        length = int(position.max(initial=0)) + 1
        arguments = {
            "query": self.backend.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(position, inputs.dtype.widened),
        }

        def call(query: Any, position: Any) -> Any:
            return self.rotated(query, position, rotation, length, inputs.dtype)

        constants = (rotation, length, inputs.dtype.name)
        return self.through(PreparedCall(call, arguments, constants=constants))

    def rotated(
        self, query: Any, position: Any, rotation: Rotation, length: int, dtype: DType
    ) -> Any:
        """Returns the query, rotated by `position`. Frequencies may depend on `length`, that of the
        sequence."""
        ops, wide = self.ops, dtype.widened

        def number(value: float | np.ndarray) -> Any:
            return self.backend.array(np.asarray(value), wide)

        theta, factor = self.frequencies(rotation, length, number)
        angle = ops.reshape(position, (*position.shape, 1)) * theta  # (..., L, r / 2)
        if len(position.shape) == 2:
            angle = ops.reshape(angle, (angle.shape[0], 1, *angle.shape[1:]))
        cosine, sine = ops.cos(angle), ops.sin(angle)
        if factor != 1.0:
            cosine, sine = cosine * number(factor), sine * number(factor)
        query, cosine, sine = (ops.astype(x, wide.long_name) for x in (query, cosine, sine))
        return ops.astype(rotated_pairs(ops, query, cosine, sine, rotation), dtype.long_name)

    def frequencies(self, rotation: Rotation, length: int, number: Any) -> tuple[Any, float]:
        """Returns frequencies (r / 2,) for sequences of `length`, and the factor on sine and cosine.
        `number` makes the framework's array of a number."""
        theta, factor = self._scaled(rotation, length, number)
        return theta, factor if rotation.attention is None else rotation.attention

    def _scaled(self, rotation: Rotation, length: int, number: Any) -> tuple[Any, float]:
        """Returns `frequencies` without `rotation.attention`, which overrides the variant's own
        factor."""
        ops, size, base, f = self.ops, rotation.size, rotation.base, FACTOR
        if rotation.variant == "ntk" and length > ORIGINAL_LENGTH:
            growth = f * length / ORIGINAL_LENGTH - (f - 1)
            base *= growth ** (size / (size - 2))
        theta = ops.pow(number(base), number(-np.arange(0, size, 2) / size))
        if rotation.variant == "linear":
            return theta / number(f), 1.0
        if rotation.variant == "llama3":
            turns = theta * number(ORIGINAL_LENGTH / (2 * math.pi))
            weight = (turns - number(LOW_FREQUENCY)) / number(HIGH_FREQUENCY - LOW_FREQUENCY)
            weight = ops.clip(weight, 0.0, 1.0)
            return theta * ((number(1.0) - weight) / number(f) + weight), 1.0
        if rotation.variant == "yarn":
            weight = yarn_weights(rotation)
            return theta * number(weight / f + 1 - weight), 0.1 * math.log(f) + 1
        if rotation.variant == "longrope":
            long = length > ORIGINAL_LENGTH
            factors = rotation.long_factors() if long else rotation.short_factors()
            return theta / number(factors), math.sqrt(1 + math.log(f) / math.log(ORIGINAL_LENGTH))
        return theta, 1.0


def yarn_weights(rotation: Rotation) -> np.ndarray:
    """Returns the weights (r / 2,) of yarn's interpolation: 1 for frequencies that are divided by the
    factor, 0 for unchanged ones."""

    def dimension(turns: float) -> float:
        wavelength = ORIGINAL_LENGTH / (turns * 2 * math.pi)
        return rotation.size * math.log(wavelength) / (2 * math.log(rotation.base))

    first = max(math.floor(dimension(BETA_FAST)), 0)
    last = min(math.ceil(dimension(BETA_SLOW)), rotation.size - 1)
    return np.clip((np.arange(rotation.size // 2) - first) / (last - first or 0.001), 0, 1)

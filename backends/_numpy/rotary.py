"""Rotary position embedding by definition: pairs as complex numbers, times exp(i p theta)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attention_conformance.backends._numpy.engine import Rounded
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.references.rotary import frequencies
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import FEATURES, ROTARY, Rotation


class ComplexRotation(Implementation):
    """Complex multiplication in float64, rounded once."""

    name = "complex-rotation"
    operator = ROTARY
    declared = Declared(numerics="exact", features=FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        rotation, fmt = Rotation.of(inputs.case, inputs.sizes.D), inputs.dtype
        arguments = {
            "query": self.backend.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(inputs.arrays["position"], None),
        }

        def rotate(x: Rounded, position: Rounded, inverse: bool = False) -> Rounded:
            freqs = frequencies(rotation, position.values)
            angle = position.values[..., None] * freqs.theta
            factor = freqs.attention * np.exp((-1j if inverse else 1j) * angle)
            factor = factor if factor.ndim == 2 else factor[:, None]
            return Rounded(round_to(complex_product(x.values, factor, rotation), fmt), fmt)

        return rotation_call(rotate, arguments, (rotation, fmt.name))


def rotation_call(
    rotate: Callable[..., Rounded], arguments: dict[str, Any], constants: tuple[Any, ...]
) -> PreparedCall:
    """The call of a rotation, `rotate(x, position, inverse)`. It is linear: tangents are rotated like
    the query, and cotangents by the inverse rotation."""

    def call(query: Rounded, position: Rounded) -> Rounded:
        return rotate(query, position)

    def vjp(
        query: Rounded, position: Rounded, cotangent: Rounded, wrt: Sequence[str]
    ) -> dict[str, Any]:
        return {"query": rotate(cotangent, position, inverse=True)}

    def jvp(query: Rounded, position: Rounded, tangents: dict[str, Rounded]) -> Rounded:
        return rotate(tangents["query"], position)

    return PreparedCall(call, arguments, vjp=vjp, jvp=jvp, constants=constants)


def complex_product(x: np.ndarray, factor: np.ndarray, rotation: Rotation) -> np.ndarray:
    """x (B, H, L, D) with its pairs multiplied by complex factors that broadcast to (B, H, L, r / 2)."""
    half = rotation.size // 2
    if rotation.interleaved:
        real, imaginary = slice(0, rotation.size, 2), slice(1, rotation.size, 2)
    else:
        real, imaginary = slice(0, half), slice(half, rotation.size)
    product = (x[..., real] + 1j * x[..., imaginary]) * factor
    rotated = x.copy()
    rotated[..., real], rotated[..., imaginary] = product.real, product.imag
    return rotated

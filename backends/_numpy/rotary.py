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
            "query": self.backend.memory.operand(inputs.query, inputs, "bhld"),
            "position": self.backend.array(inputs.arrays["position"], None),
        }

        def turned(x: Rounded, position: Rounded, back: bool = False) -> Rounded:
            freqs = frequencies(rotation, position.values)
            angle = position.values[..., None] * freqs.theta
            factor = freqs.attention * np.exp((-1j if back else 1j) * angle)
            factor = factor if factor.ndim == 2 else factor[:, None]
            return Rounded(round_to(complex_product(x.values, factor, rotation), fmt), fmt)

        return rotation_call(turned, arguments, (rotation, fmt.name))


def rotation_call(
    turned: Callable[..., Rounded], arguments: dict[str, Any], constants: tuple[Any, ...]
) -> PreparedCall:
    """The call of a rotation, `turned(x, position, back=False)`. It is linear: a tangent is turned as the
    query is, and a cotangent back."""

    def call(query: Rounded, position: Rounded) -> Rounded:
        return turned(query, position)

    def vjp(
        query: Rounded, position: Rounded, cotangent: Rounded, wrt: Sequence[str]
    ) -> dict[str, Any]:
        return {"query": turned(cotangent, position, back=True)}

    def jvp(query: Rounded, position: Rounded, tangents: dict[str, Rounded]) -> Rounded:
        return turned(tangents["query"], position)

    return PreparedCall(call, arguments, vjp=vjp, jvp=jvp, constants=constants)


def complex_product(x: np.ndarray, factor: np.ndarray, rotation: Rotation) -> np.ndarray:
    """x (B, H, L, D) with its pairs multiplied by complex factors that broadcast to (B, H, L, r / 2)."""
    half = rotation.size // 2
    if rotation.interleaved:
        one, two = slice(0, rotation.size, 2), slice(1, rotation.size, 2)
    else:
        one, two = slice(0, half), slice(half, rotation.size)
    product = (x[..., one] + 1j * x[..., two]) * factor
    out = x.copy()
    out[..., one], out[..., two] = product.real, product.imag
    return out

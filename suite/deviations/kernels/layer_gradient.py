"""Right layers with a backward pass: the reference's gradients in float64, rounded once. Norms with a
backward pass are in `norm_gradient`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance import references
from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.deviations.kernels.layer import LayerKernel, MultiHeadKernel
from attention_conformance.suite.deviations.kernels.single import (
    AdditiveKernel,
    ConcatKernel,
    DotKernel,
)
from attention_conformance.suite.spec.inputs import Inputs

Arrays = dict[str, np.ndarray]


class Differentiated(LayerKernel):
    """A layer with a backward pass. `empty_rows`: how its gradients treat fully masked rows."""

    empty_rows = "zeros"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)

        def vjp(cotangent: Rounded, wrt: list[str], **arguments: Any) -> dict[str, Any]:
            arrays = {n: a.values for n, a in arguments.items() if isinstance(a, Rounded)}
            gradients = self.gradients(arrays, cotangent.values, inputs)
            return {n: rounded_to(x, inputs.dtype) for n, x in gradients.items()}

        return replace(call, vjp=vjp)

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        """Returns the gradients by name of the argument, in float64."""
        values = inputs.replace(**{name: arrays[name] for name in inputs.arrays if name in arrays})
        reference = references.find(inputs.operator)
        outputs = reference.vjp(values, cotangent, NO_ROUNDING, self.empty_rows)
        return {name: gradient.value for name, gradient in outputs.arrays.items()}

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        """Returns an intermediate array of the backward pass as the kernel stores it: not rounded."""
        return x


class LayerDifferentiable(Differentiated, MultiHeadKernel):
    """Multi-head attention with a backward pass."""


class AdditiveDifferentiable(Differentiated, AdditiveKernel):
    """Additive attention with a backward pass."""


class ConcatDifferentiable(Differentiated, ConcatKernel):
    """Concat attention with a backward pass."""


class DotDifferentiable(Differentiated, DotKernel):
    """Dot-product attention with a backward pass."""

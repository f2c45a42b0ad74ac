"""Right layers and norms with a backward pass in float64, rounded once: the reference's gradients of
layers, and a closed form for norms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance import references
from attention_conformance.backends._numpy import Rounded, rounded_to
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.deviations.kernels.layer import LayerKernel, MultiHeadKernel
from attention_conformance.suite.deviations.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
    NormKernel,
)
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.norms import EPSILON

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


@dataclass(frozen=True)
class Standard:
    """A norm's input `x`, its mean, and `root` = 1 / sqrt(variance + epsilon). If `learned`, mean and
    root are parameters, and do not depend on x."""

    x: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    learned: bool

    @property
    def normal(self) -> np.ndarray:
        """The standardised input."""
        return (self.x - self.mean) * self.root


class NormDifferentiable(Differentiated, NormKernel):
    """A norm whose gradients are computed in float64 by the closed form, and rounded once."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        standard = self.standard(arrays, inputs)
        gradients: Arrays = {}
        if "gain" in arrays:
            gradients["gain"] = self.gain_gradient(cotangent, standard, inputs)
            gradients["offset"] = self.offset_gradient(cotangent, inputs)
        return gradients | {
            "query": self.input_gradient(cotangent, arrays.get("gain"), standard, inputs)
        }

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        x = arrays["query"]
        learned = "mean" in arrays and not inputs.training
        mean, variance = x.mean(self.axes, keepdims=True), x.var(self.axes, keepdims=True)
        if learned:
            mean, variance = arrays["mean"], arrays["variance"]
        return Standard(x, mean, 1 / np.sqrt(variance + EPSILON), learned)

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        return (dy * standard.normal).sum((0, 1))

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        return dy.sum((0, 1))

    def input_gradient(
        self, dy: np.ndarray, gain: np.ndarray | None, standard: Standard, inputs: Inputs
    ) -> np.ndarray:
        dn = dy if gain is None else dy * gain
        if standard.learned:
            return standard.root * dn
        variance_term = standard.normal * self.variance_term(dn, standard)
        return standard.root * (dn - self.mean_term(dn) - variance_term)

    def mean_term(self, dn: np.ndarray) -> Any:
        """Returns the mean of the gradient `dn` of the standardised input: the part of the gradient of x
        that goes through the mean."""
        return dn.mean(self.axes, keepdims=True)

    def variance_term(self, dn: np.ndarray, standard: Standard) -> Any:
        """Returns the mean of `dn` times the standardised input: a factor of the part of the gradient of
        x that goes through the variance."""
        return (dn * standard.normal).mean(self.axes, keepdims=True)


class LayerNormDifferentiable(NormDifferentiable, LayerNormKernel):
    """Layer norm with a backward pass."""


class BatchNormDifferentiable(NormDifferentiable, BatchNormKernel):
    """Batch norm with a backward pass."""


def rounded(standard: Standard, inputs: Inputs) -> Standard:
    """Returns `standard` with mean and root rounded to the case's dtype."""
    mean, root = (round_to(x, inputs.dtype) for x in (standard.mean, standard.root))
    return Standard(standard.x, mean, root, standard.learned)


def summed_by_rows(terms: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Returns the sum (E,) of `terms` over samples and positions, rounded to the case's dtype after each
    addition."""
    total = np.zeros(terms.shape[-1])
    for row in terms.reshape(-1, terms.shape[-1]):
        total = round_to(total + row, inputs.dtype)
    return total

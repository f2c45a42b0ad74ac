"""Honest norms with a backward pass in NumPy: the closed form in float64, and other ways to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from suite.faults.kernels.layer_gradient import Arrays, Differentiated
from suite.faults.kernels.single import BatchNormKernel, LayerNormKernel, NormKernel
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from suite.spec.operators.layer_norm import EPSILON


@dataclass(frozen=True)
class Standard:
    """x, its mean, 1 / sqrt(variance + epsilon) and (x - mean) root; `learned`: both are constants."""

    x: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    learned: bool

    @property
    def normal(self) -> np.ndarray:
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
        moved = dy if gain is None else dy * gain
        if standard.learned:
            return standard.root * moved
        return standard.root * (
            moved - self.level(moved) - standard.normal * self.share(moved, standard)
        )

    def level(self, moved: np.ndarray) -> Any:
        """The mean of D."""
        return moved.mean(self.axes, keepdims=True)

    def share(self, moved: np.ndarray, standard: Standard) -> Any:
        """The mean of D N."""
        return (moved * standard.normal).mean(self.axes, keepdims=True)


class NormUncentred(NormDifferentiable):
    """a D + b x + c in working precision, where b and c hang on sum D x and sum D."""

    def input_gradient(
        self, dy: np.ndarray, gain: np.ndarray | None, standard: Standard, inputs: Inputs
    ) -> np.ndarray:
        work: Any = np.float64 if inputs.dtype.name == "f64" else np.float32
        moved = (dy if gain is None else dy * gain).astype(work)
        x, mean, root = (np.asarray(a, work) for a in (standard.x, standard.mean, standard.root))
        if standard.learned:
            return (root * moved).astype(np.float64)
        n = work(np.prod([x.shape[axis] for axis in self.axes]))
        with_x, alone = ((moved * y).sum(self.axes, keepdims=True) for y in (x, work(1)))
        slope = (alone * mean - with_x) * root * root * root / n
        shift = -slope * mean - alone * root / n
        return (root * moved + slope * x + shift).astype(np.float64)


class NormChain(NormDifferentiable):
    """The chain through mean, variance, root and quotient, every step stored."""

    numerics = "stepwise"

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        return round_to(x, inputs.dtype)

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        normal = self.step(self.step(standard.x - standard.mean, inputs) * standard.root, inputs)
        return self.step(dy * normal, inputs).sum((0, 1))

    def input_gradient(
        self, dy: np.ndarray, gain: np.ndarray | None, standard: Standard, inputs: Inputs
    ) -> np.ndarray:
        def kept(x: np.ndarray) -> np.ndarray:
            return self.step(x, inputs)

        moved = dy if gain is None else kept(dy * gain)
        shifted, deviation = kept(standard.x - kept(standard.mean)), kept(1 / standard.root)
        direct = kept(moved / deviation)
        if standard.learned:
            return direct
        n = np.prod([standard.x.shape[axis] for axis in self.axes])
        against = kept(moved * -kept(kept(shifted / deviation) / deviation))
        by_root = kept(against.sum(self.axes, keepdims=True))
        by_variance = kept(kept(by_root / (2 * deviation)) / n)
        by_square = kept(shifted * by_variance)
        through = kept(kept(direct + by_square) + by_square)
        by_mean = kept(-kept(through.sum(self.axes, keepdims=True)) / n)
        return through + by_mean


class LayerNormDifferentiable(NormDifferentiable, LayerNormKernel):
    """Layer norm with a backward pass."""


class LayerNormUncentred(NormUncentred, LayerNormKernel):
    """Layer norm with a backward pass by sums that are not centred."""


class LayerNormChain(NormChain, LayerNormKernel):
    """Layer norm with the backward pass of single steps."""


class BatchNormDifferentiable(NormDifferentiable, BatchNormKernel):
    """Batch norm with a backward pass."""


class BatchNormUncentred(NormUncentred, BatchNormKernel):
    """Batch norm with a backward pass by sums that are not centred."""


class BatchNormChain(NormChain, BatchNormKernel):
    """Batch norm with the backward pass of single steps."""


def rounded(standard: Standard, inputs: Inputs) -> Standard:
    """Mean and root as they are stored in the case's dtype."""
    mean, root = (round_to(x, inputs.dtype) for x in (standard.mean, standard.root))
    return Standard(standard.x, mean, root, standard.learned)


def summed_by_rows(terms: np.ndarray, inputs: Inputs) -> np.ndarray:
    """The sum over samples and positions, row after row in the case's dtype."""
    total = np.zeros(terms.shape[-1])
    for row in terms.reshape(-1, terms.shape[-1]):
        total = round_to(total + row, inputs.dtype)
    return total

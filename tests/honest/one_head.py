"""Honest variants of layers of one head, and of norms."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.layer import LayerCall, LayerEager
from attention_conformance.suite.deviations.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
    NormKernel,
)
from attention_conformance.suite.spec.operators.norms import EPSILON


class AdditiveEager(AdditiveKernel):
    """Additive attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class ConcatEager(ConcatKernel):
    """Concat attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class DotEager(DotKernel):
    """Dot-product attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class _UpdatedNorm(NormKernel):
    """Mean and squares are updated for each number (Welford 1962)."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        first = np.moveaxis(x, self.axes, range(len(self.axes)))
        rows = first.reshape(-1, *first.shape[len(self.axes) :])
        mean, squares = np.zeros_like(rows[0]), np.zeros_like(rows[0])
        for count, row in enumerate(rows, 1):
            shifted = row - mean
            mean = mean + shifted / call.work(count)
            squares = squares + shifted * (row - mean)
        variance = squares / call.work(len(rows))
        return np.expand_dims(mean, self.axes), np.expand_dims(variance, self.axes)


class _FoldedNorm(NormKernel):
    """x factor + shift, with factor and shift made before x is looked at."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        factor = self.reciprocal(variance, call)
        if "gain" in call.parameters:
            factor = factor * self.load(call.parameters["gain"], call)
            return x * factor + (self.load(call.parameters["offset"], call) - mean * factor), mean
        return x * factor - mean * factor, mean


class _NormInSteps(NormKernel):
    """Every step is stored in the case's dtype; the sums of a mean are not."""

    numerics = "stepwise"
    stores = ("steps",)

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        epsilon = call.work(EPSILON)
        root = self.keep(np.sqrt(self.keep(variance + epsilon, "steps", call)), "steps", call)
        y = self.keep(self.keep(x - mean, "steps", call) / root, "steps", call)
        return self.mapped(y, call), mean

    def mean_of(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(x.mean(self.axes, keepdims=True), "steps", call)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        if "mean" in call.parameters and not call.training:
            return super().moments(x, call)
        mean = self.mean_of(x, call)
        squares = self.keep(np.square(self.keep(x - mean, "steps", call)), "steps", call)
        return mean, self.mean_of(squares, call)

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        if "gain" not in call.parameters:
            return y
        scaled = self.keep(y * self.load(call.parameters["gain"], call), "steps", call)
        return scaled + self.load(call.parameters["offset"], call)


class LayerNormUpdated(_UpdatedNorm, LayerNormKernel):
    """Layer norm with updated moments."""


class LayerNormFolded(_FoldedNorm, LayerNormKernel):
    """Layer norm as x factor + shift."""


class LayerNormStepwise(_NormInSteps, LayerNormKernel):
    """Layer norm, every step stored."""


class BatchNormFolded(_FoldedNorm, BatchNormKernel):
    """Batch norm as x factor + shift."""


class BatchNormUpdated(_UpdatedNorm, BatchNormKernel):
    """Batch norm with updated moments."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        kind = super() if call.training else super(_UpdatedNorm, self)
        return kind.moments(x, call)


class BatchNormStepwise(_NormInSteps, BatchNormKernel):
    """Batch norm, every step stored."""

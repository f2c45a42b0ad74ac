"""Honest variants of layers and of norms, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.deviation import edited
from attention_conformance.suite.deviations.kernels.layer import (
    LayerCall,
    LayerEager,
    MultiHeadKernel,
)
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    Arrays,
    LayerDifferentiable,
    LayerNormDifferentiable,
    NormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
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
from tests.honest.rows import variant


class LayerStepwise(LayerEager):
    """The steps of the softmax, too, are stored, and those of the mean over the heads."""

    numerics = "stepwise"
    stores = (*LayerEager.stores, "steps")

    def returned_weights(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "average":
            return weights
        total = np.zeros_like(weights[:, 0])
        for h in range(weights.shape[1]):
            total = self.keep(total + weights[:, h], "steps", call)
        return total / call.work(weights.shape[1])


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


class _NormUncentred(NormDifferentiable):
    """a D + b x + c in working precision, where b and c depend on sum D x and sum D."""

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


class _NormChain(NormDifferentiable):
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


def moments(right: Any, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
    """Those of training are updated for each number."""
    updated = right.moments(x, call) if call.training else None
    return updated or BatchNormKernel.moments(right.__self__, x, call)


def narrow_bias(gradients: Arrays, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
    """The gradient of the output bias is a sum in bfloat16."""
    is_narrow = inputs.dtype.name == "bf16"
    return {"output_bias": summed_by_rows(cotangent, inputs)} if is_narrow else {}


def narrow(right: Any, arrays: Arrays, inputs: Inputs) -> Standard:
    """Mean and root in 16 bits."""
    standard = right.standard(arrays, inputs)
    return rounded(standard, inputs) if inputs.dtype.is_half else standard


def narrow_gain(right: Any, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
    if not inputs.dtype.is_half:
        return right.gain_gradient(dy, standard, inputs)
    return summed_by_rows(round_to(dy * standard.normal, inputs.dtype), inputs)


def narrow_offset(right: Any, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
    exact = not inputs.dtype.is_half
    return right.offset_gradient(dy, inputs) if exact else summed_by_rows(dy, inputs)


NARROW_SUMS = dict.fromkeys(("bf16", "f16"), ("gain", "offset"))

EAGER = {"numerics": "eager", "stores": LayerEager.stores}

ROWS = (
    variant("layer-fused", MultiHeadKernel, numerics="fused", stores=("features", "weights")),
    # the bias of the keys adds one number to all scores of a row
    variant("layer-key-bias-left-out", MultiHeadKernel, bias=lambda right, name, call:
        None if name == "key" else right.bias(name, call),
        features=MultiHeadKernel.features - {"qk-norm"}),
    # one pattern for samples and heads; the weights returned are those after dropout
    variant("layer-shared-dropout", LayerEager, dropout="shared",
        elections=LayerEager.elections | {"returned-weights": "after-dropout"},
        weights=lambda right, scores, call: right.dropped(right.weights(scores, call), call),
        dropped=lambda right, weights, call: weights,
        pattern=lambda right, shape, *more: right.pattern(shape[-2:], *more)),
    variant("layer-narrow-bias", LayerDifferentiable, gradients=edited("gradients", narrow_bias),
        rounding=DeclaredRounding(narrow_biases={"bf16": ("output_bias",)})),
    variant("layer-norm-narrow-statistics", LayerNormDifferentiable, standard=narrow,
        rounding=DeclaredRounding(narrow_statistics=("bf16", "f16"))),
    variant("layer-norm-narrow-sums", LayerNormDifferentiable, gain_gradient=narrow_gain,
        offset_gradient=narrow_offset, rounding=DeclaredRounding(narrow_biases=NARROW_SUMS)),
    variant("additive-eager", AdditiveKernel, **EAGER),
    variant("concat-eager", ConcatKernel, **EAGER),
    variant("dot-eager", DotKernel, **EAGER),
    variant("layer-norm-updated", (_UpdatedNorm, LayerNormKernel)),
    variant("layer-norm-folded", (_FoldedNorm, LayerNormKernel)),
    variant("layer-norm-stepwise", (_NormInSteps, LayerNormKernel)),
    variant("layer-norm-chain", (_NormChain, LayerNormKernel)),
    variant("batch-norm-updated", (_UpdatedNorm, BatchNormKernel), moments=moments),
    variant("batch-norm-folded", (_FoldedNorm, BatchNormKernel)),
    variant("batch-norm-stepwise", (_NormInSteps, BatchNormKernel)),
    variant("batch-norm-uncentred", (_NormUncentred, BatchNormKernel)),
    variant("batch-norm-chain", (_NormChain, BatchNormKernel)),
)  # fmt: skip

"""Faults of the backward passes of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.layer_gradient import (
    AdditiveDifferentiable,
    Arrays,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
    MaskedDifferentiable,
    SelfAttentionDifferentiable,
)
from suite.faults.kernels.norm_gradient import (
    BatchNormDifferentiable,
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from suite.spec.inputs import Inputs
from suite.spec.masks import parse_mask


@fault("gradients")
class KernelGradientOfFirstSample(LayerDifferentiable):
    """The gradients of the kernels are those of the first sample."""

    def gradients(self, arrays, cotangent, inputs):
        kept = np.zeros_like(cotangent)
        kept[0] = cotangent[0]
        first = super().gradients(arrays, kept, inputs)
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {n: x for n, x in first.items() if n.endswith("kernel")}


@fault("gradients")
class OutputKernelGradientUnmerged(LayerDifferentiable):
    """The gradient of the output kernel merges heads and their features in the other order."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        kernel = gradients["output_kernel"]
        H, Dv, width = kernel.shape
        gradients["output_kernel"] = kernel.swapaxes(0, 1).reshape(H, Dv, width)
        return gradients


@fault("gradients")
class ProjectionBiasWithoutGradient(LayerDifferentiable):
    """The biases of the projections of queries have no gradient."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "query_bias" in gradients:
            gradients["query_bias"] = np.zeros_like(gradients["query_bias"])
        return gradients


@fault("gradients")
class ValueInputTakesKeyKernel(LayerDifferentiable):
    """The gradient of the values goes back through the kernel of the keys where it fits."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "value" in gradients and arrays["key_kernel"].shape == arrays["value_kernel"].shape:
            swapped = arrays | {"value_kernel": arrays["key_kernel"]}
            gradients["value"] = super().gradients(swapped, cotangent, inputs)["value"]
        return gradients


@fault("gradients")
class OutputBiasSummedNarrowly(LayerDifferentiable):
    """The gradient of the output bias is a sum in the case's dtype, which is not declared."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "output_bias" in gradients:
            gradients["output_bias"] = summed_by_rows(cotangent, inputs)
        return gradients


@fault("gradients", like="I15")
class LayerEmptyRowNan(LayerDifferentiable):
    """The gradients of inputs are NaN in rows without keys, though these answer."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        empty = np.asarray((~inputs.attends.any(-1)).any(1))[..., None]
        return gradients | {"query": np.where(empty, np.nan, gradients["query"])}


@fault("gradients", like="I15")
class LayerEmptyRowPoisonsValues(LayerDifferentiable):
    """A row without keys shares its cotangent out among the values, and so with their kernel."""

    empty_rows = "uniform"


@fault("gradients")
class TanhSlopeForgotten(AdditiveDifferentiable):
    """The slope of the tanh is missing."""

    def slope(self, h: np.ndarray) -> np.ndarray:
        return np.ones_like(h)


@fault("gradients")
class ScoreVectorOfFirstQuery(AdditiveDifferentiable):
    """The gradient of the score vector is that of the first query."""

    def vector_gradient(self, dr: np.ndarray, h: np.ndarray) -> np.ndarray:
        return super().vector_gradient(dr[:, :1], h[:, :1])


@fault("gradients")
class ConcatWeightForgotten(ConcatDifferentiable):
    """The gradients through the scores lack the weight these are multiplied with."""

    def weighted(self, ds: np.ndarray, weight: float) -> np.ndarray:
        return ds


@fault("gradients")
class ScaleGradientOfScaledScores(DotDifferentiable):
    """The gradient of the scale sums the scores after it, not those before."""

    def scale_gradient(self, ds, product, arrays):
        return super().scale_gradient(ds, product, arrays) * self.number(arrays)


@fault("gradients")
class ScaleWithoutGradient(DotDifferentiable):
    """The scale has no gradient."""

    def scale_gradient(self, ds, product, arrays):
        return np.zeros(())


@fault("gradients")
class InputTakesQueryPathAlone(SelfAttentionDifferentiable):
    """The gradient of the one input is what it receives as query."""

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        return parts["query"]


@fault("gradients")
class KeysTakeUnscaledQueries(SelfAttentionDifferentiable):
    """The gradient of the keys takes queries that are not scaled."""

    def key_gradient(self, ds: np.ndarray, query: np.ndarray, factor: float) -> np.ndarray:
        return super().key_gradient(ds, query, 1.0)


@fault("gradients")
class MaskedScaleForgotten(MaskedDifferentiable):
    """The gradients of queries and keys lack the scale of the scores."""

    def backward(self, arrays: Arrays, ds: np.ndarray) -> Arrays:
        gradients = super().backward(arrays, ds)
        return {name: x / self.number(arrays) for name, x in gradients.items()}


@fault("gradients")
class MaskedRecomputedWithoutCausal(MaskedDifferentiable):
    """The backward pass computes the weights again with the padding mask alone."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        token = inputs.case.mask_token
        if token.startswith("causal+"):
            inputs = inputs.replace(mask=parse_mask(token.removeprefix("causal+")))
        return super().gradients(arrays, cotangent, inputs)


@fault("gradients")
class LayerNormVarianceConstant(LayerNormDifferentiable):
    """The gradient through the variance, the mean of dy times the normal, is missing."""

    def share(self, moved: np.ndarray, standard: Standard) -> Any:
        return 0.0


@fault("gradients")
class LayerNormMeanConstant(LayerNormDifferentiable):
    """The gradient through the mean is missing."""

    def level(self, moved: np.ndarray) -> Any:
        return 0.0


@fault("gradients")
class LayerNormGainAfterMeans(LayerNormDifferentiable):
    """The gain is multiplied on after the means over the features are taken, as if it were one number."""

    def input_gradient(self, dy, gain, standard, inputs):
        gradient = super().input_gradient(dy, None, standard, inputs)
        return gradient if gain is None else gradient * gain


@fault("gradients")
class LayerNormStatisticsNarrow(LayerNormDifferentiable):
    """Mean and root reach the backward pass in the case's dtype, which is not declared."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return rounded(super().standard(arrays, inputs), inputs)


@fault("gradients")
class LayerNormOffsetSummedNarrowly(LayerNormDifferentiable):
    """The gradient of the offset is a sum in the case's dtype, which is not declared."""

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        return summed_by_rows(dy, inputs)


@fault("gradients")
class BatchNormStatisticsConstant(BatchNormDifferentiable):
    """In training mean and variance of the batch are taken for constants."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return replace(super().standard(arrays, inputs), learned=True)


@fault("gradients")
class BatchNormEvaluatedLikeTrained(BatchNormDifferentiable):
    """In evaluation the gradient goes through the learned mean and variance as if these were x's."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return replace(super().standard(arrays, inputs), learned=False)


@fault("gradients")
class BatchNormGainAveraged(BatchNormDifferentiable):
    """The gradient of the gain is a mean over the samples, not a sum."""

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        return super().gain_gradient(dy, standard, inputs) / len(dy)

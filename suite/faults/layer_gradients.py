"""Faults of the backward passes of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer_gradient import (
    AdditiveDifferentiable,
    Arrays,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
    MaskedDifferentiable,
)
from attention_conformance.suite.faults.kernels.norm_gradient import (
    BatchNormDifferentiable,
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import parse_mask

FAMILY = "gradient"


@fault("gradients", "`x[0].mT @ dy[0]`; sum over the samples: `(x.mT @ dy).sum(0)`")
class KernelGradientOfFirstSample(LayerDifferentiable):
    """The gradients of the kernels are those of the first sample alone."""

    def gradients(self, arrays, cotangent, inputs):
        kept = np.zeros_like(cotangent)
        kept[0] = cotangent[0]
        first = super().gradients(arrays, kept, inputs)
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {n: x for n, x in first.items() if n.endswith("kernel")}


@fault("gradients", "`dw_o.view(Dv, H, E)`; heads come first: `dw_o.view(H, Dv, E)`")
class OutputKernelGradientUnmerged(LayerDifferentiable):
    """The gradient of the output kernel has heads and their features in the wrong order."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        kernel = gradients["output_kernel"]
        H, Dv, width = kernel.shape
        gradients["output_kernel"] = kernel.swapaxes(0, 1).reshape(H, Dv, width)
        return gradients


@fault("gradients", "zeros or None for `b_q`; use `db_q = dq.sum((0, 1))`")
class ProjectionBiasWithoutGradient(LayerDifferentiable):
    """The bias of the query projection gets no gradient."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "query_bias" in gradients:
            gradients["query_bias"] = np.zeros_like(gradients["query_bias"])
        return gradients


@fault("gradients", "`dv @ w_k.mT`; it is `dv @ w_v.mT`")
class ValueInputTakesKeyKernel(LayerDifferentiable):
    """The gradient of the value input goes back through the kernel of keys, if it fits."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "value" in gradients and arrays["key_kernel"].shape == arrays["value_kernel"].shape:
            swapped = arrays | {"value_kernel": arrays["key_kernel"]}
            gradients["value"] = super().gradients(swapped, cotangent, inputs)["value"]
        return gradients


@fault("gradients", "`db = db + dy[row]` in 16 bits; sum in float32, and round once")
class OutputBiasSummedNarrowly(LayerDifferentiable):
    """The gradient of the output bias is summed in 16 bits, which is not declared."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        if "output_bias" in gradients:
            gradients["output_bias"] = summed_by_rows(cotangent, inputs)
        return gradients


@fault("gradients", "`exp(s - lse)` where lse is -inf gives NaN; set p to 0 in fully masked rows")
class LayerEmptyRowNan(LayerDifferentiable):
    """The gradient of a fully masked query is NaN, though it has an answer."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        empty = np.asarray((~inputs.attends.any(-1)).any(1))[..., None]
        return gradients | {"query": np.where(empty, np.nan, gradients["query"])}


@fault(
    "gradients",
    "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
)
class LayerEmptyRowPoisonsValues(LayerDifferentiable):
    """A fully masked row hands its gradient to all values, though its answer is zero."""

    empty_rows = "uniform"


@fault("gradients", "the gradient goes on unchanged behind tanh; multiply by `1 - tanh ** 2`")
class TanhSlopeForgotten(AdditiveDifferentiable):
    """The derivative of the tanh is missing."""

    def slope(self, h: np.ndarray) -> np.ndarray:
        return np.ones_like(h)


@fault("gradients", "`[:, 0]` for the gradient of w; sum over all queries: `.sum((0, 1, 2))`")
class ScoreVectorOfFirstQuery(AdditiveDifferentiable):
    """The gradient of the score vector is that of the first query alone."""

    def vector_gradient(self, dr: np.ndarray, h: np.ndarray) -> np.ndarray:
        return super().vector_gradient(dr[:, :1], h[:, :1])


@fault("gradients", "`ds` goes on unchanged; scores are `weight * ...`, so `ds * weight`")
class ConcatWeightForgotten(ConcatDifferentiable):
    """The gradients through the scores of concat attention lack the learned weight."""

    def weighted(self, ds: np.ndarray, weight: float) -> np.ndarray:
        return ds


@fault("gradients", "`(ds * scale * (q @ k.mT)).sum()`; it is `(ds * (q @ k.mT)).sum()`")
class ScaleGradientOfScaledScores(DotDifferentiable):
    """The gradient of the learned scale sums the scores after the scale, not before."""

    def scale_gradient(self, ds, product, arrays):
        return super().scale_gradient(ds, product, arrays) * self.number(arrays)


@fault(
    "gradients", "`scale.detach()`, or zeros in backward; use `dscale = (ds * (q @ k.mT)).sum()`"
)
class ScaleWithoutGradient(DotDifferentiable):
    """The learned scale gets no gradient."""

    def scale_gradient(self, ds, product, arrays):
        return np.zeros(())


@fault("gradients", "`dx = dq @ w_q.mT`; add `dk @ w_k.mT` and `dv @ w_v.mT`")
class InputTakesQueryPathAlone(LayerDifferentiable):
    """In self-attention the input's gradient is that of the query alone."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        apart = super().gradients(arrays, cotangent, inputs.replace(self_attention=False))
        return super().gradients(arrays, cotangent, inputs) | {"query": apart["query"]}


@fault("gradients", "`dk = ds.mT @ q`; the scale is missing: `dk = scale * ds.mT @ q`")
class KeysTakeUnscaledQueries(LayerDifferentiable):
    """The scale is missing in the gradient of the keys."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        apart = super().gradients(arrays, cotangent, inputs.replace(self_attention=False))
        of_keys = {n: x for n, x in apart.items() if n.startswith("key")}
        if inputs.self_attention:
            of_keys["query"] = of_keys.pop("key")
        more = inputs.sizes.D**0.5 - 1
        return gradients | {n: gradients[n] + more * x for n, x in of_keys.items()}


@fault("gradients", "`dq = ds @ k`, `dk = ds.mT @ q`; both are times the scale")
class MaskedScaleForgotten(MaskedDifferentiable):
    """The scale is missing in the gradients of queries and keys."""

    def backward(self, arrays: Arrays, ds: np.ndarray) -> Arrays:
        gradients = super().backward(arrays, ds)
        return {name: x / self.number(arrays) for name, x in gradients.items()}


@fault("gradients", "backward recomputes `p` without the causal mask; keep it and apply it")
class MaskedRecomputedWithoutCausal(MaskedDifferentiable):
    """The backward pass recomputes the weights with the padding alone, without the causal mask."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        token = inputs.case.mask_token
        if token.startswith("causal+"):
            inputs = inputs.replace(mask=parse_mask(token.removeprefix("causal+")))
        return super().gradients(arrays, cotangent, inputs)


@fault("gradients", "`dx = r * (dy - dy.mean(-1))`; subtract `xhat * (dy * xhat).mean(-1)`, too")
class LayerNormVarianceConstant(LayerNormDifferentiable):
    """Layer norm's backward pass takes the variance for a constant."""

    def share(self, moved: np.ndarray, standard: Standard) -> Any:
        return 0.0


@fault("gradients", "`dx = r * (dy - xhat * (dy * xhat).mean(-1))`; subtract `dy.mean(-1)`, too")
class LayerNormMeanConstant(LayerNormDifferentiable):
    """Layer norm's backward pass takes the mean for a constant."""

    def level(self, moved: np.ndarray) -> Any:
        return 0.0


@fault("gradients", "`gain * (dy - dy.mean(-1) - ...)`; `dy = dy * gain` comes first")
class LayerNormGainAfterMeans(LayerNormDifferentiable):
    """Layer norm's backward pass multiplies by the gain after taking means, not before."""

    def input_gradient(self, dy, gain, standard, inputs):
        gradient = super().input_gradient(dy, None, standard, inputs)
        return gradient if gain is None else gradient * gain


@fault("gradients", "mean and `rstd` saved in 16 bits; save them in float32")
class LayerNormStatisticsNarrow(LayerNormDifferentiable):
    """Layer norm's mean and root reach the backward pass in 16 bits, which is not declared."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return rounded(super().standard(arrays, inputs), inputs)


@fault("gradients", "`db = db + dy[row]` in 16 bits; sum in float32, and round once")
class LayerNormOffsetSummedNarrowly(LayerNormDifferentiable):
    """The gradient of layer norm's offset is summed in 16 bits, which is not declared."""

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        return summed_by_rows(dy, inputs)


@fault("gradients", "`dx = gain * r * dy` in training, too; there mean and variance depend on x")
class BatchNormStatisticsConstant(BatchNormDifferentiable):
    """Batch norm's backward pass takes mean and variance of the batch for constants."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return replace(super().standard(arrays, inputs), learned=True)


@fault("gradients", "in evaluation `dx = gain * r * dy`: running mean and variance are constants")
class BatchNormEvaluatedLikeTrained(BatchNormDifferentiable):
    """In evaluation batch norm's backward pass differentiates running mean and variance."""

    def standard(self, arrays: Arrays, inputs: Inputs) -> Standard:
        return replace(super().standard(arrays, inputs), learned=False)


@fault("gradients", "`(dy * xhat).mean(0)`; sum over the samples: `(dy * xhat).sum((0, 1))`")
class BatchNormGainAveraged(BatchNormDifferentiable):
    """The gradient of batch norm's gain is a mean over the samples, not a sum."""

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        return super().gain_gradient(dy, standard, inputs) / len(dy)

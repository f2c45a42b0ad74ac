"""Faults of the backward passes of layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.layer_gradient import (
    AdditiveDifferentiable,
    Arrays,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
)
from attention_conformance.suite.faults.kernels.norm_gradient import (
    BatchNormDifferentiable,
    LayerNormDifferentiable,
    Standard,
    rounded,
    summed_by_rows,
)
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "gradient"


def kernel_gradient_of_first_sample(right: LayerDifferentiable, arrays, cotangent, inputs):
    kept = np.zeros_like(cotangent)
    kept[0] = cotangent[0]
    first = right.gradients(arrays, kept, inputs)
    gradients = right.gradients(arrays, cotangent, inputs)
    return gradients | {n: x for n, x in first.items() if n.endswith("kernel")}


def output_kernel_gradient_unmerged(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    kernel = gradients["output_kernel"]
    H, Dv, width = kernel.shape
    gradients["output_kernel"] = kernel.swapaxes(0, 1).reshape(H, Dv, width)
    return gradients


def projection_bias_without_gradient(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    if "query_bias" in gradients:
        gradients["query_bias"] = np.zeros_like(gradients["query_bias"])
    return gradients


def value_input_takes_key_kernel(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    if "value" in gradients and arrays["key_kernel"].shape == arrays["value_kernel"].shape:
        swapped = arrays | {"value_kernel": arrays["key_kernel"]}
        gradients["value"] = right.gradients(swapped, cotangent, inputs)["value"]
    return gradients


def output_bias_summed_narrowly(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    if "output_bias" in gradients:
        gradients["output_bias"] = summed_by_rows(cotangent, inputs)
    return gradients


def layer_empty_row_nan(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    empty = np.asarray((~inputs.attends.any(-1)).any(1))[..., None]
    return gradients | {"query": np.where(empty, np.nan, gradients["query"])}


@fault("gradients", "`(ds * scale * (q @ k.mT)).sum()`; it is `(ds * (q @ k.mT)).sum()`")
class ScaleGradientOfScaledScores(DotDifferentiable):
    """The gradient of the learned scale sums the scores after the scale, not before."""

    def scale_gradient(self, ds, product, arrays):
        return super().scale_gradient(ds, product, arrays) * self.number(arrays)


def input_takes_query_path_alone(
    right: LayerDifferentiable, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    apart = right.gradients(arrays, cotangent, inputs.replace(self_attention=False))
    return right.gradients(arrays, cotangent, inputs) | {"query": apart["query"]}


def keys_take_unscaled_queries(
    right: LayerDifferentiable, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    gradients = right.gradients(arrays, cotangent, inputs)
    apart = right.gradients(arrays, cotangent, inputs.replace(self_attention=False))
    of_keys = {n: x for n, x in apart.items() if n.startswith("key")}
    if inputs.self_attention:
        of_keys["query"] = of_keys.pop("key")
    more = inputs.sizes.D**0.5 - 1
    return gradients | {n: gradients[n] + more * x for n, x in of_keys.items()}


def layer_norm_gain_after_means(right: LayerNormDifferentiable, dy, gain, standard, inputs):
    gradient = right.input_gradient(dy, None, standard, inputs)
    return gradient if gain is None else gradient * gain


def layer_norm_statistics_narrow(
    right: LayerNormDifferentiable, arrays: Arrays, inputs: Inputs
) -> Standard:
    return rounded(right.standard(arrays, inputs), inputs)


def batch_norm_statistics_constant(
    right: BatchNormDifferentiable, arrays: Arrays, inputs: Inputs
) -> Standard:
    return replace(right.standard(arrays, inputs), learned=True)


def batch_norm_evaluated_like_trained(
    right: BatchNormDifferentiable, arrays: Arrays, inputs: Inputs
) -> Standard:
    return replace(right.standard(arrays, inputs), learned=False)


def batch_norm_gain_averaged(
    right: BatchNormDifferentiable, dy: np.ndarray, standard: Standard, inputs: Inputs
) -> np.ndarray:
    return right.gain_gradient(dy, standard, inputs) / len(dy)


row = partial(deviation, family=FAMILY, right=LayerDifferentiable)

DEVIATIONS = [
    row("kernel-gradient-of-first-sample", "gradients",
        "The gradients of the kernels are those of the first sample alone.",
        "`x[0].mT @ dy[0]`; sum over the samples: `(x.mT @ dy).sum(0)`",
        gradients=kernel_gradient_of_first_sample),
    row("output-kernel-gradient-unmerged", "gradients",
        "The gradient of the output kernel has heads and their features in the wrong order.",
        "`dw_o.view(Dv, H, E)`; heads come first: `dw_o.view(H, Dv, E)`",
        gradients=output_kernel_gradient_unmerged),
    row("projection-bias-without-gradient", "gradients",
        "The bias of the query projection gets no gradient.",
        "zeros or None for `b_q`; use `db_q = dq.sum((0, 1))`",
        gradients=projection_bias_without_gradient),
    row("value-input-takes-key-kernel", "gradients",
        "The gradient of the value input goes back through the kernel of keys, if it fits.",
        "`dv @ w_k.mT`; it is `dv @ w_v.mT`", gradients=value_input_takes_key_kernel),
    row("output-bias-summed-narrowly", "gradients",
        "The gradient of the output bias is summed in 16 bits, which is not declared.",
        "`db = db + dy[row]` in 16 bits; sum in float32, and round once",
        gradients=output_bias_summed_narrowly),
    row("layer-empty-row-nan", "gradients",
        "The gradient of a fully masked query is NaN, though it has an answer.",
        "`exp(s - lse)` where lse is -inf gives NaN; set p to 0 in fully masked rows",
        gradients=layer_empty_row_nan),
    row("layer-empty-row-poisons-values", "gradients",
        "A fully masked row hands its gradient to all values, though its answer is zero.",
        "backward's softmax gives fully masked rows weights of 1 / Lk; these rows add nothing to dv",
        facts={"empty_rows": "uniform"}),
    row("tanh-slope-forgotten", "gradients", "The derivative of the tanh is missing.",
        "the gradient goes on unchanged behind tanh; multiply by `1 - tanh ** 2`",
        right=AdditiveDifferentiable, slope=lambda right, h: np.ones_like(h)),
    row("score-vector-of-first-query", "gradients",
        "The gradient of the score vector is that of the first query alone.",
        "`[:, 0]` for the gradient of w; sum over all queries: `.sum((0, 1, 2))`",
        right=AdditiveDifferentiable,
        vector_gradient=lambda right, dr, h: right.vector_gradient(dr[:, :1], h[:, :1])),
    row("concat-weight-forgotten", "gradients",
        "The gradients through the scores of concat attention lack the learned weight.",
        "`ds` goes on unchanged; scores are `weight * ...`, so `ds * weight`",
        right=ConcatDifferentiable, weighted=lambda right, ds, weight: ds),
    row("scale-without-gradient", "gradients", "The learned scale gets no gradient.",
        "`scale.detach()`, or zeros in backward; use `dscale = (ds * (q @ k.mT)).sum()`",
        right=DotDifferentiable, scale_gradient=lambda right, ds, product, arrays: np.zeros(())),
    row("input-takes-query-path-alone", "gradients",
        "In self-attention the input's gradient is that of the query alone.",
        "`dx = dq @ w_q.mT`; add `dk @ w_k.mT` and `dv @ w_v.mT`",
        gradients=input_takes_query_path_alone),
    row("keys-take-unscaled-queries", "gradients",
        "The scale is missing in the gradient of the keys.",
        "`dk = ds.mT @ q`; the scale is missing: `dk = scale * ds.mT @ q`",
        gradients=keys_take_unscaled_queries),
    row("layer-norm-variance-constant", "gradients",
        "Layer norm's backward pass takes the variance for a constant.",
        "`dx = r * (dy - dy.mean(-1))`; subtract `xhat * (dy * xhat).mean(-1)`, too",
        right=LayerNormDifferentiable, share=lambda right, moved, standard: 0.0),
    row("layer-norm-mean-constant", "gradients",
        "Layer norm's backward pass takes the mean for a constant.",
        "`dx = r * (dy - xhat * (dy * xhat).mean(-1))`; subtract `dy.mean(-1)`, too",
        right=LayerNormDifferentiable, level=lambda right, moved: 0.0),
    row("layer-norm-gain-after-means", "gradients",
        "Layer norm's backward pass multiplies by the gain after taking means, not before.",
        "`gain * (dy - dy.mean(-1) - ...)`; `dy = dy * gain` comes first",
        right=LayerNormDifferentiable, input_gradient=layer_norm_gain_after_means),
    row("layer-norm-statistics-narrow", "gradients",
        "Layer norm's mean and root reach the backward pass in 16 bits, which is not declared.",
        "mean and `rstd` saved in 16 bits; save them in float32", right=LayerNormDifferentiable,
        standard=layer_norm_statistics_narrow),
    row("layer-norm-offset-summed-narrowly", "gradients",
        "The gradient of layer norm's offset is summed in 16 bits, which is not declared.",
        "`db = db + dy[row]` in 16 bits; sum in float32, and round once",
        right=LayerNormDifferentiable,
        offset_gradient=lambda right, dy, inputs: summed_by_rows(dy, inputs)),
    row("batch-norm-statistics-constant", "gradients",
        "Batch norm's backward pass takes mean and variance of the batch for constants.",
        "`dx = gain * r * dy` in training, too; there mean and variance depend on x",
        right=BatchNormDifferentiable, standard=batch_norm_statistics_constant),
    row("batch-norm-evaluated-like-trained", "gradients",
        "In evaluation batch norm's backward pass differentiates running mean and variance.",
        "in evaluation `dx = gain * r * dy`: running mean and variance are constants",
        right=BatchNormDifferentiable, standard=batch_norm_evaluated_like_trained),
    row("batch-norm-gain-averaged", "gradients",
        "The gradient of batch norm's gain is a mean over the samples, not a sum.",
        "`(dy * xhat).mean(0)`; sum over the samples: `(dy * xhat).sum((0, 1))`",
        right=BatchNormDifferentiable, gain_gradient=batch_norm_gain_averaged),
]  # fmt: skip

"""Faults of the backward passes of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import accumulate, deviation, edited
from attention_conformance.suite.deviations.kernels.call import Array
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    AdditiveDifferentiable,
    Arrays,
    BatchNormDifferentiable,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
    LayerNormDifferentiable,
    rounded,
    summed_by_rows,
)
from attention_conformance.suite.spec.inputs import Inputs


def gradients_of_part(suffix: str, index: Any) -> Callable[..., Arrays]:
    """Returns a step `gradients`. Parameters whose names end with `suffix` get the gradient for a part of
    the cotangent alone: `cotangent[index]`."""

    def gradients(right: LayerDifferentiable, arrays: Arrays, dy: Array, inputs: Inputs) -> Arrays:
        part = np.zeros_like(dy)
        part[index] = dy[index]
        part_gradients = right.gradients(arrays, part, inputs)
        all_gradients = right.gradients(arrays, dy, inputs)
        return {n: part_gradients[n] if n.endswith(suffix) else x for n, x in all_gradients.items()}

    return gradients


def output_kernel_unmerged(gradients: Arrays, *arguments: Any) -> Arrays:
    kernel = gradients["output_kernel"]
    return {"output_kernel": kernel.swapaxes(0, 1).reshape(kernel.shape)}


def value_gradient_by_key_kernel(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    if "value" in gradients and arrays["key_kernel"].shape == arrays["value_kernel"].shape:
        swapped = arrays | {"value_kernel": arrays["key_kernel"]}
        gradients["value"] = right.gradients(swapped, cotangent, inputs)["value"]
    return gradients


def input_gradient_of_query_alone(
    right: LayerDifferentiable, arrays: Arrays, cotangent: Array, inputs: Inputs
) -> Arrays:
    separate = right.gradients(arrays, cotangent, inputs.replace(self_attention=False))
    return right.gradients(arrays, cotangent, inputs) | {"query": separate["query"]}


row = partial(deviation, family="gradient", right=LayerDifferentiable)

DEVIATIONS = [
    row("scale-gradient-of-scaled-scores", "gradients",
        "The gradient of the learned scale sums the scores after the scale, not before.",
        "`(ds * scale * (q @ k.mT)).sum()`; it is `(ds * (q @ k.mT)).sum()`",
        right=DotDifferentiable,
        gradients=edited("gradients", lambda g, arrays, dy, inputs:
            {"scale": g["scale"] * inputs.arrays["scale"]} if "scale" in g else {})),
    row("kernel-gradient-of-first-sample", "gradients",
        "The gradients of the kernels are those of the first sample alone.",
        "`x[0].mT @ dy[0]`; sum over the samples: `(x.mT @ dy).sum(0)`",
        gradients=gradients_of_part("kernel", np.s_[:1])),
    row("output-kernel-gradient-unmerged", "gradients",
        "The gradient of the output kernel has heads and their features in the wrong order.",
        "`dw_o.view(Dv, H, E)`; heads come first: `dw_o.view(H, Dv, E)`",
        gradients=edited("gradients", output_kernel_unmerged)),
    row("projection-bias-without-gradient", "gradients",
        "The bias of the query projection gets no gradient.",
        "zeros or None for `b_q`; use `db_q = dq.sum((0, 1))`",
        gradients=edited("gradients", lambda g, *_: {"query_bias": 0 * g.get("query_bias", 0)})),
    row("value-input-takes-key-kernel", "gradients",
        "The gradient of the value input goes back through the kernel of keys, if it fits.",
        "`dv @ w_k.mT`; it is `dv @ w_v.mT`", gradients=value_gradient_by_key_kernel),
    row("output-bias-summed-narrowly", "gradients",
        "The gradient of the output bias is summed in 16 bits, which is not declared.",
        "`db = db + dy[row]` in 16 bits; sum in float32, and round once",
        gradients=edited("gradients", lambda g, arrays, dy, inputs:
            {"output_bias": summed_by_rows(dy, inputs)})),
    row("score-vector-of-first-query", "gradients",
        "The gradient of the score vector is that of the first query alone.",
        "`[:, 0]` for the gradient of w; sum over all queries: `.sum((0, 1, 2))`",
        right=AdditiveDifferentiable,
        gradients=gradients_of_part("score_vector", np.s_[:, :1])),
    row("concat-weight-forgotten", "gradients",
        "The gradients through the scores of concat attention lack the learned weight.",
        "`ds` goes on unchanged; scores are `weight * ...`, so `ds * weight`",
        right=ConcatDifferentiable, when=lambda inputs: "concat_weight" in inputs.arrays,
        gradients=edited("gradients", lambda g, arrays, dy, inputs:
            {n: g[n] / inputs.arrays["concat_weight"] for n in g if n in ("query", "key", "scale")})),
    row("scale-without-gradient", "gradients", "The learned scale gets no gradient.",
        "`scale.detach()`, or zeros in backward; use `dscale = (ds * (q @ k.mT)).sum()`",
        right=DotDifferentiable,
        gradients=edited("gradients", lambda g, *_: {"scale": 0 * g.get("scale", 0)})),
    row("input-takes-query-path-alone", "gradients",
        "In self-attention the input's gradient is that of the query alone.",
        "`dx = dq @ w_q.mT`; add `dk @ w_k.mT` and `dv @ w_v.mT`",
        gradients=input_gradient_of_query_alone),
    row("layer-norm-variance-constant", "gradients",
        "Layer norm's backward pass takes the variance for a constant.",
        "`dx = r * (dy - dy.mean(-1))`; subtract `xhat * (dy * xhat).mean(-1)`, too",
        right=LayerNormDifferentiable, variance_term=lambda right, dn, standard: 0.0),
    row("layer-norm-mean-constant", "gradients",
        "Layer norm's backward pass takes the mean for a constant.",
        "`dx = r * (dy - xhat * (dy * xhat).mean(-1))`; subtract `dy.mean(-1)`, too",
        right=LayerNormDifferentiable, mean_term=lambda right, dn: 0.0),
    row("layer-norm-gain-after-means", "gradients",
        "Layer norm's backward pass multiplies by the gain after taking means, not before.",
        "`gain * (dy - dy.mean(-1) - ...)`; `dy = dy * gain` comes first",
        right=LayerNormDifferentiable, when=lambda inputs: "gain" in inputs.arrays,
        input_gradient=lambda right, dy, gain, *rest: right.input_gradient(dy, None, *rest) * gain),
    row("layer-norm-statistics-narrow", "gradients",
        "Layer norm's mean and root reach the backward pass in 16 bits, which is not declared.",
        "mean and `rstd` saved in 16 bits; save them in float32", right=LayerNormDifferentiable,
        standard=lambda right, arrays, inputs: rounded(right.standard(arrays, inputs), inputs)),
    row("layer-norm-gain-accumulates", "gradient_passes",
        "The gradient of layer norm's gain is added to that of an earlier call.",
        "`atomic_add` into a kept buffer of dgain; set it to zero in every call", family="state",
        right=LayerNormDifferentiable, gain_gradient=lambda right, *arguments:
            accumulate(right, "gain", right.gain_gradient(*arguments))),
    row("batch-norm-statistics-constant", "gradients",
        "Batch norm's backward pass takes mean and variance of the batch for constants.",
        "`dx = gain * r * dy` in training, too; there mean and variance depend on x",
        right=BatchNormDifferentiable,
        standard=lambda right, arrays, inputs:
            replace(right.standard(arrays, inputs), learned=True)),
    row("batch-norm-evaluated-like-trained", "gradients",
        "In evaluation batch norm's backward pass differentiates running mean and variance.",
        "in evaluation `dx = gain * r * dy`: running mean and variance are constants",
        right=BatchNormDifferentiable,
        standard=lambda right, arrays, inputs:
            replace(right.standard(arrays, inputs), learned=False)),
    row("batch-norm-gain-averaged", "gradients",
        "The gradient of batch norm's gain is a mean over the samples, not a sum.",
        "`(dy * xhat).mean(0)`; sum over the samples: `(dy * xhat).sum((0, 1))`",
        right=BatchNormDifferentiable,
        gain_gradient=lambda right, dy, standard, inputs:
            right.gain_gradient(dy, standard, inputs) / len(dy)),
]  # fmt: skip

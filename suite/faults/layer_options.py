"""Faults of layers that break where options meet: dropout with masks, widths, groups, single inputs."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.layer import MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
)


def dropout_on_output_attend(right: MultiHeadKernel, weights, value, call):
    return right.dropped(right.attend(weights, value, call), call)


def additive_kernels_swapped(right: AdditiveKernel, x, name, call):
    p = call.parameters
    if "query_kernel" in p and p["query_kernel"].shape == p["key_kernel"].shape:
        name = {"query": "key", "key": "query"}[name]
    return right.projected(x, name, call)


def wide_values_cut(right: MultiHeadKernel, weights, value, call):
    features = right.attend(weights, value, call)
    features[..., call.sizes.D :] = 0
    return features


def single_average_keeps_batch(right: MultiHeadKernel, query, key, value, **rest):
    out, w = right.attention(query, key, value, **rest)
    if w is not None and query.values.ndim == 2 and rest["returned"] == "average":
        w = Rounded(w.values[None], w.fmt)
    return out, w


def concat_default_scale(right: ConcatKernel, name, call):
    n = right.number(name, call)
    return n / 2 if name == "scale" and "scale" not in call.parameters else n


def layer_needs_biases(right: MultiHeadKernel, name, call):
    return right.load(call.parameters[f"{name}_bias"], call).reshape(-1)


def scale_of_groups(right: MultiHeadKernel, call):
    return right.factor(call) * (call.sizes.Hkv / call.sizes.H) ** 0.5


def batch_norm_epsilon_in_evaluation(right: BatchNormKernel, variance, call):
    return right.reciprocal(variance - (not call.training) * call.work(call.epsilon), call)


def softmax_in_single(right: MultiHeadKernel, scores, call):
    return right.weights(scores.astype(np.float32), call).astype(call.work)


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("dropout-on-output", "dropout", "Dropout drops features of the heads' output, not weights.",
        "`dropout(weights @ v)`; it is `dropout(weights) @ v`", family="dropout",
        dropped=lambda right, weights, call: weights, attend=dropout_on_output_attend),
    row("additive-kernels-swapped", "values",
        "The kernels of query and key are exchanged, if shapes fit.",
        "`w_k(query) + w_q(key)`; it is `w_q(query) + w_k(key)`", right=AdditiveKernel,
        projected=additive_kernels_swapped),
    row("wide-values-cut", "values", "Features of values beyond the size of the keys are zero.",
        "an output of size D a head; it has Dv features, as the values have", family="shapes",
        attend=wide_values_cut),
    row("single-average-keeps-batch", "values",
        "Average weights of an input without a batch axis come back with one.",
        "`weights.mean(1)` without `squeeze(0)` for inputs (L, E)", family="shapes",
        attention=single_average_keeps_batch),
    row("causal-lost-with-arate", "dropout_off",
        "In a layer with dropout the causal flag has no effect, not in evaluation either.",
        "a path for layers with dropout that leaves out the causal mask", family="mask",
        causal=lambda right, call: right.causal(call) | (call.rate > 0)),
    row("causal-lost-with-dropout", "dropout",
        "The causal flag has no effect while weights are dropped.",
        "a path for training with dropout that leaves out the causal mask", family="mask",
        causal=lambda right, call: right.causal(call) | (right.rate(call) > 0)),
    row("padding-lost-with-dropout", "dropout", "Padding has no effect while weights are dropped.",
        "a path for training with dropout that leaves out the padding", family="mask",
        padded=lambda right, valid, call: right.padded(valid | (right.rate(call) > 0), call)),
    row("padding-lost-across", "values", "In cross-attention padding has no effect.",
        "padding is used `if query is key` alone; it belongs to the keys", family="mask",
        padded=lambda right, valid, call: right.padded(valid | (not call.own), call)),
    row("padding-lost-without-batch", "values", "Without a batch axis padding has no effect.",
        "a path for inputs (L, E) that leaves out the padding", family="mask",
        padded=lambda right, valid, call: right.padded(valid | call.single, call)),
    row("causal-lost-with-average-weights", "values",
        "The causal flag has no effect if average weights are returned.",
        "a path for returned average weights that leaves out the causal mask", family="mask",
        causal=lambda right, call: right.causal(call) | (call.returned == "average")),
    row("concat-causal-ignored", "future", "In concat attention the causal flag has no effect.",
        '`use_causal_mask` is accepted and not used with `score_mode="concat"`', family="mask",
        right=ConcatKernel, causal=lambda right, call: np.ones_like(right.causal(call))),
    row("concat-default-scale", "values",
        "Concat attention without a learned scale multiplies by 1/2.",
        "a default of 0.5 for the scale; without `use_scale` it is 1", family="scale",
        right=ConcatKernel, number=concat_default_scale),
    row("additive-causal-lost-with-projection", "values",
        "In additive attention with projected queries the causal flag has no effect.",
        "a path for projected queries that leaves out the causal mask", family="mask",
        right=AdditiveKernel,
        causal=lambda right, call: right.causal(call) | ("query_kernel" in call.parameters)),
    row("layer-needs-biases", "values", "Without biases the call fails.",
        "`self.b_q.reshape(-1)` where `b_q` is None; ask `if b_q is not None`",
        bias=layer_needs_biases),
    row("scale-of-groups", "values",
        "With grouped heads the scale is smaller by the root of Hkv / H.",
        "`D = width // Hkv` for the width of all query heads; it is `D = width // H`",
        family="scale", factor=scale_of_groups),
    row("mask-lost-with-padding", "values", "Beside padding a boolean mask has no effect.",
        "`valid if valid is not None else mask`; both apply: `mask & valid`", family="mask",
        masked=lambda right, mask, call: mask | (call.valid is not None)),
    row("mask-lost-with-bias", "values", "Beside a float mask a boolean mask has no effect.",
        "a float mask replaces the boolean one; both apply: `where(mask, scores + bias, -inf)`",
        family="mask", masked=lambda right, mask, call: mask | (call.bias is not None)),
    row("batch-norm-epsilon-in-evaluation", "values",
        "Batch norm leaves out epsilon in evaluation.",
        "`rsqrt(running_var)`; it is `rsqrt(running_var + eps)`", right=BatchNormKernel,
        reciprocal=batch_norm_epsilon_in_evaluation),
    row("softmax-in-single", "precision",
        "The softmax of a float64 layer runs in float32, as the layer declares.",
        "`softmax(scores.float())`; float64 layers need it in float64", family="numerics",
        facts={"numerics": {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}},
        weights=softmax_in_single),
]  # fmt: skip

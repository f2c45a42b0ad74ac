"""Faults of layers of one head, of norms, of gates and of an encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import deviation, edited, twins
from attention_conformance.suite.deviations.kernels.encoder import (
    EncoderDifferentiable,
    EncoderEager,
    EncoderKernel,
)
from attention_conformance.suite.deviations.kernels.layer import Array, LayerCall, MultiHeadKernel
from attention_conformance.suite.deviations.kernels.layer_gradient import LayerDifferentiable
from attention_conformance.suite.deviations.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
    NormKernel,
)
from attention_conformance.suite.deviations.precision import enlarged
from attention_conformance.suite.deviations.problems import apply_changes, array_problem


def tanh_of_weighted_units(right: AdditiveKernel, pairs: Array, call: LayerCall) -> Array:
    vector = right.unit_weights(call)
    return np.tanh(pairs if vector is None else pairs * vector)


def moments_without_mean(right: LayerNormKernel, x: Array, call: LayerCall) -> tuple[Array, Array]:
    mean, variance = right.moments(x, call)
    return mean * 0, variance


def moments_in_one_pass(right: NormKernel, x: Array, call: LayerCall) -> tuple[Array, Array]:
    mean, _ = right.moments(x, call)
    return mean, np.maximum(np.square(x).mean(right.axes, keepdims=True) - np.square(mean), 0)


def moments_with_padding(right: LayerNormKernel, x: Array, call: LayerCall) -> tuple[Array, Array]:
    mean, variance = right.moments(x, call)
    width = x.shape[-1]
    padded = (1 << (width - 1).bit_length()) - width
    return mean, variance + np.square(mean) * call.work(padded / width)


def moments_unbiased_in_training(
    right: BatchNormKernel, x: Array, call: LayerCall
) -> tuple[Array, Array]:
    mean, variance = right.moments(x, call)
    tokens = x.shape[0] * x.shape[1]
    return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


def queries_scaled_before_norm(
    right: MultiHeadKernel, x: Array, name: str, call: LayerCall
) -> Array:
    if name == "query" and right.gain(name, call) is not None:
        return right.normed(x, name, call) * call.work(np.sqrt(call.sizes.D))
    return right.normed(x, name, call)


def gain_before_the_norm(right: MultiHeadKernel, x: Array, name: str, call: LayerCall) -> Array:
    gain = right.gain(name, call)
    return x if gain is None else right.keep(right.standardised(x * gain, call), "features", call)


def bias_added_after_norm(right: MultiHeadKernel, x: Array, name: str, call: LayerCall) -> Array:
    y, bias = right.normed(x, name, call), right.bias(name, call)
    if bias is None or right.gain(name, call) is None:
        return y
    return y + bias.reshape(-1, 1, y.shape[-1])


def without_biases(call: LayerCall) -> LayerCall:
    parameters = {n: x for n, x in call.parameters.items() if not n.endswith("_bias")}
    return replace(call, parameters=parameters)


def gate_of_the_first_row(right: MultiHeadKernel, call: LayerCall) -> Array:
    gate = right.gate(call)
    return np.broadcast_to(gate[:, :, :1], gate.shape)


def output_times_gate(right: MultiHeadKernel, merged: Array, call: LayerCall) -> Array:
    y = right.output(merged, call)
    if "gate_kernel" not in call.parameters:
        return y
    return y * right.merge(right.gate(call), call)[..., : y.shape[-1]]


def compute_norms_last(right: EncoderKernel, call: LayerCall) -> tuple[Array, Array]:
    call.__dict__["pre"] = False
    return right.compute(call)


def attention_of_normed_residual(right: EncoderKernel, x: Array, call: LayerCall) -> Array:
    attended = right.attention_output(x, call)
    return attended + x - right.load(call.query, call) if call.pre else attended


def deliver_zeros_for_padding(right: EncoderKernel, out: Array, call: LayerCall) -> Any:
    if call.valid is not None:
        out = np.where(call.valid.values[..., None], out, 0)
    return right.deliver(out, call)


row = partial(deviation, family="layer", right=AdditiveKernel)
normed = partial(deviation, family="layer", right=MultiHeadKernel)
gated = partial(deviation, family="layer", right=MultiHeadKernel)
encoder = partial(deviation, family="layer", right=EncoderKernel)

DEVIATIONS = [
    row("concat-scale-outside", "values",
        "The learned scale of concat attention multiplies the tanh, not what is inside it.",
        "`scale * tanh(q + k)`; it is `tanh(scale * (q + k))`", right=ConcatKernel,
        pairs=lambda right, query, key, call: right.pairs(query, key, call),
        tanh_units=lambda right, pairs, call:
            right.tanh_units(pairs, call) * right.scalar_parameter("scale", call)),
    row("tanh-omitted", "values", "Additive scores have no tanh.",
        "`((q + k) * w).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`",
        tanh_units=lambda right, pairs, call: pairs),
    row("tanh-of-each", "values",
        "Additive scores take the tanh of query and key each, not of their sum.",
        "`tanh(q) + tanh(k)`; additive scores take `tanh(q + k)`",
        pairs=lambda right, query, key, call: right.pairs(np.tanh(query), np.tanh(key), call),
        tanh_units=lambda right, pairs, call: pairs),
    row("score-vector-ignored", "values",
        "Additive scores do not weight the units with the score vector.",
        "`tanh(q + k).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`",
        problem=array_problem("score_vector", np.ones_like)),
    row("score-vector-inside", "values",
        "Additive scores multiply by the score vector before the tanh, not after it.",
        "`tanh(w * (q + k)).sum(-1)`; additive scores are `(w * tanh(q + k)).sum(-1)`",
        tanh_units=tanh_of_weighted_units, unit_weights=lambda right, call: None),
    row("additive-scores-scaled", "values",
        "Additive scores are divided by the root of the number of units.",
        "`/ sqrt(units)` behind the sum; additive scores are not scaled", family="scale",
        scores=lambda right, query, key, call:
            right.scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))),
    row("query-projection-omitted", "values",
        "Additive scores leave out the queries, if these are projected.",
        "`tanh(w_k(key))`; additive scores take `tanh(w_q(query) + w_k(key))`",
        pairs=lambda right, query, key, call:
            right.pairs(query * ("query_kernel" not in call.parameters), key, call)),
    row("key-minus-query", "values", "Additive scores subtract the queries from the keys.",
        "`tanh(k - q)`; additive scores take `tanh(q + k)`",
        pairs=lambda right, query, key, call: right.pairs(-query, key, call)),
    row("learned-scale-ignored", "values", "Scores are not multiplied by the learned scale.",
        "`q @ k.mT` without `* self.scale` (`use_scale=True` of Keras)", family="scale",
        right=DotKernel, problem=array_problem("scale", np.ones_like)),
    row("learned-scale-divides", "values", "Scores are divided by the learned scale.",
        "`q @ k.mT / self.scale`; multiply: `q @ k.mT * self.scale`", family="scale",
        right=DotKernel, problem=array_problem("scale", np.reciprocal)),
    row("dot-scores-scaled", "values",
        "Without a learned scale the scores of dot attention are divided by the root of D.",
        "`q @ k.mT / sqrt(D)`; without `use_scale` dot attention does not scale", family="scale",
        right=DotKernel, when=lambda call: "scale" not in call.parameters,
        scale=lambda right, call: 1 / call.work(math.sqrt(call.query.shape[-1]))),
    row("concat-weight-ignored", "values",
        "The scores of concat attention are not multiplied by the learned weight.",
        "`tanh(scale * (q + k)).sum(-1)` without `* concat_score_weight`", right=ConcatKernel,
        problem=array_problem("concat_weight", np.ones_like)),
    *twins({"epsilon-outside-root": LayerNormKernel, "epsilon-behind-the-root": EncoderKernel,
            "norm-epsilon-behind-the-root": MultiHeadKernel}, "values",
        "A norm adds epsilon to the root of the variance, not to the variance.",
        "`(x - mean) / (sqrt(var) + eps)`; it is `(x - mean) / sqrt(var + eps)`", family="layer",
        reciprocal=lambda right, variance, call: 1 / (np.sqrt(variance) + call.work(call.epsilon))),
    row("variance-unbiased", "values",
        "Layer norm divides the variance by one less than the number of features.",
        "`x.var(-1)`, which torch divides by n - 1; use `x.var(-1, unbiased=False)`",
        right=LayerNormKernel,
        moments=lambda right, x, call: (x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1))),
    row("layer-norm-variance-in-one-pass", "values",
        "Layer norm computes the variance as the mean of squares minus the square of the mean.",
        "`(x * x).mean(-1) - mean**2`; it is `((x - mean) ** 2).mean(-1)`", family="numerics",
        right=LayerNormKernel, moments=moments_in_one_pass),
    row("batch-norm-variance-in-one-pass", "values",
        "Batch norm computes the variance as the mean of squares minus the square of the mean.",
        "`(x * x).mean((0, 1)) - mean**2`; it is `((x - mean) ** 2).mean((0, 1))`",
        family="numerics", right=BatchNormKernel, when=lambda call: call.training,
        moments=moments_in_one_pass),
    row("padding-in-the-variance", "values",
        "Layer norm's variance counts the zeros that pad features to a power of two.",
        "`tl.sum((x - mean) ** 2)` of a padded block; `tl.where(cols < N, x - mean, 0.0)`",
        family="shapes", right=LayerNormKernel, moments=moments_with_padding),
    row("layer-norm-over-positions", "values",
        "Layer norm takes mean and variance over the positions.",
        "`x.mean(1)`; mean and variance are over the features, `dim=-1`", right=LayerNormKernel,
        facts={"axes": (1,)}),
    row("layer-norm-over-sample", "values",
        "Layer norm takes mean and variance over all tokens and features of a sample.",
        "`F.layer_norm(x, x.shape[1:])`; normalise each token: `(x.shape[-1],)`",
        right=LayerNormKernel, facts={"axes": (1, 2)}),
    row("layer-norm-of1024-features", "values",
        "Layer norm takes mean and variance over the first 1024 features.",
        "one block of 1024 features without a loop; mean and variance are over all features",
        family="tiles", right=LayerNormKernel,
        moments=lambda right, x, call: right.moments(x[..., :1024], call)),
    row("layer-norm-not-centred", "values", "Layer norm does not subtract the mean.",
        "`x * rsqrt(var + eps)`; it is `(x - mean) * rsqrt(var + eps)`", right=LayerNormKernel,
        moments=moments_without_mean),
    *twins({"gain-is-one-plus": LayerNormKernel, "norm-gain-is-one-plus": MultiHeadKernel}, "values",
        "A norm multiplies by 1 + gain, not by the gain.",
        "`y * (1 + gain)`, for a gain that starts at 0; it is `y * gain`", family="layer",
        problem=partial(apply_changes, lambda inputs:
            {n: 1 + x for n, x in inputs.arrays.items() if n.endswith("gain")})),
    row("gain-before-the-norm", "values",
        "Features are multiplied by the gain before the norm, not after it.",
        "`norm(x * gain)`; it is `norm(x) * gain`", right=LayerNormKernel,
        problem=partial(apply_changes, lambda inputs:
            {"query": inputs.arrays["query"] * inputs.arrays["gain"],
             "gain": np.ones_like(inputs.arrays["gain"])})),
    row("batch-norm-per-position", "values",
        "Batch norm takes mean and variance of every position by itself.",
        "`x.mean(0)`; mean and variance are over samples and positions: `x.mean((0, 1))`",
        right=BatchNormKernel, facts={"axes": (0,)}),
    row("batch-norm-per-sample", "values",
        "Batch norm takes mean and variance of every sample by itself.",
        "`x.mean(1)`; mean and variance are over samples and positions: `x.mean((0, 1))`",
        right=BatchNormKernel, facts={"axes": (1,)}),
    row("batch-variance-unbiased", "values",
        "Batch norm divides the variance of the batch by one less than the number of tokens.",
        "`x.var((0, 1))`, which torch divides by n - 1; use `unbiased=False`",
        right=BatchNormKernel, moments=moments_unbiased_in_training),
    row("learned-moments-in-training", "values",
        "Batch norm uses the running mean and variance in training, too.",
        "`running_mean` and `running_var` in training; there those of the batch are used",
        right=BatchNormKernel,
        moments=lambda right, x, call: right.moments(x, replace(call, training=False))),
    row("batch-moments-in-evaluation", "values",
        "Batch norm uses mean and variance of the batch in evaluation, too.",
        "`F.batch_norm(..., training=True)` in evaluation; use `running_mean`, `running_var`",
        right=BatchNormKernel,
        moments=lambda right, x, call: right.moments(x, replace(call, training=True))),
    normed("queries-alone-normalised", "values", "Queries are normalised, keys are not.",
        "`q = norm_q(q)` without `k = norm_k(k)`",
        normed=lambda right, x, name, call: right.normed(x, name, call) if name == "query" else x),
    normed("norm-of-all-heads", "values",
        "The norm of queries and keys takes mean and variance over the features of all heads.",
        "norm of (H, D) together, or before the split into heads; each head by itself, `dim=-1`",
        facts={"normed_axes": (1, 3)}),
    normed("norm-without-mean", "values", "The norm of queries and keys does not subtract the mean.",
        "`RMSNorm` in place of `LayerNorm`; subtract the mean",
        norm_centre=lambda right, x: np.zeros_like(x)),
    normed("gain-of-the-keys-forgotten", "values",
        "Keys are normalised, but not multiplied by their gain.", "`norm(k)` without `* gain_k`",
        problem=array_problem("key_gain", np.ones_like)),
    normed("norm-gain-before-the-norm", "values",
        "Queries and keys are multiplied by their gains before the norm, not after it.",
        "`norm(q * gain)`; it is `norm(q) * gain`", normed=gain_before_the_norm),
    normed("queries-scaled-before-their-norm", "values",
        "Queries are scaled before they are normalised, which takes the scale away again.",
        "`norm(q * scale)`, which loses the scale; it is `norm(q) * scale`", family="scale",
        normed=queries_scaled_before_norm),
    normed("norm-before-the-bias", "values",
        "Biases of the projections are added after the norm of queries and keys, not before.",
        "`norm(x @ w) + b`; it is `norm(x @ w + b)`",
        projected=lambda right, x, name, call: right.projected(x, name, without_biases(call)
            if right.gain(name, call) is not None else call), normed=bias_added_after_norm),
    normed("nothing-added-to-the-variance", "values",
        "The norm of queries and keys adds no epsilon, or a smaller one.",
        "`rsqrt(var)`, or a default; it is `rsqrt(var + eps)`",
        reciprocal=lambda right, variance, call: 1 / np.sqrt(variance)),
    normed("gains-taken-for-constants", "gradients",
        "The gains of the norms of queries and keys get no gradient.",
        "`gain.detach()`, or no gradient for it in backward; use `dgain = (dy * normed).sum(...)`",
        family="gradient", right=LayerDifferentiable,
        gradients=edited("gradients", lambda g, *_: {n: 0 * g[n] for n in g if n.endswith("gain")})),
    gated("gate-left-out", "values", "The heads are not gated.",
        "`w_o(heads)`; it is `w_o(heads * sigmoid(w_g(x)))`",
        gate=lambda right, call: np.ones_like(right.gate(call))),
    gated("gate-on-the-values", "values",
        "Every token gates its own values before attention, not the heads of its own row.",
        "`v * gate` before `p @ v`; a gate multiplies the heads of a query: `(p @ v) * gate`",
        when=lambda call: "gate_kernel" in call.parameters and call.self_attention,
        attend=lambda right, weights, value, call:
            right.attend(weights, value * right.gate(call), call),
        apply_gate=lambda right, attended, call: attended),
    gated("gate-not-squashed", "values", "The gate has no sigmoid.",
        "`heads * w_g(x)`; it is `heads * sigmoid(w_g(x))`", sigmoid=lambda right, y: y),
    gated("gate-of-the-next-head", "values", "Every head has the gate of the head before it.",
        "`gate[:, h - 1]`; head h has `gate[:, h]`", family="heads",
        gate=lambda right, call: np.roll(right.gate(call), 1, axis=1)),
    gated("gate-of-the-first-row", "values", "All rows of a sample have the gate of its first row.",
        "`gate[:, :1]` for all rows; every token has its own gate", gate=gate_of_the_first_row),
    gated("gate-without-its-bias", "values", "The bias of the gate is left out.",
        "`F.linear(x, w_g)` without `b_g`; use `x @ w_g + b_g`",
        problem=array_problem("gate_bias", np.zeros_like)),
    gated("gate-behind-the-mixing", "values",
        "The output is gated, not the heads before the output projection.",
        "`w_o(heads) * gate`; it is `w_o(heads * gate)`",
        apply_gate=lambda right, attended, call: attended, output=output_times_gate),
    encoder("second-norm-is-the-first", "values", "The second norm has gain and offset of the first.",
        "`self.norm1` twice; the second norm is `self.norm2`",
        norm=lambda right, x, name, call: right.norm(x, "norm1", call)),
    encoder("norms-always-behind", "values",
        "Norms come after the residuals, also if they are asked for first.",
        "`norm_first` is accepted and not used; then it is `x + attend(norm(x))`",
        compute=compute_norms_last),
    encoder("residual-of-what-is-normed", "values",
        "With norms first, the residual adds the normed tokens, not the tokens.",
        "`x = norm(x)`, then `x + attend(x)`; it is `x + attend(norm(x))`",
        attention_output=attention_of_normed_residual),
    encoder("first-residual-left-out", "values", "Attention has no residual.",
        "`x = attend(x)`; it is `x + attend(x)`",
        attention_residual=lambda right, x, attended, call:
            right.attention_residual(0 * x, attended, call)),
    encoder("second-residual-left-out", "values", "The feed-forward network has no residual.",
        "`y = network(y)`; it is `y + network(y)`",
        network_residual=lambda right, y, network, call: right.network_residual(0 * y, network, call)),
    encoder("second-residual-twice", "values",
        "The residual of the feed-forward network is added twice.",
        "`network(y) + y` inside the network, and `y +` outside; add y once",
        network_residual=lambda right, y, network, call: right.network_residual(2 * y, network, call)),
    encoder("second-residual-of-the-input", "values",
        "The residual of the feed-forward network adds the tokens of the layer, not what attention gave.",
        "`x + network(y)`; it is `y + network(y)`",
        network_residual=lambda right, y, network, call:
            right.network_residual(right.load(call.query, call), network, call)),
    encoder("gelu-by-tanh", "values", "gelu is approximated by a hyperbolic tangent.",
        '`F.gelu(h, approximate="tanh")`; the exact one has `erf`', family="numerics",
        gelu=lambda right, h: h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2),
    encoder("relu-for-gelu", "values", "The activation is relu, whatever is asked for.",
        "`F.relu(h)` whatever `activation` says", gelu=lambda right, h: np.maximum(h, 0)),
    encoder("mask-once-for-both", "values", "Beside padding a mask of queries and keys has no effect.",
        "`src_key_padding_mask` replaces `src_mask`; both apply: `mask & valid`", family="mask",
        when=lambda call: call.valid is not None,
        allowed=lambda right, call: right.padding_mask(call.valid.values, call)),
    encoder("padded-rows-are-zeros", "values", "Tokens that are padding get zeros, not an answer.",
        "`out.masked_fill(padding, 0)`; padded tokens are answered like others", family="mask",
        deliver=deliver_zeros_for_padding),
    encoder("hidden-layer-off", "spread",
        "In bfloat16 the hidden layer of the network is 1 % too large.",
        "a factor on the bfloat16 path alone, as a constant with two digits", family="numerics",
        right=EncoderEager,
        activated=lambda right, h, call: enlarged(right.activated(h, call), call.fmt.name)),
    encoder("gradient-of-the-other-offset", "gradients",
        "The offset of the first norm gets the gradient of the second.",
        "the gradients of two norms are returned in a wrong order: `norm1.bias` has its own",
        family="gradient", right=EncoderDifferentiable,
        gradients=edited("gradients", lambda g, *_: {"norm1_offset": g["norm2_offset"]})),
    encoder("inner-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the network's first kernel is 1 % too large.",
        "a factor on the bfloat16 path alone, as a constant with two digits", family="gradient",
        right=EncoderDifferentiable, facts={"numerics": "eager"},
        gradients=edited("gradients", lambda g, arrays, dy, inputs:
            {"linear1_kernel": enlarged(g["linear1_kernel"], inputs.dtype.name)})),
]  # fmt: skip

"""Faults of multi-head attention whose queries and keys are normalised."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.layer_gradient import LayerDifferentiable


def queries_alone_normalised(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    return right.normed(x, name, call) if name == "query" else x


def gain_of_the_keys_forgotten(
    right: MultiHeadKernel, name: str, call: LayerCall
) -> np.ndarray | None:
    gain = right.gain(name, call)
    return np.ones_like(gain) if name == "key" and gain is not None else gain


def queries_scaled_before_their_norm(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    if name == "query" and right.gain(name, call) is not None:
        return right.normed(x, name, call) * call.work(np.sqrt(call.sizes.D))
    return right.normed(x, name, call)


def norm_before_the_bias_projected(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    normalises = right.gain(name, call) is not None
    return right.projected(x, name, _without_biases(call) if normalises else call)


def norm_before_the_bias_normed(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    y, bias = right.normed(x, name, call), right.bias(name, call)
    if bias is None or right.gain(name, call) is None:
        return y
    return y + bias.reshape(-1, 1, y.shape[-1])


def gains_taken_for_constants(right: LayerDifferentiable, arrays, cotangent, inputs):
    gradients = right.gradients(arrays, cotangent, inputs)
    return gradients | {n: 0 * x for n, x in gradients.items() if n.endswith("gain")}


def _without_biases(call: LayerCall) -> LayerCall:
    kept = {n: a for n, a in call.parameters.items() if not n.endswith("_bias")}
    return replace(call, parameters=kept)


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("queries-alone-normalised", "values", "Queries are normalised, keys are not.",
        "`q = norm_q(q)` without `k = norm_k(k)`", normed=queries_alone_normalised),
    row("norm-of-all-heads", "values",
        "The norm of queries and keys takes mean and variance over the features of all heads.",
        "norm of (H, D) together, or before the split into heads; each head by itself, `dim=-1`",
        facts={"normed_axes": (1, 3)}),
    row("norm-without-mean", "values", "The norm of queries and keys does not subtract the mean.",
        "`RMSNorm` in place of `LayerNorm`; subtract the mean",
        level=lambda right, x: np.zeros_like(x)),
    row("gain-of-the-keys-forgotten", "values",
        "Keys are normalised, but not multiplied by their gain.", "`norm(k)` without `* gain_k`",
        gain=gain_of_the_keys_forgotten),
    row("queries-scaled-before-their-norm", "values",
        "Queries are scaled before they are normalised, which takes the scale away again.",
        "`norm(q * scale)`, which loses the scale; it is `norm(q) * scale`", family="scale",
        normed=queries_scaled_before_their_norm),
    row("norm-before-the-bias", "values",
        "Biases of the projections are added after the norm of queries and keys, not before.",
        "`norm(x @ w) + b`; it is `norm(x @ w + b)`", projected=norm_before_the_bias_projected,
        normed=norm_before_the_bias_normed),
    row("nothing-added-to-the-variance", "values",
        "The norm of queries and keys leaves out epsilon.",
        "`rsqrt(var)`; it is `rsqrt(var + eps)`",
        reciprocal=lambda right, variance, call: 1 / np.sqrt(variance)),
    row("gains-taken-for-constants", "gradients",
        "The gains of the norms of queries and keys get no gradient.",
        "`gain.detach()`, or no gradient for it in backward; use `dgain = (dy * normed).sum(...)`",
        family="gradient", right=LayerDifferentiable, gradients=gains_taken_for_constants),
]  # fmt: skip

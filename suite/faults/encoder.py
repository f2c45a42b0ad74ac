"""Faults of a layer of an encoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.encoder import (
    EncoderDifferentiable,
    EncoderEager,
    EncoderKernel,
)
from attention_conformance.suite.faults.kernels.layer import LayerCall
from attention_conformance.suite.faults.kernels.layer_gradient import Arrays
from attention_conformance.suite.faults.spread import off
from attention_conformance.suite.spec.inputs import Inputs


def norms_always_behind(right: EncoderKernel, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
    call.__dict__["pre"] = False
    return right.compute(call)


def residual_of_what_is_normed(right: EncoderKernel, x: np.ndarray, call: LayerCall) -> np.ndarray:
    attended = right.attended(x, call)
    return attended + x - right.load(call.query, call) if call.pre else attended


def gelu_by_tanh(right: EncoderKernel, h: np.ndarray) -> np.ndarray:
    return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2


def epsilon_behind_the_root(
    right: EncoderKernel, variance: np.ndarray, call: LayerCall
) -> np.ndarray:
    return 1 / (np.sqrt(variance) + call.work(call.epsilon))


def mask_once_for_both(right: EncoderKernel, call: LayerCall) -> np.ndarray | None:
    if call.valid is not None:
        return right.padded(call.valid.values, call)
    return right.allowed(call)


def padded_rows_are_zeros(right: EncoderKernel, out: np.ndarray, call: LayerCall) -> Any:
    if call.valid is not None:
        out = np.where(call.valid.values[..., None], out, 0)
    return right.deliver(out, call)


def gradient_of_the_other_offset(
    right: EncoderDifferentiable, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    gradients = right.gradients(arrays, cotangent, inputs)
    return gradients | {"norm1_offset": gradients["norm2_offset"]}


def inner_gradient_off(
    right: EncoderDifferentiable, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs
) -> Arrays:
    gradients = right.gradients(arrays, cotangent, inputs)
    return gradients | {"linear1_kernel": off(gradients["linear1_kernel"], inputs.dtype.name)}


row = partial(deviation, family="layer", right=EncoderKernel)

DEVIATIONS = [
    row("second-norm-is-the-first", "values", "The second norm has gain and offset of the first.",
        "`self.norm1` twice; the second norm is `self.norm2`",
        norm=lambda right, x, name, call: right.norm(x, "norm1", call)),
    row("norms-always-behind", "values",
        "Norms come after the residuals, also if they are asked for first.",
        "`norm_first` is accepted and not used; then it is `x + attend(norm(x))`",
        compute=norms_always_behind),
    row("residual-of-what-is-normed", "values",
        "With norms first, the residual adds the normed tokens, not the tokens.",
        "`x = norm(x)`, then `x + attend(x)`; it is `x + attend(norm(x))`",
        attended=residual_of_what_is_normed),
    row("second-residual-left-out", "values", "The feed-forward network has no residual.",
        "`y = network(y)`; it is `y + network(y)`",
        network=lambda right, y, call: right.network(y, call) - y),
    row("gelu-by-tanh", "values", "gelu is approximated by a hyperbolic tangent.",
        '`F.gelu(h, approximate="tanh")`; the exact one has `erf`', family="numerics",
        gelu=gelu_by_tanh),
    row("relu-for-gelu", "values", "The activation is relu, whatever is asked for.",
        "`F.relu(h)` whatever `activation` says", gelu=lambda right, h: np.maximum(h, 0)),
    row("epsilon-behind-the-root", "values",
        "A norm adds epsilon to the root of the variance, not to the variance.",
        "`(x - mean) / (sqrt(var) + eps)`; it is `(x - mean) / sqrt(var + eps)`",
        reciprocal=epsilon_behind_the_root),
    row("mask-once-for-both", "values", "Beside padding a mask of queries and keys has no effect.",
        "`src_key_padding_mask` replaces `src_mask`; both apply: `mask & valid`", family="mask",
        allowed=mask_once_for_both),
    row("padded-rows-are-zeros", "values", "Tokens that are padding get zeros, not an answer.",
        "`out.masked_fill(padding, 0)`; padded tokens are answered like others", family="mask",
        deliver=padded_rows_are_zeros),
    row("hidden-layer-off", "spread",
        "In bfloat16 the hidden layer of the network is 1 % too large.",
        "a factor on the bfloat16 path alone, as a constant with two digits", family="numerics",
        right=EncoderEager,
        activated=lambda right, h, call: off(right.activated(h, call), call.fmt.name)),
    row("gradient-of-the-other-offset", "gradients",
        "The offset of the first norm gets the gradient of the second.",
        "the gradients of two norms are returned in a wrong order: `norm1.bias` has its own",
        family="gradient", right=EncoderDifferentiable, gradients=gradient_of_the_other_offset),
    row("inner-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the network's first kernel is 1 % too large.",
        "a factor on the bfloat16 path alone, as a constant with two digits", family="gradient",
        right=EncoderDifferentiable, facts={"numerics": "eager"}, gradients=inner_gradient_off),
]  # fmt: skip

"""Faults of layers: returned weights, state, and malformed calls that are answered."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import (
    deviation,
    memory,
    storing_argument,
)
from attention_conformance.suite.deviations.kernels.layer import (
    LayerCall,
    LayerHolding,
    MultiHeadKernel,
)
from attention_conformance.suite.deviations.kernels.single import AdditiveKernel, DotKernel
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs


def answer_with_float32_weights(answer: Any, inputs: Inputs) -> Any:
    output, weights = answer
    return output, weights and Rounded(weights.values, DTYPES["f32"])


def attention_adding_bias_in_place(
    right: MultiHeadKernel, query: Rounded, key: Rounded, value: Rounded, **options: Any
) -> Any:
    answer, bias = right.attention(query, key, value, **options), options.get("query_bias")
    if bias is not None and bias.values.size == query.shape[-1]:
        query.values[...] += bias.values.reshape(-1)
    return answer


def factor_scaling_kernel_in_place(right: MultiHeadKernel, call: LayerCall) -> float:
    factor = right.factor(call)
    call.parameters["query_kernel"].values[...] *= factor
    return factor


def mask_shifting_padding_in_place(
    right: MultiHeadKernel, valid: np.ndarray, call: LayerCall
) -> np.ndarray:
    mask = right.padding_mask(valid.copy(), call)
    valid[:, 1:] |= valid[:, :-1].copy()
    return mask


def projection_of_common_width(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    kernel = right.kernel(name, call)[: x.shape[-1]]
    y = right.with_bias(x @ kernel.reshape(len(kernel), -1), name, call)
    return right.split(y, kernel.shape[1], call)


def causal_mask_of_first_call(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    first_mask = memory(right).setdefault("causal", right.causal(call)[:4, :4])
    repeats = -(-call.sizes.Lk // 4)
    return np.tile(first_mask, (repeats, repeats))[: call.sizes.Lq, : call.sizes.Lk]


def deliver_with_last_output(right: AdditiveKernel, out: np.ndarray, call: LayerCall) -> Any:
    last = memory(right).get("output", out * 0)
    memory(right)["output"] = out
    return right.deliver(out + last / 8 if last.shape == out.shape else out, call)


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("state-kept-between-calls", "contract",
        "Every call adds an eighth of the answer before it, if shapes fit.",
        "a buffer that still holds the answer before; clear it at every call",
        family="state", right=AdditiveKernel, deliver=deliver_with_last_output),
    row("causal-mask-kept", "values",
        "The causal mask of the first call is cut for shorter calls and repeated for longer ones.",
        "`self.causal` made at the first call; make it for Lq and Lk of every call", family="state",
        causal=causal_mask_of_first_call),
    row("parameters-shared", "values",
        "Layers whose kernels have the same shapes share the parameters of the first.",
        "weights kept in a cache under their shape; the layer belongs to the key", family="state",
        kernel=lambda right, name, call: memory(right).setdefault(
            (name, call.parameters[f"{name}_kernel"].shape, call.fmt.name),
            right.kernel(name, call))),
    row("weights-are-scores", "values", "Scores come back in place of the weights.",
        "`return out, scores`; return `softmax(scores)`", weights=storing_argument("weights"),
        returned_weights=lambda right, weights, call: right.returned_weights(
            np.where(np.isneginf(memory(right)["weights"]), 0, memory(right)["weights"]), call)),
    row("hidden-weights-returned", "values", "Returned weights are those without the mask.",
        "`softmax(scores)` before the mask is returned; return the weights that attend",
        right=DotKernel, hide=storing_argument("hide"),
        returned_weights=lambda right, weights, call:
            right.returned_weights(right.weights(memory(right)["hide"], call), call)),
    row("weights-summed", "values",
        "Returned average weights are the sum over the heads, not the mean.",
        "`weights.sum(1)`; the average over the heads is `weights.mean(1)`",
        when=lambda call: call.returned == "average",
        returned_weights=lambda right, weights, call: weights.sum(1)),
    row("weights-of-first-head", "values", "Returned average weights are those of the first head.",
        "`weights[:, 0]`; the average over the heads is `weights.mean(1)`",
        when=lambda call: call.returned == "average",
        returned_weights=lambda right, weights, call: weights[:, 0]),
    row("first-head-for-all", "values",
        "The weights returned for every head are those of the first.",
        "`weights[:, :1].expand(-1, H, -1, -1)`; return every head's own",
        when=lambda call: call.returned == "head",
        returned_weights=lambda right, weights, call: np.repeat(weights[:, :1], weights.shape[1], 1)),
    row("weights-transposed", "values", "With Lq == Lk the weights returned are transposed.",
        "`weights.mT`; the axes of weights are (..., query, key)",
        when=lambda call: call.sizes.Lq == call.sizes.Lk,
        returned_weights=lambda right, weights, call:
            right.returned_weights(weights, call).swapaxes(-1, -2)),
    row("average-attends", "values",
        "If average weights are asked for, all heads attend with them.",
        "`weights = weights.mean(1)` before `weights @ v`; average only what is returned",
        when=lambda call: call.returned == "average",
        attend=lambda right, weights, value, call:
            right.attend(0 * weights + weights.mean(1, keepdims=True), value, call)),
    row("weights-in-float32", "values", "Weights come back in float32 whatever the dtype.",
        "`softmax(scores.float())` is returned; use `.to(q.dtype)`", family="contract",
        answer=answer_with_float32_weights),
    row("weights-always-averaged", "values",
        "Weights are averaged over the heads, though those of every head are asked for.",
        "`weights.mean(1)` although `average_attn_weights=False`",
        returned_weights=lambda right, weights, call: weights.mean(1)),
    row("weights-after-dropout", "election",
        "The weights returned are those after dropout, though those before it are declared.",
        "`weights = dropout(weights)` is returned; keep those before it", family="dropout",
        weights=lambda right, scores, call: right.dropped(right.weights(scores, call), call),
        dropped=lambda right, weights, call: weights),
    row("query-bias-added-in-place", "contract",
        "The query's bias is added to the caller's own array.",
        "`query += b_q`; use `q = query + b_q`", family="contract",
        attention=attention_adding_bias_in_place),
    row("kernel-scaled-in-place", "contract",
        "Every call multiplies the query's kernel by the scale, in place.",
        "`self.w_q *= scale` in `forward`; use `w_q * scale`", family="contract",
        factor=factor_scaling_kernel_in_place),
    row("padding-shifted-in-place", "contract",
        "Every call makes one key more valid in the caller's padding mask.",
        "`valid[:, 1:] |= ...` on the caller's mask; work on a copy", family="contract",
        padding_mask=mask_shifting_padding_in_place),
    row("layer-folded-at-creation", "stateless",
        "The layer computes with copies of its parameters that were made when it was created.",
        "weights folded or packed in the constructor; make them of the parameters at every call",
        family="state", right=LayerHolding, used_parameters=lambda right, own_arrays, copies: copies),
    row("layer-mask-cut-to-fit", "bad_problem", "A mask that is too large is cut, not refused.",
        "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast",
        family="contract", validate_mask=lambda right, *_: None,
        masked=lambda right, mask, call:
            mask[: call.sizes.B, : call.sizes.H, : call.sizes.Lq, : call.sizes.Lk]),
    row("query-width-cut", "bad_problem",
        "A query that is too narrow is projected with the first rows of the kernel.",
        "`x @ w_q[: x.shape[-1]]`; raise ValueError if the widths differ", family="contract",
        validate_widths=lambda right, *_: None, projected=projection_of_common_width),
]  # fmt: skip

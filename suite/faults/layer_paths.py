"""Faults of layers where masks meet options, or on one path alone."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import AdditiveKernel
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def padding_lost_with_groups(
    right: MultiHeadKernel, valid: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.padded(valid | (call.sizes.H != call.sizes.Hkv), call)


def bias_lost_without_gradients(
    right: MultiHeadKernel, scores: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.biased(scores, call) if call.gradients else scores


def half_sums_in_training(
    right: MultiHeadKernel, x: np.ndarray, what: str, call: LayerCall
) -> np.ndarray:
    coarse = call.training and what == "features"
    return round_to(x, DTYPES["bf16"]).astype(call.work) if coarse else x


def one_memory_one_kernel(right: MultiHeadKernel, name: str, call: LayerCall) -> np.ndarray:
    shared = name == "value" and call.key is call.value and not call.own
    return right.kernel("key" if shared else name, call)


row = partial(deviation, family="layer", right=MultiHeadKernel)

DEVIATIONS = [
    row("padding-lost-with-mask", "values", "Beside a boolean mask padding has no effect.",
        "`mask if mask is not None else valid`; both apply: `mask & valid`", family="mask",
        padded=lambda right, valid, call: right.padded(valid | (call.mask is not None), call)),
    row("padding-lost-with-bias", "values", "Beside a float mask padding has no effect.",
        "a path for float masks that leaves out the padding", family="mask",
        padded=lambda right, valid, call: right.padded(valid | (call.bias is not None), call)),
    row("padding-lost-with-groups", "values", "With grouped heads padding has no effect.",
        "a path for grouped heads that leaves out the padding", family="mask",
        padded=padding_lost_with_groups),
    row("causal-lost-with-bias", "values", "Beside a float mask the causal flag has no effect.",
        "a path for float masks that leaves out the causal mask", family="mask",
        causal=lambda right, call: right.causal(call) | (call.bias is not None)),
    row("causal-lost-for-one-query", "values", "With one query the causal flag has no effect.",
        "`is_causal and Lq > 1`; top-left, one query sees key 0 alone", family="mask",
        causal=lambda right, call: right.causal(call) | (call.sizes.Lq == 1)),
    row("padding-ignored-for-one-query", "values",
        "For a query without a length axis padding has no effect.",
        "a path for a query (B, E) that leaves out the padding", family="mask",
        right=AdditiveKernel,
        padded=lambda right, valid, call: right.padded(valid | call.single, call)),
    row("causal-lost-in-training", "paths", "In training the causal flag has no effect.",
        "a path for `training=True` that leaves out the causal mask", family="mask",
        causal=lambda right, call: right.causal(call) | call.training),
    row("padding-lost-without-gradients", "paths",
        "If no gradients are asked for, padding has no effect.",
        "the fast path of `torch.no_grad()` leaves out the padding", family="mask",
        padded=lambda right, valid, call: right.padded(valid | (not call.gradients), call)),
    row("mask-lost-without-gradients", "paths",
        "If no gradients are asked for, a boolean mask has no effect.",
        "the fast path of `torch.no_grad()` leaves out the mask", family="mask",
        masked=lambda right, mask, call: mask | (not call.gradients)),
    row("scale-missing-with-weights", "paths",
        "Scores are not scaled if the weights of every head are returned.",
        "a path for `need_weights=True` without `/ sqrt(D)`", family="scale",
        factor=lambda right, call: 1.0 if call.returned == "head" else right.factor(call)),
    row("dense-mask-shifted", "paths", "A boolean mask is read one key off.",
        "`mask[..., j - 1]`; key j has `mask[..., j]`", family="mask",
        masked=lambda right, mask, call: np.roll(mask, 1, -1)),
    row("bias-lost-without-gradients", "paths",
        "If no gradients are asked for, a float mask has no effect.",
        "the fast path of `torch.no_grad()` leaves out the float mask", family="scores",
        biased=bias_lost_without_gradients),
    row("half-sums-in-training", "paths",
        "In training features are rounded to bfloat16, whatever the dtype.",
        '`autocast("cpu", torch.bfloat16)` around training; keep the dtype of the input',
        family="numerics", keep=half_sums_in_training),
    row("causal-alone-ignored", "election",
        "The causal flag is taken for a hint about the mask: without a mask it has no effect.",
        "`is_causal` read as a hint about `attn_mask`; alone, too, it hides", family="mask",
        causal=lambda right, call: right.causal(call) | (call.mask is None)),
    row("one-memory-one-kernel", "one_memory",
        "Keys and values that are one array are both projected by the kernel of keys.",
        "`if key is value: v = w_k(key)`; values have `w_v`, also if both are one array",
        kernel=one_memory_one_kernel),
]  # fmt: skip

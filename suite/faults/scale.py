"""Faults of the scale of the scores."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.spec.dtypes import round_to


def scale_one_is_default(right: Kernel, call: Call) -> float:
    return 1.0 / math.sqrt(call.sizes.D) if call.scale in (None, 1.0) else call.scale


def scale_of_padded_size(right: Kernel, call: Call) -> float:
    padded = -(-call.sizes.D // 8) * 8
    return 1.0 / math.sqrt(padded) if call.scale is None else call.scale


def scale_of_all_heads(right: Kernel, call: Call) -> float:
    s = call.sizes
    return 1.0 / math.sqrt(max(s.H, 1) * s.D) if call.scale is None else call.scale


def scale_twice(right: Kernel, call: Call) -> float:
    return (1.0 if call.scale is None else call.scale) / math.sqrt(call.sizes.D)


def unscaled_scores_overflow(
    right: Kernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    product = query @ key.swapaxes(-1, -2)
    if call.fmt.name == "f16":
        product = np.where(np.abs(product) > call.fmt.max, np.copysign(np.inf, product), product)
    return product * call.work(right.factor(call))


def query_scaled_in_dtype(
    right: Eager, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    factor = call.work(right.factor(call))
    scaled: np.ndarray = round_to(query * factor, call.fmt).astype(call.work)
    return right.keep(scaled @ key.swapaxes(-1, -2), "scores", call)


def scale_one_percent_off(right: Eager, call: Call) -> float:
    return right.factor(call) * (1.01 if call.fmt.name == "bf16" else 1.0)


row = partial(deviation, family="scale", right=Kernel)

DEVIATIONS = [
    row("scale-ignored", "values", "An explicit scale has no effect.",
        "`scale = 1 / sqrt(D)` always; use `scale if scale is not None else 1 / sqrt(D)`",
        factor=lambda right, call: 1.0 / math.sqrt(call.sizes.D)),
    row("default-scale-is-one", "default_scale", "Without an explicit scale nothing is scaled.",
        "`q @ k.mT` without `/ sqrt(D)`; the default of `scale` is `1 / sqrt(D)`, not 1",
        factor=lambda right, call: 1.0 if call.scale is None else call.scale),
    row("scale-zero-is-default", "values", "A scale of 0 is replaced by the default one.",
        "`scale or 1 / sqrt(D)`; 0 is false in Python, so ask `scale is None`",
        factor=lambda right, call: call.scale or 1.0 / math.sqrt(call.sizes.D)),
    row("scale-one-is-default", "score_variance", "A scale of 1 is replaced by the default one.",
        '`if scale == 1.0` for "not given"; use `scale=None` as the default',
        factor=scale_one_is_default),
    row("scale-sign-lost", "values", "A negative scale becomes positive.",
        "`s = sqrt(abs(scale))` and `(q * s) @ (k * s).mT`; the sign of `scale` is lost",
        factor=lambda right, call: abs(right.factor(call))),
    row("scale-of-padded-size", "default_scale",
        "The default scale is that of D rounded up to a multiple of 8.",
        "`1 / sqrt(q.shape[-1])` after q was padded; take D before padding",
        factor=scale_of_padded_size),
    row("scale-of-all-heads", "default_scale",
        "The default scale is that of all heads together, 1 / sqrt(H D).",
        "`1 / sqrt(embed_dim)`; a head has `D = embed_dim // num_heads`, so `1 / sqrt(D)`",
        factor=scale_of_all_heads),
    row("scale-twice", "values", "An explicit scale is multiplied onto the default one.",
        "`q @ k.mT * scale / sqrt(D)`; a given scale replaces `1 / sqrt(D)`", factor=scale_twice),
    row("scale-rounded", "values", "The scale is rounded to the 16-bit dtype of the operands.",
        "`torch.tensor(scale, dtype=q.dtype)`; multiply by a Python float or in float32",
        family="numerics", right=Fused,
        factor=lambda right, call: float(round_to(right.factor(call), call.fmt))),
    row("scale-through-float32", "precision", "The scale of a float64 call passes through float32.",
        "`np.float32(scale)`, or a kernel argument `float scale`; float64 needs `double`",
        family="numerics", factor=lambda right, call: float(np.float32(right.factor(call)))),
    row("unscaled-scores-overflow", "election",
        "The product of queries and keys overflows in float16 before it is scaled.",
        "`(q @ k.mT) * scale` in float16; scale q first, or keep the product in float32",
        family="numerics", scores=unscaled_scores_overflow),
    row("query-scaled-in-dtype", "values",
        "The query is scaled and rounded to its 16-bit dtype before the product.",
        "`(q * scale) @ k.mT` with `q * scale` in 16 bits; scale the product in float32",
        family="numerics", right=Eager, scores=query_scaled_in_dtype),
    row("scale-one-percent-off", "values", "In bfloat16 the scale is one percent too large.",
        "a scale typed in with two digits, on the bfloat16 path alone; compute `1 / sqrt(D)`",
        right=Eager, factor=scale_one_percent_off),
]  # fmt: skip

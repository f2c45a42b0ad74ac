"""Faults of precision: of the arithmetic, of stored intermediate arrays, and of the last rounding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import (
    deviation,
    edited,
    memory,
    storing_argument,
)
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.deviations.kernels.gradient import DifferentiableEager
from attention_conformance.suite.deviations.kernels.layer import LayerEager
from attention_conformance.suite.deviations.kernels.layer_gradient import LayerDifferentiable
from attention_conformance.suite.deviations.kernels.variants import FlashFused, WorkingPrecision
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def toward_zero(rounded: np.ndarray, exact: np.ndarray, call: Call) -> np.ndarray:
    """Returns 16-bit numbers that are cut off: where rounding made |exact| larger, the next number
    towards zero replaces `rounded`. Numbers of other dtypes are returned unchanged."""
    if not call.fmt.is_half:
        return rounded
    step = np.ldexp(1.0, np.frexp(rounded)[1] - call.fmt.precision)
    smaller = round_to(rounded - np.sign(rounded) * step, call.fmt).astype(rounded.dtype)
    return np.where(np.abs(rounded) > np.abs(exact), smaller, rounded)


def exponential_in_float32(right: Kernel, shifted: np.ndarray) -> np.ndarray:
    return np.exp(shifted.astype(np.float32)).astype(shifted.dtype)


def truncated_to_eleven_bits(x: np.ndarray) -> np.ndarray:
    """Returns x in float32, with significands cut to eleven bits."""
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def deliver_without_subnormals(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    tiny = np.abs(answer.values) < call.fmt.smallest_normal
    return Rounded(np.where(tiny, 0.0, answer.values), call.fmt)


def truncating(truncated_kind: str) -> Callable[..., np.ndarray]:
    """Returns a step `keep` that cuts off intermediate arrays of one kind, in place of rounding them."""

    def keep(right: Fused | Eager, x: np.ndarray, kind: str, call: Call) -> np.ndarray:
        stored = right.keep(x, kind, call)
        return toward_zero(stored, x, call) if kind == truncated_kind else stored

    return keep


def weights_of_rounded_total(right: Fused, scores: np.ndarray, call: Call) -> np.ndarray:
    exponentials = right.raised(right.shifted(scores))
    total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
    for j in range(scores.shape[-1]):
        total = round_to(total + exponentials[..., j, None], call.fmt).astype(scores.dtype)
    return right.keep(exponentials / np.where(total == 0, 1, total), "weights", call)


def rescale_and_round(
    right: FlashFused, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return total * rescale, right.keep(out * rescale, "weights", memory(right)["compute"])


def enlarged(x: np.ndarray, dtype: str) -> np.ndarray:
    """Returns 1.01 x for the dtype "bf16", else x."""
    return x * x.dtype.type(1.01) if dtype == "bf16" else x


row = partial(deviation, family="numerics", right=Kernel)
spread = partial(deviation, family="numerics", right=LayerEager)

exponent = partial(row, raised=exponential_in_float32)

DEVIATIONS = [
    exponent("exponent-in-float32", "precision",
        "The exponential of a float64 call is taken in float32.",
        "`exp(s.float())`, `expf(s)`; float64 needs the exponential of doubles"),
    exponent("single-inside", "precision",
        "The exponential of a float64 call is taken in float32, as the kernel declares.",
        "`exp(s.float())`, `expf(s)`; float64 needs the exponential of doubles",
        facts={"numerics": {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}}),
    row("sums-in-dtype", "precision", "Sums run in 16 bits, as the kernel declares.",
        "`acc` of dtype float16 or bfloat16; accumulate in float32", right=WorkingPrecision),
    row("tensor-float32", "precision",
        "float32 products of queries and keys keep eleven bits of each factor (TF32).",
        '`allow_tf32 = True`, or `tl.dot` as it is; ask for `input_precision="ieee"`',
        when=lambda call: call.fmt.name == "f32",
        scores=lambda right, query, key, call:
            right.scores(truncated_to_eleven_bits(query), truncated_to_eleven_bits(key), call)),
    row("float64-in-float32", "precision", "A float64 call computes in float32.",
        "`.float()` on the operands, or accumulators of type `float`; compute float64 in float64",
        load=lambda right, array, call: array.values.astype(np.float32)),
    row("weights-in-bfloat16", "precision", "Weights are rounded to bfloat16, whatever the dtype.",
        "`p.bfloat16() @ v`; round weights at most to the dtype of v",
        keep=lambda right, x, kind, call:
            round_to(x, DTYPES["bf16"]).astype(x.dtype) if kind == "weights" else x),
    row("eager-declared-exact", "values",
        "Scores and weights are rounded to 16 bits, though no rounding inside is declared.",
        "`softmax(q @ k.mT) @ v` in 16 bits; compute in float32, or declare `--numerics=eager`",
        facts={"stores": Eager.stores}),
    row("fused-declared-exact", "values",
        "Weights are rounded to 16 bits, though no rounding inside is declared.",
        "`p.to(v.dtype) @ v`; keep p in float32, or declare `--numerics=fused`",
        facts={"stores": Fused.stores}),
    row("scores-stored-in-fused", "values",
        "Scores are rounded to 16 bits, though only weights are declared to be.",
        "`q @ k.mT` gives 16-bit scores; keep them in float32, or declare `--numerics=eager`",
        right=FlashFused,
        keep=lambda right, x, kind, call: round_to(x, call.fmt).astype(call.work)),
    row("sums-in-dtype-declared-eager", "precision",
        "Sums run in 16 bits, though only the stored arrays are declared to have them.",
        "`acc` of dtype float16 or bfloat16; accumulate in float32", right=WorkingPrecision,
        facts={"numerics": "eager"}),
    row("output-truncated", "values", "The answer is cut off, not rounded, to 16 bits.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even",
        deliver=lambda right, out, call:
            Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)),
    row("output-through-float16", "values", "A bfloat16 answer passes through float16.",
        "`.half()` before `.bfloat16()`; convert float32 to bfloat16 at once",
        deliver=lambda right, out, call:
            right.deliver(round_to(out, DTYPES["f16"]) if call.fmt.name == "bf16" else out, call)),
    row("subnormals-flushed", "election",
        "Answers below the smallest normal number are zero, though they are declared to be kept.",
        "`-ffast-math`, `set_flush_denormal(True)`; keep subnormals, or declare them flushed",
        deliver=deliver_without_subnormals),
    row("weights-truncated", "values", "Weights are cut off, not rounded, to 16 bits.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Fused,
        keep=truncating("weights")),
    row("total-in-dtype", "values", "The sum of the exponentials runs in 16 bits.",
        "`l` of dtype float16 or bfloat16; sum exponentials in float32", right=Fused,
        weights=weights_of_rounded_total),
    row("accumulator-in-dtype", "values",
        "The running output is rounded to 16 bits between tiles.",
        "`acc = acc.to(q.dtype)` in the loop over tiles; keep acc in float32", right=FlashFused,
        compute=storing_argument("compute"), rescaled=rescale_and_round),
    row("scores-truncated", "values", "Scores are cut off, not rounded, to 16 bits.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Eager,
        keep=truncating("scores")),
    row("output-truncated-in-eager", "nearest",
        "The answer is cut off, not rounded, to 16 bits, as are scores and weights rounded before.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Eager,
        deliver=lambda right, out, call:
            Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)),
    spread("layer-scores-off", "spread", "In bfloat16 the scores of a layer are 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale",
        scores=lambda right, query, key, call: enlarged(right.scores(query, key, call), call.fmt.name)),
    spread("scale-off-by-athousandth", "spread",
        "In float16 the scale is 0.1 % too large, in a kernel that stores its weights in float16.",
        "a scale with three digits on the float16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale", right=Fused,
        factor=lambda right, call: right.factor(call) * (1.001 if call.fmt.name == "f16" else 1.0)),
    spread("query-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the queries is 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; `dq = scale * ds @ k`",
        family="gradient", right=DifferentiableEager, backward=edited("backward",
            lambda g, call, *_: {"query": enlarged(g["query"], call.fmt.name)})),
    spread("key-gradient-off", "gradient_spread",
        "In bfloat16 the gradient that a layer hands on to its keys is 1 % too large.",
        "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
        family="gradient", right=LayerDifferentiable, facts={"numerics": "eager"},
        gradients=edited("gradients", lambda g, arrays, dy, inputs:
            {"key": enlarged(g["key"], inputs.dtype.name)})),
]  # fmt: skip

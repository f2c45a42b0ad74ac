"""Faults of the precision inside, in what is stored, and in the last rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, memory, remembering
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.deviations.kernels.gradient import DifferentiableEager
from attention_conformance.suite.deviations.kernels.layer import LayerEager
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    LayerDifferentiable,
)
from attention_conformance.suite.deviations.kernels.variants import (
    FlashFused,
    WorkingPrecision,
)
from attention_conformance.suite.deviations.layer_gradients import changed
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def toward_zero(rounded: np.ndarray, exact: np.ndarray, call: Call) -> np.ndarray:
    """16-bit numbers, rounded from `exact`, moved to the next number towards zero where they had
    grown; other dtypes as they are."""
    if not call.fmt.is_half:
        return rounded
    step = np.ldexp(1.0, np.frexp(rounded)[1] - call.fmt.precision)
    cut = round_to(rounded - np.sign(rounded) * step, call.fmt).astype(rounded.dtype)
    return np.where(np.abs(rounded) > np.abs(exact), cut, rounded)


def in_float32(right: Kernel, shifted: np.ndarray) -> np.ndarray:
    return np.exp(shifted.astype(np.float32)).astype(shifted.dtype)


def truncated(x: np.ndarray) -> np.ndarray:
    """float32 numbers with eleven bits."""
    return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def subnormals_flushed(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    tiny = np.abs(answer.values) < call.fmt.smallest_normal
    return Rounded(np.where(tiny, 0.0, answer.values), call.fmt)


def weights_truncated(right: Fused, x: np.ndarray, what: str, call: Call) -> np.ndarray:
    kept = right.keep(x, what, call)
    return toward_zero(kept, x, call) if what == "weights" else kept


def total_in_dtype(right: Fused, scores: np.ndarray, call: Call) -> np.ndarray:
    raised = right.raised(right.shifted(scores))
    total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
    for j in range(scores.shape[-1]):
        total = round_to(total + raised[..., j, None], call.fmt).astype(scores.dtype)
    return right.keep(raised / np.where(total == 0, 1, total), "weights", call)


def running_in_the_dtype(
    right: FlashFused, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return total * rescale, right.keep(out * rescale, "weights", memory(right)["compute"])


def scores_truncated(right: Eager, x: np.ndarray, what: str, call: Call) -> np.ndarray:
    kept = right.keep(x, what, call)
    return toward_zero(kept, x, call) if what == "scores" else kept


def off(x: np.ndarray, dtype: str, only: str = "bf16", by: float = 1.01) -> np.ndarray:
    """x, larger by a factor in the dtype `only`."""
    return x * x.dtype.type(by) if dtype == only else x


def query_gradient_off(
    right: DifferentiableEager, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
) -> dict[str, np.ndarray | None]:
    gradients = right.backward(call, cotangent, wrt)
    assert gradients["query"] is not None
    return gradients | {"query": off(gradients["query"], call.fmt.name)}


row = partial(deviation, family="numerics", right=Kernel)
spread = partial(deviation, family="numerics", right=LayerEager)

exponent = partial(row, raised=in_float32)

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
            right.scores(truncated(query), truncated(key), call)),
    row("float64-in-float32", "precision", "A float64 call computes in float32.",
        "`.float()` on the operands, or accumulators of type `float`; compute float64 in float64",
        load=lambda right, array, call: array.values.astype(np.float32)),
    row("weights-in-bfloat16", "precision", "Weights are rounded to bfloat16, whatever the dtype.",
        "`p.bfloat16() @ v`; round weights at most to the dtype of v",
        keep=lambda right, x, what, call:
            round_to(x, DTYPES["bf16"]).astype(x.dtype) if what == "weights" else x),
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
        keep=lambda right, x, what, call: round_to(x, call.fmt).astype(call.work)),
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
        deliver=subnormals_flushed),
    row("weights-truncated", "values", "Weights are cut off, not rounded, to 16 bits.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Fused,
        keep=weights_truncated),
    row("total-in-dtype", "values", "The sum of the exponentials runs in 16 bits.",
        "`l` of dtype float16 or bfloat16; sum exponentials in float32", right=Fused,
        weights=total_in_dtype),
    row("accumulator-in-dtype", "values",
        "The running output is rounded to 16 bits between tiles.",
        "`acc = acc.to(q.dtype)` in the loop over tiles; keep acc in float32", right=FlashFused,
        compute=remembering("compute"), rescaled=running_in_the_dtype),
    row("scores-truncated", "values", "Scores are cut off, not rounded, to 16 bits.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Eager,
        keep=scores_truncated),
    row("output-truncated-in-eager", "nearest",
        "The answer is cut off, not rounded, to 16 bits, as are scores and weights rounded before.",
        "`bits >> 16` or a conversion with `_rz`; round to nearest even", right=Eager,
        deliver=lambda right, out, call:
            Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)),
    spread("layer-scores-off", "spread", "In bfloat16 the scores of a layer are 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale",
        scores=lambda right, query, key, call: off(right.scores(query, key, call), call.fmt.name)),
    spread("scale-off-by-athousandth", "spread",
        "In float16 the scale is 0.1 % too large, in a kernel that stores its weights in float16.",
        "a scale with three digits on the float16 path alone; compute `1 / sqrt(D)` in float32",
        family="scale", right=Fused,
        factor=lambda right, call: right.factor(call) * (1.001 if call.fmt.name == "f16" else 1.0)),
    spread("query-gradient-off", "gradient_spread",
        "In bfloat16 the gradient of the queries is 1 % too large.",
        "a scale with two digits on the bfloat16 path alone; `dq = scale * ds @ k`",
        family="gradient", right=DifferentiableEager, backward=query_gradient_off),
    spread("key-gradient-off", "gradient_spread",
        "In bfloat16 the gradient that a layer hands on to its keys is 1 % too large.",
        "a factor on the bfloat16 path alone, as a scale with two digits; compute it in float32",
        family="gradient", right=LayerDifferentiable, facts={"numerics": "eager"},
        gradients=changed(lambda g, dy, inputs: {"key": off(g["key"], inputs.dtype.name)})),
]  # fmt: skip

"""Faults of the precision inside, in what is stored, and in the last rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.faults.kernels.variants import (
    FlashFused,
    StepByStep,
    WorkingPrecision,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "numerics"


def toward_zero(rounded: np.ndarray, exact: np.ndarray, call: Call) -> np.ndarray:
    """16-bit numbers, rounded from `exact`, moved to the next number towards zero where they had
    grown; other dtypes as they are."""
    if not call.fmt.is_half:
        return rounded
    step = np.ldexp(1.0, np.frexp(rounded)[1] - call.fmt.precision)
    cut = round_to(rounded - np.sign(rounded) * step, call.fmt).astype(rounded.dtype)
    return np.where(np.abs(rounded) > np.abs(exact), cut, rounded)


@fault(
    "precision",
    "`.float()` on the operands, or accumulators of type `float`; compute float64 in float64",
)
class Float64InFloat32(Kernel):
    """A float64 call computes in float32."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return array.values.astype(np.float32)


@fault("precision", "`exp(s.float())`, `expf(s)`; float64 needs the exponential of doubles")
class ExponentInFloat32(Kernel):
    """The exponential of a float64 call is taken in float32."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.exp(shifted.astype(np.float32)).astype(shifted.dtype)


@fault("precision", "`exp(s.float())`, `expf(s)`; float64 needs the exponential of doubles")
class SingleInside(ExponentInFloat32):
    """The exponential of a float64 call is taken in float32, as the kernel declares."""

    numerics = {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}


@fault("precision", '`allow_tf32 = True`, or `tl.dot` as it is; ask for `input_precision="ieee"`')
class TensorFloat32(Kernel):
    """float32 products of queries and keys keep eleven bits of each factor (TF32)."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        if call.fmt.name == "f32":
            query, key = (self.truncated(x) for x in (query, key))
        return super().scores(query, key, call)

    def truncated(self, x: np.ndarray) -> np.ndarray:
        return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@fault("precision", "`p.bfloat16() @ v`; round weights at most to the dtype of v")
class WeightsInBfloat16(Kernel):
    """Weights are rounded to bfloat16, whatever the dtype."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        return round_to(x, DTYPES["bf16"]).astype(x.dtype) if what == "weights" else x


@fault(
    "values", "a scale typed in with three digits; compute `1 / sqrt(D)` in float32", family="scale"
)
class StepwiseScaleOff(StepByStep):
    """In float16 the scale is 0.3 % too large, in a kernel that rounds every step."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.003 if call.fmt.name == "f16" else 1.0)


@fault(
    "values",
    "`softmax(q @ k.mT) @ v` in 16 bits; compute in float32, or declare `--numerics=eager`",
)
class EagerDeclaredExact(Kernel):
    """Scores and weights are rounded to 16 bits, though no rounding inside is declared."""

    stores = Eager.stores


@fault("values", "`p.to(v.dtype) @ v`; keep p in float32, or declare `--numerics=fused`")
class FusedDeclaredExact(Kernel):
    """Weights are rounded to 16 bits, though no rounding inside is declared."""

    stores = Fused.stores


@fault(
    "values", "`q @ k.mT` gives 16-bit scores; keep them in float32, or declare `--numerics=eager`"
)
class ScoresStoredInFused(FlashFused):
    """Scores are rounded to 16 bits, though only weights are declared to be."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        return round_to(x, call.fmt).astype(call.work)


@fault("precision", "`acc` of dtype float16 or bfloat16; accumulate in float32")
class SumsInDtype(WorkingPrecision):
    """Sums run in 16 bits, as the kernel declares."""


@fault("precision", "`acc` of dtype float16 or bfloat16; accumulate in float32")
class SumsInDtypeDeclaredEager(WorkingPrecision):
    """Sums run in 16 bits, though only the stored arrays are declared to have them."""

    numerics = "eager"


@fault("values", "`bits >> 16` or a conversion with `_rz`; round to nearest even")
class OutputTruncated(Kernel):
    """The answer is cut off, not rounded, to 16 bits."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)


@fault("values", "`.half()` before `.bfloat16()`; convert float32 to bfloat16 at once")
class OutputThroughFloat16(Kernel):
    """A bfloat16 answer passes through float16."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        half = round_to(out, DTYPES["f16"]) if call.fmt.name == "bf16" else out
        return super().deliver(half, call)


@fault(
    "election",
    "`-ffast-math`, `set_flush_denormal(True)`; keep subnormals, or declare them flushed",
)
class SubnormalsFlushed(Kernel):
    """Answers below the smallest normal number are zero, though they are declared to be kept."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        tiny = np.abs(answer.values) < call.fmt.smallest_normal
        return Rounded(np.where(tiny, 0.0, answer.values), call.fmt)


@fault("election", "`clamp_min(tiny)` against a division by zero; subnormals are kept or flushed")
class SubnormalsRaised(Kernel):
    """Positive answers below the smallest normal number become this number."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        tiny = (answer.values > 0) & (answer.values < call.fmt.smallest_normal)
        return Rounded(np.where(tiny, call.fmt.smallest_normal, answer.values), call.fmt)


@fault("values", "`bits >> 16` or a conversion with `_rz`; round to nearest even")
class WeightsTruncated(Fused):
    """Weights are cut off, not rounded, to 16 bits."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        kept = super().keep(x, what, call)
        return toward_zero(kept, x, call) if what == "weights" else kept


@fault("values", "`l` of dtype float16 or bfloat16; sum exponentials in float32")
class TotalInDtype(Fused):
    """The sum of the exponentials runs in 16 bits."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
        for j in range(scores.shape[-1]):
            total = round_to(total + raised[..., j, None], call.fmt).astype(scores.dtype)
        return self.keep(raised / np.where(total == 0, 1, total), "weights", call)


@fault("values", "`acc = acc.to(q.dtype)` in the loop over tiles; keep acc in float32")
class AccumulatorInDtype(FlashFused):
    """The running output is rounded to 16 bits between tiles."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total * rescale, self.keep(out * rescale, "weights", self.call)

    def compute(self, call: Call) -> np.ndarray:
        self.call = call
        return super().compute(call)


@fault("values", "`bits >> 16` or a conversion with `_rz`; round to nearest even")
class ScoresTruncated(Eager):
    """Scores are cut off, not rounded, to 16 bits."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        kept = super().keep(x, what, call)
        return toward_zero(kept, x, call) if what == "scores" else kept


@fault("nearest", "`bits >> 16` or a conversion with `_rz`; round to nearest even")
class OutputTruncatedInEager(Eager):
    """The answer is cut off, not rounded, to 16 bits, as are scores and weights rounded before."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)

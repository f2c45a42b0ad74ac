"""Faults of the precision inside, in what is stored, and in the last rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Eager, Fused, Kernel
from suite.faults.kernels.variants import FlashFused, StepByStep, WorkingPrecision
from suite.spec.dtypes import DTYPES, round_to


def toward_zero(rounded: np.ndarray, exact: np.ndarray, call: Call) -> np.ndarray:
    """16-bit numbers, rounded from `exact`, moved to the next number towards zero where they had
    grown; other dtypes as they are."""
    if not call.fmt.is_half:
        return rounded
    step = np.ldexp(1.0, np.frexp(rounded)[1] - call.fmt.precision)
    cut = round_to(rounded - np.sign(rounded) * step, call.fmt).astype(rounded.dtype)
    return np.where(np.abs(rounded) > np.abs(exact), cut, rounded)


@fault("precision")
class Float64InFloat32(Kernel):
    """A float64 call computes in float32."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return array.values.astype(np.float32)


@fault("precision")
class ExponentInFloat32(Kernel):
    """exp runs in float32 whatever the dtype."""

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.exp(shifted.astype(np.float32)).astype(shifted.dtype)


@fault("precision")
class SingleInside(ExponentInFloat32):
    """exp of a float64 call runs in float32, and it says so."""

    numerics = {"f64": "single", "f32": "exact", "bf16": "exact", "f16": "exact"}


@fault("precision")
class TensorFloat32(Kernel):
    """float32 products of queries and keys keep eleven bits of each factor."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        if call.fmt.name == "f32":
            query, key = (self.truncated(x) for x in (query, key))
        return super().scores(query, key, call)

    def truncated(self, x: np.ndarray) -> np.ndarray:
        return (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@fault("precision")
class WeightsInBfloat16(Kernel):
    """Weights are stored in bfloat16 whatever the dtype."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        return round_to(x, DTYPES["bf16"]).astype(x.dtype) if what == "weights" else x


@fault("values")
class StepwiseScaleOff(StepByStep):
    """The scale is off by 0.3 % in float16, in a kernel that stores the steps of the softmax."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.003 if call.fmt.name == "f16" else 1.0)


@fault("values")
class EagerDeclaredExact(Kernel):
    """Scores and weights are stored in the case's dtype, though nothing is declared to be."""

    stores = Eager.stores


@fault("values")
class FusedDeclaredExact(Kernel):
    """Weights are stored in the case's dtype, though nothing is declared to be."""

    stores = Fused.stores


@fault("values")
class ScoresStoredInFused(FlashFused):
    """Scores, too, are stored in the case's dtype, though weights alone are declared to be."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        return round_to(x, call.fmt).astype(call.work)


@fault("precision")
class SumsInDtype(WorkingPrecision):
    """Sums run in the case's 16-bit dtype, and it says so."""


@fault("precision")
class SumsInDtypeDeclaredEager(WorkingPrecision):
    """Sums run in the case's 16-bit dtype, though storing alone is declared to."""

    numerics = "eager"


@fault("values")
class OutputTruncated(Kernel):
    """The answer is cut off, not rounded, to 16 bits."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)


@fault("values")
class OutputThroughFloat16(Kernel):
    """A bfloat16 answer passes through float16."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        half = round_to(out, DTYPES["f16"]) if call.fmt.name == "bf16" else out
        return super().deliver(half, call)


@fault("election")
class SubnormalsFlushed(Kernel):
    """Answers below the smallest normal number are zero, though they are declared to be kept."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        tiny = np.abs(answer.values) < call.fmt.smallest_normal
        return Rounded(np.where(tiny, 0.0, answer.values), call.fmt)


@fault("values")
class WeightsTruncated(Fused):
    """Weights are cut off, not rounded, to the case's dtype."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        kept = super().keep(x, what, call)
        return toward_zero(kept, x, call) if what == "weights" else kept


@fault("values")
class TotalInDtype(Fused):
    """The sum of the weights runs in the case's 16-bit dtype."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.raised(self.shifted(scores))
        total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
        for j in range(scores.shape[-1]):
            total = round_to(total + raised[..., j, None], call.fmt).astype(scores.dtype)
        return self.keep(raised / np.where(total == 0, 1, total), "weights", call)


@fault("values")
class AccumulatorInDtype(FlashFused):
    """The running output is stored in the case's dtype between tiles."""

    def rescaled(
        self, total: np.ndarray, out: np.ndarray, rescale: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return total * rescale, self.keep(out * rescale, "weights", self.call)

    def compute(self, call: Call) -> np.ndarray:
        self.call = call
        return super().compute(call)


@fault("values")
class ScoresTruncated(Eager):
    """Scores are cut off, not rounded, to 16 bits."""

    def keep(self, x: np.ndarray, what: str, call: Call) -> np.ndarray:
        kept = super().keep(x, what, call)
        return toward_zero(kept, x, call) if what == "scores" else kept


@fault("nearest")
class OutputTruncatedInEager(Eager):
    """The answer is cut off, not rounded, to 16 bits, where scores and weights are stored in them."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return Rounded(toward_zero(round_to(out, call.fmt), out, call), call.fmt)

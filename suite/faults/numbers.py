"""Faults in what NaN and infinity reach, and in what a bias of zeros and ones is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.persons import Persons

FAMILY = "numerics"


@fault("election", "`bias.nan_to_num()`; NaN must stay NaN")
class NanInBiasIsZero(Persons):
    """A NaN in a bias counts as 0."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        biased = super().biased(scores, call)
        return biased if call.bias is None else np.where(np.isnan(biased), scores, biased)


@fault("election", "`where(isnan(scores), -inf, scores)` behind the bias; NaN must stay NaN")
class NanInBiasHides(Persons):
    """A NaN in a bias hides its key, as -inf does."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        biased = super().biased(scores, call)
        hidden = np.isnan(biased) & ~np.isnan(scores)
        return np.where(hidden, call.work(-np.inf), biased)


@fault("election", "`nanmax`, `nansum`; a NaN among attended scores makes its row NaN")
class NanScoresAreSkipped(Persons):
    """The maximum and the sum of a row leave NaN out, and so do the weights."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.bias is None or not np.isnan(call.bias.values).any():
            return super().weights(scores, call)
        return super().weights(np.where(np.isnan(scores), call.work(-np.inf), scores), call)


@fault("election", "`value.clamp(min, max)`; infinity must stay infinity")
class InfiniteValuesAreClamped(Persons):
    """An infinite value counts as the largest number."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        top = np.finfo(value.dtype).max
        return np.clip(super().visible(value, scores), -top, top)


@fault("election", "`out.clamp(min, max)`, or a saturating store; infinity must stay infinity")
class AnswersAreClamped(Persons):
    """Answers are clamped to the largest number of their dtype."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        return super().deliver(np.clip(out, -float(call.fmt.max), float(call.fmt.max)), call)


@fault("election", "`where(isfinite(value), value, 0)`; infinity must stay infinity")
class InfiniteValuesAreLeftOut(Persons):
    """An infinite value counts as 0."""

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        shown = super().visible(value, scores)
        return np.where(np.isinf(shown), call_zero(shown), shown)


def call_zero(values: np.ndarray) -> Any:
    """Zero in the type of `values`."""
    return values.dtype.type(0)


class BiasAsMask(Kernel):
    """A bias that `looks` like a mask is taken for one."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        bias = rest.get("bias")
        if bias is not None and bias.values.size and self.looks(bias.values):
            rest["bias"], mask = None, self.taken(bias.values)
            rest["mask"] = Rounded(mask, None)
        return super().attention(query, key, value, **rest)

    def looks(self, bias: np.ndarray) -> bool:
        return bool(np.isin(bias, (0, 1)).all())

    def taken(self, bias: np.ndarray) -> np.ndarray:
        """The mask: True attends."""
        return bias == 1


@fault("values", "`mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases")
class BiasOfBitsIsAMask(BiasAsMask):
    """A bias of zeros and ones is taken for a mask that attends where it is 1."""


@fault("values", "`mask == 1` hides, if all numbers are 1; the dtype tells masks from biases")
class BiasOfOnesHides(BiasAsMask):
    """A bias of ones is taken for a mask that hides."""

    def looks(self, bias: np.ndarray) -> bool:
        return bool((bias == 1).all())

    def taken(self, bias: np.ndarray) -> np.ndarray:
        return bias != 1


@fault(
    "values", "`if not bias.any()` is taken for a mask of False; the dtype tells masks from biases"
)
class BiasOfZerosHides(BiasAsMask):
    """A bias of zeros is taken for a mask that attends nothing."""

    def looks(self, bias: np.ndarray) -> bool:
        return not bias.any()


@fault("values", "`attn_mask.bool()` if all numbers are 0 or 1; the dtype tells masks from biases")
class LayerBiasOfBitsIsAMask(MultiHeadKernel):
    """A bias of zeros and ones is taken for a mask by a layer."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None or not np.isin(call.bias.values, (0, 1)).all():
            return super().biased(scores, call)
        plain = super().biased(scores, replace(call, bias=None))
        return np.where(call.bias.values == 1, plain, call.work(-np.inf))
